"""Sending for real in one process: our runtime, the sandbox's push service, the pump called as its task does."""

import base64
import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from pushops.delivery import fanning, pump
from pushops.delivery.fanning import FanOut
from pushops.delivery.pump import Pumped
from pushops.delivery.shift import Tools, open_tools
from pushops.events import Level
from pushops.runtime import Runtime, open_runtime
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import base64url
from pushops.subscriptions import service as subscriptions
from pushops.subscriptions.keychain import AUTH, keychain
from tests.sending import send_to

Pg = psycopg.Connection[Any]
SHORT = timedelta(milliseconds=300)
Recorded = list[tuple[Level, str, Mapping[str, Any]]]


def settings_for(settings: Settings, service: PushService, **changes: Any) -> Settings:
    """Settings that find the push service behind every vendor's name, and wait for nothing long."""
    there = {"connect_to": service.connect_to(), "ca_file": service.ca_file, "provider_rate": 100_000.0}
    return settings.model_copy(update=there | changes)


@dataclass
class Outgoing:
    """A runtime that sends to a push service, and what it was made with."""

    rt: Runtime
    service: PushService
    tools: Tools
    endpoints: list[str] = field(default_factory=list)

    def subscribe(self, vendor: str = "fcm", count: int = 1, **saved: Any) -> list[str]:
        """New browsers, registered with us; their endpoints."""
        public = next(iter(keychain(self.rt.settings).vapid.values())).public
        key = base64.urlsafe_b64encode(public).rstrip(b"=").decode()
        made = self.service.issue(vendor, count, key)
        for subscription in made:
            subscriptions.save_subscription(self.rt, subscription, application_server_key=key, **saved)
        endpoints = [subscription["endpoint"] for subscription in made]
        self.endpoints += endpoints
        return endpoints

    def register(self, pg: Pg, vendor: str, count: int, **columns: Any) -> list[str]:
        """The same for many, in one COPY: sealed as intake does it, otherwise rows like any other."""
        chain = keychain(self.rt.settings)
        key_id, public = next((key_id, key.public) for key_id, key in chain.vapid.items())
        made = self.service.issue(vendor, count, base64.urlsafe_b64encode(public).rstrip(b"=").decode())
        common = {"push_service": vendor, "vapid_key_id": key_id, "state": "active"} | columns
        names = ["endpoint_hash", "endpoint", "p256dh", "auth_sealed", "auth_key_version", *common]
        into = sql.SQL("COPY pushops.push_subscription ({}) FROM STDIN").format(
            sql.SQL(", ").join(map(sql.Identifier, names))
        )
        with pg.cursor().copy(into) as copy:
            for one in made:
                digest = hashlib.sha256(one["endpoint"].encode()).digest()
                sealed = chain.ring.seal(AUTH, digest, base64url.decode(one["keys"]["auth"]))
                own = (digest, one["endpoint"], one["keys"]["p256dh"], sealed.blob, sealed.version)
                copy.write_row((*own, *common.values()))
        endpoints = [one["endpoint"] for one in made]
        self.endpoints += endpoints
        return endpoints

    def send(self, payload: Any = b"hello", **request: Any) -> UUID:
        """A message to everyone, or to whom is named, with all its recipients in the ledger."""
        made = send_to(self.rt, payload, **request)
        while made.state == "waiting" and fanning.fan_out(self.rt, made.message_id).outcome is FanOut.MORE:
            pass
        return made.message_id

    def pump(self, length: timedelta = SHORT) -> Pumped:
        return pump.pump(self.rt, self.tools, length=length)

    def pump_all(self, seconds: float = 30) -> int:
        """Shift after shift until nothing is due any more; how many attempts were settled."""
        deadline, rows = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            done = self.pump()
            rows += done.rows
            if not done.rows and not done.more:
                return rows
        raise AssertionError("expected the pump to run dry, it did not")


@contextmanager
def outgoing(
    settings: Settings, service: PushService, sinks: tuple[Any, ...] = (), **changes: Any
) -> Iterator[Outgoing]:
    rt = open_runtime(settings_for(settings, service, **changes), sinks=sinks)
    try:
        tools = open_tools(rt)
        try:
            yield Outgoing(rt, service, tools)
        finally:
            tools.close()
    finally:
        rt.close()


