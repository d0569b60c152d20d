"""Carrying a request on: every store is looked through, round after round, until a whole round finds nothing.

Each step is a short transaction that writes down what it did, so that a kill costs nothing and a step twice does
nothing. A last round that finds nothing is what makes the receipt true whatever was in flight in the first.
"""

import json
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final
from uuid import UUID

import redis

from pushops.db import Tx
from pushops.deadletters import spool, tending
from pushops.delivery import finishing, payloads
from pushops.delivery.errors import PayloadStoreError
from pushops.erasure.asking import take
from pushops.erasure.store import reaching, requests, walking
from pushops.erasure.store.reaching import REACH, Subject
from pushops.erasure.store.requests import Met, Named, Standing
from pushops.erasure.words import Progress
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.touching import seen_key
from pushops.sweeps.sql import PLAN_INDEX

MESSAGES: Final = 2_000  # a page of the walk, at most: as many look-ups for each endpoint, some milliseconds
# Of a page, and at most as many rows of the ledger are written at once, in half a second: who has dozens of endpoints
# gets smaller pages.
LOOK_UPS: Final = 20_000
ROWS: Final = 1_000
OBJECTS: Final = 100
SPOOL: Final = "a broken file of the spool is not ours to blank"
UNSETTLED: Final = "a transaction from before is still open"


def carry_on(rt: Runtime, request_id: UUID, stop_at: float) -> Progress:
    """Go on with a request until it is done, must wait, or time (``time.monotonic()``) is over."""
    while True:
        standing = _begin(rt, request_id)
        if isinstance(standing, Progress):
            return standing
        names = _names(rt, request_id)
        try:
            if not _walk(rt, standing, names, stop_at):
                return Progress.MORE
            _reach(rt, request_id, _subject(standing, names))
        except PayloadStoreError as error:
            rt.events.emit("erasure.held", request=str(request_id), why=str(error))
            return _wait(rt, request_id, "the payload store is away")
        except spool.SpoolError as error:
            rt.events.emit("erasure.held", request=str(request_id), why=str(error))
            return _wait(rt, request_id, SPOOL)
        if (ended := _end_round(rt, request_id)) is not None:
            return ended
        if time.monotonic() > stop_at:
            return Progress.MORE


def _begin(rt: Runtime, request_id: UUID) -> Standing | Progress:
    """The request as it stands, with rows that came meanwhile; a round begins without a wait."""
    with rt.db.transaction() as tx:
        standing = requests.lock(tx, request_id)
        if standing is None:
            return Progress.DONE
        user = standing.user_id
        found = take(tx, request_id, lambda: requests.of_request(tx, request_id))
        if user is not None:
            more = take(tx, request_id, lambda: requests.of_user(tx, user))
            found = replace(found, held=found.held or more.held)
            requests.name_former(tx, request_id, user)
        if standing.cursor is None:
            requests.begin_round(tx, request_id)
    return Progress.HELD if found.held else standing


def _names(rt: Runtime, request_id: UUID) -> list[Named]:
    with rt.db.transaction() as tx:
        return requests.named(tx, request_id)


def _subject(standing: Standing, names: list[Named]) -> Subject:
    own = [each for each in names if each.own]
    ids = [each.subscription_id for each in own if each.subscription_id is not None]
    return Subject(standing.user_id, [each.endpoint_hash for each in own], ids)


