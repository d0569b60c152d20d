"""What really stands in the broker: every kind of message, taken from its queue before a worker sees it."""

import base64
import json
from typing import Any, Final

import redis

from bench.house import House
from bench.pipeline import ORDER, bell
from pushops.retention.policies import PURGE_TOMBSTONES, SWEEPS
from pushops.runtime import runtime
from pushops.settings import load_settings
from pushops.sweeps import service

EMPTY_KWARGS: Final[dict[str, Any]] = {}


def largest(house: House) -> tuple[int, int]:
    """Bytes of the largest args and kwargs together, as JSON, and of the largest message. Needs that no worker runs."""
    from pushops import tasks  # noqa: PLC0415  (reads the broker's URL from the environment)

    with redis.Redis.from_url(house.valkey.url()) as broker, runtime(load_settings()) as rt:
        broker.flushall()
        found = service.dispatch(rt, PURGE_TOMBSTONES, bell(rt), ORDER)
        assert found.run is not None
        tasks.more_pages.delay(str(found.run.run_id))
        tasks.dispatch_sweep.delay(max(SWEEPS, key=len))
        tasks.tend_sweeps.delay()
        messages: list[bytes] = broker.lrange(rt.settings.queue, 0, -1)
        broker.flushall()
    assert len(messages) > 3, f"expected messages about batches in the queue, got {len(messages)} in all"
    return max(map(_args_bytes, messages)), max(map(len, messages))


def _args_bytes(message: bytes) -> int:
    args, kwargs, _ = json.loads(base64.b64decode(json.loads(message)["body"]))
    return len(json.dumps(args)) + (len(json.dumps(kwargs)) if kwargs != EMPTY_KWARGS else 0)
