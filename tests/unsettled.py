"""Workers that send, for tests that end them: real Celery, short leases, and beats that ring for everything."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from pydantic import SecretStr

from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Pg, settings_for

SCHEDULE: Final[Mapping[str, Mapping[str, Any]]] = {
    name: {"task": f"pushops.{name}", "schedule": every, "options": {"expires": 1.0}}
    for name, every in {"send_due": 0.3, "reap_claims": 0.5, "tend_messages": 0.3}.items()
}


def sending(settings: Settings, service: PushService, broker_url: str, **changes: Any) -> Settings:
    """Settings of workers that send to a push service."""
    broker = {"broker_url": SecretStr(broker_url), "broker_timeout": timedelta(milliseconds=500)}
    return settings_for(settings, service, **broker | changes)


def lose_leases(pg: Pg, older_than: str = "0 seconds") -> int:
    """The lease of whoever is dead runs out: the rows are aged, not the clock."""
    lost = pg.execute(
        "UPDATE pushops.push_dispatch SET claimed_until = clock_timestamp() - interval '1 ms'"
        " WHERE state = 'claimed' AND last_attempt_at <= clock_timestamp() - %s::interval",
        [older_than],
    ).rowcount
    if lost:
        pg.execute("UPDATE pushops.sweep_slot SET free_at = clock_timestamp() WHERE holder IS NOT NULL")
    return lost


def make_due(pg: Pg) -> None:
    pg.execute(
        "UPDATE pushops.push_dispatch SET next_attempt_at = now() WHERE state = 'due' AND next_attempt_at > now()"
    )


def never_twice(pg: Pg, service: PushService, endpoints: list[str], message_id: Any) -> None:
    """Nobody has two accepted sends of a message, except as often as the ledger calls it unknown."""
    unsure = dict(
        pg.execute(
            "SELECT s.endpoint, d.ambiguous FROM pushops.push_dispatch AS d"
            " JOIN pushops.push_subscription AS s ON s.id = d.subscription_id WHERE d.message_id = %s",
            [message_id],
        ).fetchall()
    )
    accepted = service.accepted(endpoints)
    broken = [times for endpoint, times in zip(endpoints, accepted, strict=True) if times > 1 + unsure[endpoint]]
    assert not broken, f"accepted more often than the ledger knows: {broken}"
    assert min(accepted) >= 1, "somebody did not get it"