def _walk(rt: Runtime, standing: Standing, names: list[Named], stop_at: float) -> bool:
    """The ledger, page by page from where it was left; False where time is over."""
    after = standing.cursor or walking.NIL
    size = max(1, min(MESSAGES, LOOK_UPS // max(1, len(names))))
    while True:
        with rt.db.transaction() as tx:
            page = walking.page(tx, after, size)
        if page.last is None:
            return True
        _walk_page(rt, standing, names, after, page.last)
        if page.messages < size:
            return True
        after = page.last
        if time.monotonic() > stop_at:
            return False


def _walk_page(rt: Runtime, standing: Standing, names: list[Named], after: UUID, last: UUID) -> None:
    """Objects first: no row lets go of one that may still be there."""
    of = _subject(standing, names)
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        hashes, own = [each.endpoint_hash for each in names], [each.own for each in names]
        found = walking.match(tx, after, last, hashes=hashes, own=own, user=of.user)
    in_hand = {each.message_id for each in found if each.claimed}
    free = [each for each in found if each.message_id not in in_hand]
    refs = sorted({each.payload_ref for each in free if each.payload_ref is not None})
    _remove(rt, refs)
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        rows = {
            "payloads": walking.forget_payloads(tx, free) if refs else 0,
            "owed letters": walking.unowe(tx, free),
            "ledger": walking.disown(tx, free),
            "recipient lists": walking.unname(tx, after, last, of.ids),
            "cursors": walking.move_cursors(tx, after, last, of.hashes),
        }
        waits = "a sender has a row in hand" if in_hand else None
        _write(tx, standing.request_id, Met(rows, last, waits))


def _reach(rt: Runtime, request_id: UUID, subject: Subject) -> None:
    """All that is not the ledger."""
    _forget_contacts(rt, subject)
    _empty_spool(rt, request_id, subject)
    if subject.user is not None:
        _reach_messages(rt, request_id, subject.user)
    for store, statement in REACH.items():
        rows = ROWS
        while rows == ROWS:
            with rt.db.transaction(planner=PLAN_INDEX) as tx:
                rows = reaching.reach(tx, statement, subject, ROWS)
                _write(tx, request_id, Met({store: rows}))
    with rt.db.transaction(planner=PLAN_INDEX) as tx:
        if reaching.in_hand(tx, subject):
            _write(tx, request_id, Met(waits="a replay has a letter in hand"))


def _reach_messages(rt: Runtime, request_id: UUID, user: str) -> None:
    """Messages to this user alone: cancelled, brought to their end, and their payloads deleted."""
    with rt.db.transaction() as tx:
        cancelled = reaching.cancel_messages(tx, user)
    if cancelled:
        finishing.finish(rt)
    with rt.db.transaction() as tx:
        if reaching.messages_open(tx, user):
            _write(tx, request_id, Met(waits="a message is not closed yet"))
    objects = OBJECTS
    while objects == OBJECTS:
        with rt.db.transaction() as tx:
            named = reaching.payloads(tx, user, OBJECTS)
        _remove(rt, [each.payload_ref for each in named])
        with rt.db.transaction() as tx:
            found = [walking.Match(each.message_id, b"", False, each.payload_ref) for each in named]
            _write(tx, request_id, Met({"payloads": walking.forget_payloads(tx, found)}))
        objects = len(named)


def _remove(rt: Runtime, refs: list[str]) -> None:
    for start in range(0, len(refs), OBJECTS):
        payloads.remove(rt, refs[start : start + OBJECTS])


def _forget_contacts(rt: Runtime, subject: Subject) -> None:
    """That an endpoint was seen this hour. What a Redis that is away keeps goes by itself within that hour."""
    chain = keychain(rt.settings)
    if rt.redis is not None and subject.hashes:
        with suppress(redis.RedisError, OSError):
            rt.redis.delete(*(seen_key(rt.settings, chain, each) for each in subject.hashes))


def _empty_spool(rt: Runtime, request_id: UUID, subject: Subject) -> None:
    """Of this host: letters of who is forgotten are dropped as they are brought in, broken lines are blanked."""
    tending.tend(rt)
    needles = [each.hex().encode() for each in subject.hashes]
    if subject.user is not None:
        needles.append(json.dumps({"owner": subject.user})[1:-1].encode())  # a user may be called as a push service is
    try:
        blanked = spool.blank(rt.settings, needles) if needles else 0
    except OSError as error:
        raise spool.SpoolError(f"expected to read what is broken in the spool, got {error.strerror}") from None
    with rt.db.transaction() as tx:
        _write(tx, request_id, Met({"spool": blanked}))


def _write(tx: Tx, request_id: UUID, met: Met) -> None:
    standing = requests.lock(tx, request_id)
    if standing is not None:
        requests.advance(tx, standing, met)


def _wait(rt: Runtime, request_id: UUID, why: str) -> Progress:
    with rt.db.transaction() as tx:
        _write(tx, request_id, Met(waits=why))
    return Progress.WAITS


def _end_round(rt: Runtime, request_id: UUID) -> Progress | None:
    """Done after a settled round that found nothing and waited for nothing; None where there is another one to do."""
    with rt.db.transaction() as tx:
        standing = requests.lock(tx, request_id)
        if standing is None:
            return Progress.DONE
        came_back = requests.of_request(tx, request_id)  # or is held since this round began
        if standing.rounds and not standing.settled and standing.waits is None:
            standing = replace(standing, waits=UNSETTLED)
            requests.advance(tx, standing, Met(waits=UNSETTLED))
        if standing.waits is not None or standing.found or standing.rounds == 0 or came_back:
            requests.next_round(tx, request_id)
            return None if standing.waits is None else Progress.WAITS
        requests.finish(tx, request_id)
    took = (tx.now - standing.asked_at).total_seconds()
    rows = sum(standing.receipt.values())
    rt.events.emit("erasure.done", request=str(request_id), rows=rows, seconds=round(took, 1))
    return Progress.DONE
