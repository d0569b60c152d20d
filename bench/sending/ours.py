"""Contenders 5 to 7: the transport with encryption, pushops whole, and encryption alone, which is the limit."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
from pywebpush import WebPusher

from bench.sending.job import KEY_ID, PAYLOAD, SUBJECT, TTL, WARM, Done, Job, Person, each, resident_mb, timed
from pushops.delivery import fanning, pump, sending
from pushops.delivery.encryption import encrypt
from pushops.delivery.fanning import FanOut
from pushops.delivery.pump import Outcome
from pushops.delivery.shift import Tools, open_tools
from pushops.delivery.transport import Request, Transport, transport_rules
from pushops.delivery.vapid import Tokens
from pushops.events import Level
from pushops.runtime import Runtime, open_runtime
from pushops.sandbox.push.vendors import MOZILLA_HOST
from pushops.settings import load_settings
from pushops.subscriptions import base64url
from pushops.subscriptions.keychain import keychain

IN_FLIGHT: Final = 100
WARM_TAG: Final = "warm"  # the first rows have it
MEMORY_AT: Final = 10_000  # sends after which memory is looked at for the first time
# Every row of the ledger has been accepted, at the first attempt.
_ENDS: Final = "SELECT coalesce(outcome, state), attempts, count(*) FROM pushops.push_dispatch GROUP BY 1, 2"


def encryption(job: Job) -> Done:
    """(7) The library's objects are made beforehand: nothing but its encoding is on the clock."""
    pushers = [WebPusher(one) for one in job.read()]
    return each(pushers, lambda one: one.encode(PAYLOAD.encode()))


def transport(job: Job) -> Done:
    """(5) Encryption, a token and the POST, with nothing of the database."""
    settings = load_settings()
    chain = keychain(settings)
    tokens = Tokens(chain.vapid, SUBJECT)
    people = list(job.read())
    with Transport(transport_rules(settings), chain.rules) as opened:

        def send(some: list[Person]) -> None:
            for _, answer in opened.exchange(_requests(tokens, some), in_flight=IN_FLIGHT):
                status = None if answer is None else answer.status
                assert status == 201, f"expected 201, got {answer}"

        send(people[:WARM])
        return timed(len(people) - WARM, lambda: send(people[WARM:]))


def _requests(tokens: Tokens, people: list[Person]) -> Iterator[Request[None]]:
    payload, origin = PAYLOAD.encode(), f"https://{MOZILLA_HOST}"
    for one in people:
        keys = one["keys"]
        body = encrypt(keys["p256dh"], base64url.decode(keys["auth"]), payload)
        headers = {
            "Authorization": tokens.header(KEY_ID, origin, datetime.now(UTC)),
            "Content-Encoding": "aes128gcm",
            "Content-Type": "application/octet-stream",
            "TTL": str(TTL),
            "Urgency": "normal",
        }
        yield Request(one["endpoint"], MOZILLA_HOST, headers, body, None)


class Memory:
    """An event sink that looks at the process's memory when enough has been settled."""

    def __init__(self) -> None:
        self.rows = 0
        self.found: dict[str, float] = {}

    def __call__(self, _level: Level, name: str, fields: Any) -> None:  # noqa: ANN401  (of every event)
        if name == "send.settled":
            before, self.rows = self.rows, self.rows + fields["rows"]
            if before < MEMORY_AT <= self.rows:
                self.found[str(MEMORY_AT)] = resident_mb()


def whole(job: Job) -> Done:
    """(6) Claims, encrypts, posts, classifies and settles until nothing is due. The fan-out is not on the clock."""
    memory = Memory()
    rt = open_runtime(load_settings(), sinks=(memory,))
    tools = open_tools(rt)
    try:
        _fan_out(rt, tags=[WARM_TAG])
        _pump(rt, tools)
        _fan_out(rt, everyone=True)
        memory.rows = 0
        _checkpoint(rt)
        done = timed(job.count, lambda: _pump(rt, tools))
        memory.found[str(job.count)] = resident_mb()
        _check(rt, job.count)
    finally:
        tools.close()
        rt.close()
    return Done(done.sent, done.seconds, done.cpu, memory.found)


def _fan_out(rt: Runtime, **audience: Any) -> None:  # noqa: ANN401  (as send takes it)
    made = sending.send(rt, PAYLOAD, ttl=timedelta(seconds=TTL), actor="bench", **audience)
    while made.state == "waiting" and fanning.fan_out(rt, made.message_id).outcome is FanOut.MORE:
        pass


def _pump(rt: Runtime, tools: Tools) -> None:
    while (done := pump.pump(rt, tools)).outcome is not Outcome.NOTHING_DUE or done.more:
        assert done.outcome in {Outcome.SENT, Outcome.NOTHING_DUE}, f"expected to send, got {done}"


def _checkpoint(rt: Runtime) -> None:
    assert rt.settings.database_url is not None
    with psycopg.connect(rt.settings.database_url.get_secret_value(), autocommit=True) as conn:
        conn.execute("CHECKPOINT")


def _check(rt: Runtime, count: int) -> None:
    assert rt.settings.database_url is not None
    with psycopg.connect(rt.settings.database_url.get_secret_value()) as conn:
        found = conn.execute(_ENDS).fetchall()
    sent = count + WARM + WARM  # the first ones were warmed up with, and are sent to again
    assert found == [("accepted", 1, sent)], f"expected {sent} rows accepted at once, got {found}"
