"""``make demo``: the nightly purge as a story, on servers of its own. `story.py` tells it in order."""
