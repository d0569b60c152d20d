"""The second half of the demo: a campaign through a push service on a bad day, an outage, and an operator's word."""
