"""Folders that the sandbox claimed for itself: only those are ever filled or emptied."""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from pushops.errors import PushopsError
from pushops.sandbox.account import Account

MARKER: Final = ".pushops-sandbox"


def claim(folder: Path, account: Account) -> None:
    """Make `folder`, or take an empty one, and mark it as ours; PushopsError for one that holds anything else.

    An existing folder keeps its owner and mode, so it must be one that `account` can enter.
    """
    account.make_folder(folder)
    check_private(folder)
    account.enter(folder)
    if not claimed(folder):
        foreign = next(folder.iterdir(), None)
        # Another process may claim and fill it between two of these lines.
        if foreign is not None and foreign.name != MARKER and not claimed(folder):
            raise PushopsError(f"expected an empty folder for the sandbox, got {foreign.name!r} in {folder}")
        (folder / MARKER).touch(mode=0o600)


def claimed(folder: Path) -> bool:
    """Whether `folder` is ours; PushopsError when somebody else made it, so that their files are never believed."""
    try:
        (folder / MARKER).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise PushopsError(f"expected to look into {folder}, got {error.strerror}") from error
    check_private(folder)
    return True


def release(folder: Path) -> None:
    """Remove a claimed folder and what is in it; the mark goes last, so that a removal cut short can be repeated."""
    if not claimed(folder):
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != MARKER:
            entry.unlink()
    (folder / MARKER).unlink()
    with suppress(OSError):  # not empty: another process has already begun to use it again
        folder.rmdir()


def check_private(folder: Path) -> None:
    """Raise PushopsError unless `folder` is a real folder of the caller's that not everybody can write to."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        raise PushopsError(f"expected a folder that only its owner, uid {os.geteuid()}, can write to, got {folder}")


def write_private(path: Path, text: str) -> None:
    """Write a file that only the caller can read, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    partial.replace(path)
