"""The verbs of dead letters: what the command line, the tasks and an application call."""

from pushops.deadletters.replay.previewing import Preview, preview

__all__ = ["Preview", "preview"]