def ends(pg: Pg, message_id: UUID) -> Counter[str]:
    """How many recipients by outcome, or by state where they have none yet."""
    query = "SELECT coalesce(outcome, state) FROM pushops.push_dispatch WHERE message_id = %s"
    return Counter(row[0] for row in pg.execute(query, [message_id]).fetchall())


def rows_of(pg: Pg, message_id: UUID, *columns: str) -> Counter[Any]:
    """How many recipients have these columns' values, SQL expressions; tuples where there are several."""
    query = f"SELECT {', '.join(columns)} FROM pushops.push_dispatch WHERE message_id = %s"
    found = pg.execute(query.encode(), [message_id]).fetchall()
    return Counter(row if len(columns) > 1 else row[0] for row in found)


def one_row(pg: Pg, endpoint: str) -> dict[str, Any]:
    """The ledger row of an endpoint that was sent one message."""
    with pg.cursor(row_factory=dict_row) as cursor:
        query = "SELECT * FROM pushops.push_dispatch WHERE endpoint_hash = sha256(convert_to(%s, 'UTF8'))"
        (found,) = cursor.execute(query, [endpoint]).fetchall()
        return found


def subscriptions_of(pg: Pg, *columns: str, endpoints: Iterable[str] | None = None) -> Counter[Any]:
    """How many subscriptions have these columns' values, of all or of some endpoints."""
    query = f"SELECT {', '.join(columns)} FROM pushops.push_subscription"
    if endpoints is None:
        found = pg.execute(query.encode()).fetchall()
    else:
        found = pg.execute(f"{query} WHERE endpoint = ANY (%s)".encode(), [list(endpoints)]).fetchall()
    return Counter(row if len(columns) > 1 else row[0] for row in found)


def pages(recorded: Recorded) -> list[tuple[str, Any, Any]]:
    """Whom somebody was woken for: event, push service, and why or with which code."""
    return [
        (name, fields.get("service"), fields.get("code") or fields.get("why"))
        for level, name, fields in recorded
        if level is Level.PAGE
    ]


# Times that rules look at, of rows that something happened to; what was never tried has none that is old.
AGED: Final = {
    "push_provider": "true",
    "push_answer": "true",
    "push_guard": "true",
    "push_hold": "true",
    "push_lane": "true",
    "push_rate": "true",
    "push_evidence": "true",
    "push_throttle": "true",
    "push_dispatch": "attempts > 0 OR suspect > 0 OR ended_at IS NOT NULL OR wait IS NOT NULL",
    "push_subscription": "last_tried_at IS NOT NULL OR votes > 0 OR blocked_at IS NOT NULL OR revoked_at IS NOT NULL",
}
TIMES: Final = """
SELECT table_name, array_agg(column_name::text) FROM information_schema.columns
 WHERE table_schema = 'pushops' AND data_type = 'timestamp with time zone' AND table_name = ANY (%s)
 GROUP BY table_name"""


def age(pg: Pg, by: str) -> None:
    """Let time pass: everything that happened lies further back by an interval, and what waits is due the sooner."""
    far = "10000 days"  # and back: minutes must not meet on the way
    for step in (f"- interval '{by}' - interval '{far}'", f"+ interval '{far}'"):
        for table, columns in pg.execute(TIMES, [list(AGED)]).fetchall():
            moves = ", ".join(f"{column} = {column} {step}" for column in columns)
            pg.execute(f"UPDATE pushops.{table} SET {moves} WHERE {AGED[table]}".encode())
    past = f"ARRAY(SELECT at - interval '{by}' FROM unnest(faults) AS at)"
    pg.execute(f"UPDATE pushops.push_lane SET faults = {past} WHERE faults <> '{{}}'".encode())


def hurry(pg: Pg) -> None:
    """Make what waits due now: tests age the rows, not the clock."""
    pg.execute("UPDATE pushops.push_dispatch SET next_attempt_at = now() WHERE state = 'due'")
    pg.execute("UPDATE pushops.push_lane SET probe_at = now() WHERE probe_at IS NOT NULL")
    pg.execute("UPDATE pushops.push_provider SET probe_at = now() WHERE probe_at IS NOT NULL")
    pg.execute("DELETE FROM pushops.push_throttle")
