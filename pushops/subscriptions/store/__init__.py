"""All SQL about subscriptions, one module per noun."""
