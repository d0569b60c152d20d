"""Folders of this user's own, and files that outlive a power cut."""

import os
from pathlib import Path


def state_folder(name: str) -> Path:
    """Where this user's programs keep what is not to be lost: a folder of ours there."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "pushops" / name


def flush(path: Path) -> None:
    """A file's bytes, or a folder's names, are on disk when this returns. Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
