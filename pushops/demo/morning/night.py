"""Last night, put into the tables: messages that came to nothing, their ledger, and the letters that they left."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from psycopg.types.json import Jsonb

from pushops.deadletters import writer
from pushops.deadletters.letter import Letter
from pushops.delivery import partitions, payloads
from pushops.delivery.content import compose
from pushops.demo.campaign.subscribers import PATIENCE
from pushops.demo.morning import store
from pushops.demo.morning.bulletins import BULLETINS, SENT_AGO, Bulletin, Cast, Fate
from pushops.demo.morning.store import Facts
from pushops.runtime import Runtime

LONGEST: Final = timedelta(hours=1)  # that somebody was tried for
SECOND: Final = timedelta(seconds=1)
_AT: Final = "at"


@dataclass(frozen=True)
class Sent:
    """A message of last night, with its payload's place in the store."""

    bulletin: Bulletin
    message_id: UUID
    at: datetime
    payload_ref: str

    @property
    def expires_at(self) -> datetime:
        return self.at + self.bulletin.ttl


@dataclass(frozen=True)
class Parked:
    """A letter, with all that was known where it was given up."""

    cast: Cast
    sent: Sent
    facts: Facts
    given_up_at: datetime

    def letter(self) -> Letter:
        failure, facts, sent = self.cast.failure, self.facts, self.sent
        return Letter(
            message_id=sent.message_id,
            subscription_id=facts.id,
            endpoint_hash=facts.endpoint_hash,
            endpoint_host=facts.host,
            push_service=facts.push_service,
            owner=facts.user_id,
            owner_no=facts.owner_no,
            campaign_id=sent.bulletin.name,
            payload_ref=sent.payload_ref,
            attempt_count=failure.attempts,
            first_attempt_at=sent.at,
            last_attempt_at=self.given_up_at,
            terminal_status=failure.status,
            error_class=failure.error_class,
            error_code=failure.code,
            error_snippet=failure.snippet,
            original_ttl=sent.bulletin.ttl // SECOND,
            expires_at=sent.expires_at,
            replayable=True,
            on_in_doubt="discard",
            in_doubt=self.in_doubt,
            history=self.history(),
        )

    @property
    def in_doubt(self) -> bool:
        return self.cast.fate is Fate.DOUBT

    def history(self) -> list[dict[str, Any]]:
        """The last attempt, as the ledger keeps it."""
        failure = self.cast.failure
        outcome = "ambiguous" if self.in_doubt else "refused" if failure.attempts == 1 else "unavailable"
        last = {"n": failure.attempts, _AT: self.given_up_at.isoformat(), "status": failure.status}
        return [last | {"code": failure.code, "outcome": outcome, "snippet": failure.snippet}]

    def entry(self) -> store.Written:
        """Its row of the ledger."""
        failure, facts, sent = self.cast.failure, self.facts, self.sent
        outcome = "poison" if self.cast.fate is Fate.POISON else "exhausted"
        return (
            *(sent.message_id, facts.endpoint_hash, facts.id, facts.user_id, facts.owner_no, facts.lane_id, 2, "ended"),
            *(outcome, failure.code, failure.status, failure.snippet, self.given_up_at, sent.expires_at),
            *(failure.attempts, int(self.in_doubt), sent.at, self.given_up_at, self.given_up_at, Jsonb(self.history())),
        )


def stage(rt: Runtime, letters: Sequence[Cast]) -> dict[str, datetime]:
    """Write it all, the letters by the writer that workers have; then put them where they were nine hours ago.

    When each message expires, by its name.
    """
    with rt.db.transaction() as tx:
        now = tx.now
        known = {one.endpoint_hash: one for one in store.facts(tx)}
    sent = {one.bulletin: one for one in _send(rt, letters, now - SENT_AGO)}
    parked = list(_parked(letters, sent, known))
    _write_ledger(rt, sent, parked)
    writer.write(rt, [one.letter() for one in parked])
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.age_letters(tx, [one.message_id for one in sent.values()])
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.analyze(tx)
    return {one.bulletin.name: one.expires_at for one in sent.values()}


def _send(rt: Runtime, letters: Sequence[Cast], at: datetime) -> Iterator[Sent]:
    """Messages with sealed payloads, each to whoever has a letter of it."""
    for bulletin in BULLETINS:
        message_id = id_of(at)
        body = compose({"title": bulletin.name, "id": bulletin.name}, message_id, stamp=None)
        ref, version = payloads.store(rt, message_id, at, body)
        values = {
            "message_id": message_id,
            "campaign": bulletin.name,
            "at": at,
            "ref": ref,
            "key_version": version,
            "bytes": len(body),
            "ttl": bulletin.ttl // SECOND,
            "recipients": sum(one.bulletin is bulletin for one in letters),
        }
        with rt.db.transaction() as tx:
            store.write_message(tx, values)
        yield Sent(bulletin, message_id, at, ref)


def _parked(letters: Sequence[Cast], sent: Mapping[Bulletin, Sent], known: Mapping[bytes, Facts]) -> Iterator[Parked]:
    """Given up one after the other, all within the time that their message had."""
    for n, one in enumerate(letters, 1):
        tried = min(one.bulletin.ttl, LONGEST) * (n / (len(letters) + 1))
        message = sent[one.bulletin]
        yield Parked(one, message, known[one.subscriber.endpoint_hash], message.at + tried)


def _write_ledger(rt: Runtime, sent: Mapping[Bulletin, Sent], parked: Sequence[Parked]) -> None:
    """In the week that the messages' ids belong to, which may be the last one."""
    for one in sent.values():
        partitions.make_for(rt, one.message_id)
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.copy_ledger(tx, (one.entry() for one in parked))


def id_of(at: datetime) -> UUID:
    """A UUIDv7 of a moment that is over, RFC 9562 section 5.7."""
    milliseconds = int(at.timestamp() * 1000)
    return UUID(int=milliseconds << 80 | 7 << 76 | uuid4().int & ((1 << 62) - 1) | 2 << 62)
