"""Sending for real in one process: our runtime, the sandbox's push service, the pump called as its task does."""

import base64
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg

from pushops.delivery import fanning, pump, sending
from pushops.delivery.fanning import FanOut
from pushops.delivery.pump import Pumped
from pushops.delivery.shift import Tools, open_tools
from pushops.runtime import Runtime, open_runtime
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import service as subscriptions
from pushops.subscriptions.keychain import keychain

Pg = psycopg.Connection[Any]
SHORT = timedelta(milliseconds=300)


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

    def send(self, payload: Any = b"hello", **request: Any) -> UUID:
        """A message to everyone, or to whom is named, with all its recipients in the ledger."""
        named = {"user", "tags", "ids", "service", "origin", "locale", "key"} & request.keys()
        made = sending.send(self.rt, payload, everyone=not named, actor="test", **request)
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


def hurry(pg: Pg) -> None:
    """Make what waits due now: tests age the rows, not the clock."""
    pg.execute("UPDATE pushops.push_dispatch SET next_attempt_at = now() WHERE state = 'due'")
    pg.execute("UPDATE pushops.push_lane SET probe_at = now() WHERE probe_at IS NOT NULL")
    pg.execute("UPDATE pushops.push_provider SET probe_at = now() WHERE probe_at IS NOT NULL")
    pg.execute("DELETE FROM pushops.push_throttle")
