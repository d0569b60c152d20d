"""A subscriber table of somebody's own gets an endpoint hash that is unique, online, while it is written to."""
