"""Letters on their way into their table: on a connection of their own, and into the spool where it refuses.

Who sends hands them over after its own commit and never waits for long: a table that refused is left alone for a while.
What is neither in the table nor in the spool is still owed, by the rows of push_unparked.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg

from pushops.db import Database, Tx
from pushops.db.errors import translated
from pushops.db.target import conninfo
from pushops.deadletters import spool
from pushops.deadletters.letter import Letter
from pushops.deadletters.store import parking as store
from pushops.errors import DataError, PushopsError
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.store import suppressing

Conn = psycopg.Connection[Any]

PAGE: Final = 500  # letters in a transaction
# Seconds for which a table that refused is left alone; at least ten times what the refusal took, so that sending loses
# a tenth of its time at the worst.
PAUSE: Final = 5.0
PAUSES: Final = 10.0
WOKEN: Final = 3600.0  # seconds: who was woken knows of it
MILLISECOND: Final = timedelta(milliseconds=1)
A_MOMENT_AGO: Final = "the database refused a moment ago"


@dataclass
class _Trouble:
    """What a process remembers of a table that refused, in seconds of the monotonic clock."""

    until: float = 0.0
    paged_at: float | None = None


_troubles: Final[WeakKeyDictionary[Database, _Trouble]] = WeakKeyDictionary()


def park(rt: Runtime, letters: Sequence[Letter]) -> None:
    """Write letters, or put them into the spool. Raises nothing: what was settled stays settled."""
    if not letters:
        return
    trouble = _troubles.setdefault(rt.db, _Trouble())
    began = time.monotonic()
    if began < trouble.until:
        _put_away(rt, letters, A_MOMENT_AGO, trouble)
        return
    try:
        write(rt, letters)
    except Exception as error:  # noqa: BLE001  (no letter may cost an answer its settling)
        if not isinstance(error, DataError):
            now = time.monotonic()
            trouble.until = now + max(PAUSE, PAUSES * (now - began))
        _put_away(rt, letters, explain(error), trouble)
    else:
        rt.events.emit("dlq.parked", rows=len(letters), codes=_codes(letters))


def write(rt: Runtime, letters: Sequence[Letter]) -> None:
    """Write letters, whoever has written them before. Raises children of DatabaseError."""
    once = {(letter.message_id, letter.subscription_id): letter for letter in letters}
    with connected(rt) as conn:
        for page in pages(list(once.values())):
            with transaction(rt, conn) as tx:
                _write(rt, tx, page)


def _write(rt: Runtime, tx: Tx, page: Sequence[Letter]) -> None:
    """Who was erased since gets no letter: what was on its way, or lay in a spool, ends here."""
    chain = keychain(rt.settings)
    owners = {letter.owner: chain.user_hmac(letter.owner) for letter in page if letter.owner is not None}
    written = [(owners[letter.owner], letter.last_attempt_at) for letter in page if letter.owner is not None]
    erased, forgotten = suppressing.find(tx, [each.endpoint_hash for each in page]), suppressing.forgotten(tx, written)
    dropped = [
        letter for letter in page if letter.endpoint_hash in erased or owners.get(letter.owner or "") in forgotten
    ]
    if dropped:
        gone = {(letter.message_id, letter.endpoint_hash) for letter in dropped}
        store.forget(tx, list(gone))
        page = [letter for letter in page if (letter.message_id, letter.endpoint_hash) not in gone]
    if page:
        store.write(tx, page)


def write_apart(rt: Runtime, letters: Sequence[Letter]) -> list[Letter]:
    """The same, where one that the table does not take is not in the way of others; gives those that it does not."""
    try:
        write(rt, letters)
    except DataError:
        if len(letters) == 1:
            return list(letters)
        half = len(letters) // 2
        return write_apart(rt, letters[:half]) + write_apart(rt, letters[half:])
    return []


@contextmanager
def connected(rt: Runtime) -> Iterator[Conn]:
    """A connection that nobody else has, for letters alone; it does not wait for longer than they may.

    Not the pool's: who sends must not find it used up, nor its connections stuck.
    """
    limit = rt.settings.dead_letter_timeout
    with translated():
        conn = psycopg.connect(
            conninfo(rt.settings, "pushops-letters"),
            autocommit=True,
            prepare_threshold=None,
            connect_timeout=ceil(limit.total_seconds()),
            tcp_user_timeout=limit // MILLISECOND,
        )
    try:
        yield conn
    finally:
        conn.close()


def transaction(rt: Runtime, conn: Conn) -> AbstractContextManager[Tx]:
    limit = rt.settings.dead_letter_timeout
    return rt.db.transaction(on=conn, statement_timeout=limit, lock_timeout=limit)


def pages(letters: Sequence[Letter]) -> Iterator[Sequence[Letter]]:
    return (letters[start : start + PAGE] for start in range(0, len(letters), PAGE))


def explain(error: Exception) -> str:
    """For an event: other people's errors may carry values."""
    return str(error) if isinstance(error, PushopsError) else type(error).__name__


def _put_away(rt: Runtime, letters: Sequence[Letter], why: str, trouble: _Trouble) -> None:
    try:
        spool.append(rt.settings, letters)
    except Exception as error:  # noqa: BLE001  (they are still owed)
        rt.events.emit("dlq.spool_failed", rows=len(letters), error=explain(error))
        return
    now = time.monotonic()
    page = trouble.paged_at is None or now - trouble.paged_at > WOKEN
    if page:
        trouble.paged_at = now
    rt.events.emit("dlq.spooled", None if page else Level.WARNING, rows=len(letters), error=why)


def _codes(letters: Sequence[Letter]) -> Mapping[str, int]:
    return dict(Counter(f"{letter.error_class}/{letter.error_code}" for letter in letters))
