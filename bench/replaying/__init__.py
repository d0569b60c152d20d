"""Replaying dead letters against plain sending, triage of a million, and a paced drain beside live messages."""
