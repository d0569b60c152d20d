"""Senders against one server: each contender in a process of its own, on a core of its own where there are two."""
