"""The checking of a source's rows, in this process while they are few, else in processes of their own."""

import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import get_context, parent_process
from typing import ClassVar, Final

from pushops.errors import PushopsError
from pushops.importing.checking import Checked, Checker, checker
from pushops.importing.sources import Form, Numbered, Source
from pushops.importing.words import Rules
from pushops.settings import Settings
from pushops.subscriptions.keychain import keychain

CHUNK: Final = 2_000  # rows: a megabyte, and some tens of milliseconds of checking
ALONE: Final = 10_000  # rows: so many are checked while other processes would start
AHEAD: Final = 2  # chunks for each process: what is read ahead bounds the memory


class CrewError(PushopsError):
    """A process of the crew ended; nothing was stored."""

    label: ClassVar[str] = "import_crew"


def check_all(settings: Settings, source: Source, rules: Rules, processes: int | None = None) -> Iterator[Checked]:
    """Each chunk's outcome, in the order of the source. ``processes`` 1 means: in this one; None: one for each core."""
    check = checker(keychain(settings), source.form, rules)
    crew = processes or min(os.cpu_count() or 1, 8)
    alone = iter(lambda: list(islice(source.rows, CHUNK)), [])
    yield from map(check.check, alone if crew == 1 else islice(alone, ALONE // CHUNK))
    first = list(islice(source.rows, CHUNK))
    if first:
        yield from _in_processes(settings, source, rules, crew, first)


def _in_processes(
    settings: Settings, source: Source, rules: Rules, crew: int, first: Sequence[Numbered]
) -> Iterator[Checked]:
    """Spawned, not forked: a fork would share this process's connections."""
    pool = ProcessPoolExecutor(crew, get_context("spawn"), _prepare, (settings, source.form, rules))
    waiting: deque[Future[Checked]] = deque([pool.submit(_check, first)])
    try:
        while waiting:
            while len(waiting) < crew * AHEAD and (chunk := list(islice(source.rows, CHUNK))):
                waiting.append(pool.submit(_check, chunk))
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise CrewError(
            "expected the processes that check rows to live, one ended: out of memory? Import again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_checkers: Final[list[Checker]] = []  # of a process of the crew: made once, since a keychain is no argument


def _prepare(settings: Settings, form: Form, rules: Rules) -> None:
    """Who started us is told of an interrupt and ends us; where it was killed, nobody else would."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _checkers.append(checker(keychain(settings), form, rules))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _check(chunk: Sequence[Numbered]) -> Checked:
    return _checkers[0].check(chunk)
