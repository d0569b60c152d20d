"""How many letters may be sent again now: a share of each push service's rate, for all workers together."""

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import redis

from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.sweep import RunOptions

FIRST: Final = 0.1  # of the pace: where the ramp begins
HOLDS: Final = 0.5  # seconds' worth that the bucket holds: what may come at once
BLIND: Final = 1.0  # seconds to wait where nobody can say

# No library's limiter: those of `limits` burst at their windows' edges, or take the client's clock and all or nothing.
#
# The bucket is one number, the moment up to which the pace is spent (microseconds of the server's clock). A message
# moves it on by its own run's interval, so that a slow run beside a fast one keeps its pace, and both keep the whole's.
# KEYS[1]: the bucket. ARGV: messages a second, how many are wanted, seconds' worth that it holds.
# Returns how many are granted, and the microseconds until more are.
SPEND: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local each = 1000000 / tonumber(ARGV[1])
local wanted = tonumber(ARGV[2])
local holds = math.max(tonumber(ARGV[3]) * 1000000, each)
local spent = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local granted = math.max(0, math.min(wanted, math.floor((now + holds - spent) / each + 0.000001)))
if granted > 0 then
  spent = spent + granted * each
  redis.call('SET', KEYS[1], string.format('%.0f', spent), 'PX', math.ceil((spent - now) / 1000) + 1)
end
local more = math.min(wanted - granted, math.max(1, math.floor(holds / each / 2))) * each
return {granted, math.ceil(math.max(0, spent + more - now - holds))}
"""


@dataclass(frozen=True)
class Grant:
    """``wait``: seconds after which to ask for the rest; it need not be had at once then."""

    granted: int
    wait: float


@dataclass(frozen=True)
class Pace:
    """A run's pace. ``opened_at`` and ``now`` are the database's; from ``now`` on the monotonic clock counts.

    ``options`` may name ``rate`` (messages a second to each push service, at most its own) and ``ramp`` (seconds).
    """

    rt: Runtime
    options: RunOptions
    opened_at: datetime
    now: datetime
    _made: float = field(default_factory=time.monotonic)

    def take(self, service: str, wanted: int) -> Grant:
        """Spend as much of the push service's pace as there is now, up to ``wanted``. Who cannot see sends nothing."""
        if wanted < 1:
            return Grant(0, 0.0)
        rate = rate_at(self.rt.settings, self.options, service, self._age())
        name = f"{self.rt.settings.db_schema}:replay:{service}"
        if self.rt.redis is None:
            return _local.take(name, rate, wanted)
        try:
            granted, wait = _spend(self.rt.redis, name, rate, wanted)
        except (redis.RedisError, OSError) as error:
            self.rt.events.emit("replay.held", service=service, reason=f"the pace is unknown: {type(error).__name__}")
            return Grant(0, BLIND)
        return Grant(granted, wait / 1e6)

    def _age(self) -> timedelta:
        return self.now - self.opened_at + timedelta(seconds=time.monotonic() - self._made)


def rate_at(settings: Settings, options: RunOptions, service: str, age: timedelta) -> float:
    """Messages a second that a run of this age may send to a push service, by all its workers."""
    whole = settings.rate_of(service)
    asked = options.get("rate")
    pace = settings.replay_share * whole if asked is None else min(float(asked), whole)
    named = options.get("ramp")
    ramp = settings.replay_ramp.total_seconds() if named is None else float(named)
    climbed = age.total_seconds() / ramp if ramp > 0 else 1.0
    return pace * (FIRST + (1 - FIRST) * min(1.0, max(0.0, climbed)))


def spend(spent: float, now: float, rate: float, wanted: int) -> tuple[Grant, float]:
    """What ``SPEND`` does, in seconds, for a process alone: the grant, and up to when the pace is spent then."""
    each = 1 / rate
    holds = max(HOLDS, each)
    spent = max(spent, now)
    granted = max(0, min(wanted, int((now + holds - spent) / each + 1e-6)))
    spent += granted * each
    more = min(wanted - granted, max(1, int(holds / each / 2))) * each
    return Grant(granted, max(0.0, spent + more - now - holds)), spent


class _Local:
    """The buckets of this process, where no Redis is configured at all."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, name: str, rate: float, wanted: int) -> Grant:
        with self._lock:
            grant, self._spent[name] = spend(self._spent.get(name, 0.0), time.monotonic(), rate, wanted)
        return grant


_local: Final = _Local()


def _spend(client: "redis.Redis", name: str, rate: float, wanted: int) -> tuple[int, int]:
    granted, wait = client.register_script(SPEND)(keys=[name], args=[rate, wanted, HOLDS])
    return int(granted), int(wait)
