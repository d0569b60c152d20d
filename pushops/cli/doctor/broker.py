"""The broker: reachable, never evicting a message, never delivering one again while it is worked on."""

from collections.abc import Iterator
from typing import Any, Final

import redis

from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.runtime import Runtime
from pushops.settings import Settings

KOMBU_VISIBILITY: Final = 3600  # seconds, where nothing is configured
_REDIS: Final = ("redis://", "rediss://", "valkey://", "unix://")


def broker(rt: Runtime) -> Iterator[Finding]:
    from pushops.tasks import app, queue_depth  # noqa: PLC0415  (Celery takes half a second, and not every check gets here)

    expected = "a broker that answers"
    if not app.conf.broker_url:
        advice = "set PUSHOPS_BROKER_URL; without it only pushops sweep run --inline works"
        yield warning("broker", expected, "PUSHOPS_BROKER_URL is not set", advice)
        return
    depth = queue_depth(rt.settings.queue)
    if depth is None:
        yield problem("broker", expected, "no answer", "see whether the server that PUSHOPS_BROKER_URL names is up")
        return
    yield fine("broker", expected, f"{depth:,} message(s) in queue {rt.settings.queue!r} or in hand")
    url = str(app.conf.broker_url)
    if url.startswith(_REDIS):
        yield eviction(_policy(url, rt.settings))
        options: dict[str, Any] = app.conf.broker_transport_options or {}
        yield visibility(options.get("visibility_timeout", KOMBU_VISIBILITY), app.conf.task_time_limit)


def eviction(policy: str | None) -> Finding:
    expected = "maxmemory-policy noeviction"
    if policy is None:
        return warning("eviction", expected, "the server does not say", "look at it where the server is managed")
    if policy != "noeviction":
        return problem("eviction", expected, policy, "CONFIG SET maxmemory-policy noeviction: others drop messages")
    return fine("eviction", expected, policy)


def visibility(timeout: float, time_limit: float | None) -> Finding:
    """After the timeout Redis delivers again what nobody acknowledged, whether or not somebody works on it."""
    expected = "a visibility timeout above the tasks' time limit"
    found = f"{timeout:.0f} s against {'no limit' if time_limit is None else f'{time_limit:.0f} s'}"
    if time_limit is None or timeout <= time_limit:
        advice = "set task_time_limit below broker_transport_options['visibility_timeout'] in celeryconfig.py"
        return problem("visibility", expected, found, advice)
    return fine("visibility", expected, found)


def _policy(url: str, settings: Settings) -> str | None:
    """None where the server forbids CONFIG, as managed ones do."""
    limit = settings.broker_timeout.total_seconds()
    plain = url.replace("valkey://", "redis://", 1)
    try:
        with redis.Redis.from_url(plain, socket_timeout=limit, socket_connect_timeout=limit) as client:
            found: dict[str, str] = client.config_get("maxmemory-policy")
    except redis.RedisError:
        return None
    return found.get("maxmemory-policy")
