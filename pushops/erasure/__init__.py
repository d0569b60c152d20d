"""Forgetting a person or an endpoint: what ends at once, what is deleted everywhere, what proves it."""
