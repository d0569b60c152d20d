"""Where letters wait while the database refuses them: JSON lines in a folder of this host, readable by us alone.

A file has one writer or one reader at a time: who finds it locked takes another, and waits for nobody.
"""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pushops.deadletters.letter import Letter
from pushops.deadletters.spelling import read, spell
from pushops.disk import flush, state_folder
from pushops.errors import PushopsError
from pushops.settings import Settings

FILES: Final = 100  # of one process at once: more than it has threads that park
FILE_BYTES: Final = 16 << 20  # then the next one is begun: who reads a file reads all of it
SUFFIX: Final = ".jsonl"
BROKEN: Final = ".broken"
NOBODY_ELSE: Final = 0o077
FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # no pipe is waited for
STRANGE: Final = (errno.ELOOP, errno.EACCES, errno.EISDIR, errno.ENXIO)


class SpoolError(PushopsError):
    """The spool is not ours alone, or cannot be written; letters stay owed."""

    label = "spool"
    retryable = True


@dataclass(frozen=True)
class Held:
    """What a file holds: letters, and lines that are none."""

    letters: list[Letter]
    broken: list[bytes]


def folder(settings: Settings) -> Path:
    """The folder that is set, or that of this user's state."""
    return state_folder("spool") if settings.spool is None else settings.spool


def append(settings: Settings, letters: Sequence[Letter]) -> None:
    """Put letters on disk: they outlive a power cut when this returns. Raises SpoolError and OSError."""
    lines = b"".join(line(letter) + b"\n" for letter in letters)
    where = folder(settings)
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(where.stat(), stat.S_ISDIR)
    number = _own_file(where)
    try:
        _write(number, lines)
        os.fsync(number)
    finally:
        os.close(number)
    flush(where)


def line(letter: Letter) -> bytes:
    return json.dumps(spell(letter)).encode()


def files(settings: Settings) -> list[Path]:
    """What waits to be read."""
    where = folder(settings)
    return sorted(where.glob(f"*{SUFFIX}")) if where.is_dir() else []


@contextmanager
def taken(path: Path) -> Iterator[Held | None]:
    """What a file holds, which goes when the block ends well. None where somebody else has it in hand, or had.

    Lines that are no letters stay in a file beside it. Raises SpoolError for a file that is not ours alone, OSError.
    """
    number = _open(path)
    if number is None:
        yield None
        return
    try:
        found = _parse(_read(number))
        yield found
        if found.broken:
            _keep(path, found.broken)
        path.unlink()
        flush(path.parent)
    finally:
        os.close(number)


def blank(settings: Settings, needles: Sequence[bytes]) -> int:
    """Overwrite every line that is no letter and holds one of these; how many. Raises SpoolError and OSError.

    In place and byte for byte, so that whoever adds a line meanwhile loses none.
    """
    where = folder(settings)
    return sum(_blank(path, needles) for path in where.glob(f"*{BROKEN}")) if where.is_dir() else 0


def _blank(path: Path, needles: Sequence[bytes]) -> int:
    found = place = 0
    with path.open("r+b") as file:
        _check(os.fstat(file.fileno()), stat.S_ISREG, others=NOBODY_ELSE)
        for each in file.read().splitlines(keepends=True):
            if any(needle in each for needle in needles):
                os.pwrite(file.fileno(), b"\n" * len(each), place)
                found += 1
            place += len(each)
        os.fsync(file.fileno())
    return found


def _own_file(where: Path) -> int:
    """The first file of this process that nobody has in hand and that has room; locked, at its end."""
    for n in range(FILES):
        with suppress(SpoolError):  # not ours: who reads it says so
            number = _open(where / f"{os.getpid()}-{n}{SUFFIX}", os.O_CREAT)
            if number is None:
                continue
            if os.fstat(number).st_size < FILE_BYTES:
                return number
            os.close(number)
    raise SpoolError(f"expected room in the spool, got {FILES} files of this process that are full or in hand")


def _open(path: Path, create: int = 0) -> int | None:
    """The file, locked until it is closed. None where it is locked, or gone by then: a lock on it would say nothing."""
    try:
        number = os.open(path, FLAGS | create, 0o600)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in STRANGE and os.path.lexists(path):
            raise SpoolError(f"expected a file of our own in the spool, got {errno.errorcode[error.errno]}") from None
        raise
    try:
        _check(os.fstat(number), stat.S_ISREG, others=NOBODY_ELSE)
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(number), path.lstat()):
            return number
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(number)
        raise
    os.close(number)
    return None


def _check(found: os.stat_result, is_kind: Callable[[int], bool], others: int = stat.S_IWGRP | stat.S_IWOTH) -> None:
    """Refuse what another user owns, may change, or laid there."""
    if not is_kind(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & others:
        mine = f"uid {os.geteuid()} with mode {0o777 & ~others:o} or less"
        raise SpoolError(f"expected the spool to belong to {mine}, got uid {found.st_uid} and {found.st_mode:o}")


def _write(number: int, lines: bytes) -> None:
    """All or nothing; after a torn line, which somebody left who was killed, on a line of its own."""
    size = os.fstat(number).st_size
    torn = size > 0 and os.pread(number, 1, size - 1) != b"\n"
    left = memoryview(b"\n" + lines if torn else lines)
    try:
        while left:
            left = left[os.write(number, left) :]
    except OSError:
        os.ftruncate(number, size)
        raise


def _read(number: int) -> bytes:
    with os.fdopen(os.dup(number), "rb") as file:
        return file.read()


def _parse(data: bytes) -> Held:
    found = Held([], [])
    for each in filter(None, data.split(b"\n")):
        try:
            found.letters.append(read(json.loads(each)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            found.broken.append(each)
    return found


def _keep(path: Path, lines: Sequence[bytes]) -> None:
    number = os.open(path.with_suffix(BROKEN), FLAGS | os.O_CREAT, 0o600)
    try:
        _write(number, b"".join(each + b"\n" for each in lines))
        os.fsync(number)
    finally:
        os.close(number)
