"""Live messages, each to one person at a fixed rate, timed from when it was due to the commit of its ledger row.

Run as a program it sends until its standard input closes, then prints what it sent and when that was due.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import IO, Any, Final, LiteralString

import psycopg

from bench.live import begun, p99_ms
from bench.replaying.stage import Stage
from bench.sending.job import PAYLOAD, WARM
from pushops.ops import Ops
from pushops.runtime import open_runtime
from pushops.settings import load_settings

PER_SECOND: Final = 20
CAMPAIGN: Final = "live"
HOUR: Final = timedelta(hours=1)

# Settling is the last thing that is done with a row: its version's transaction is the one that settled it.
_SETTLED: Final[LiteralString] = """
SELECT m.message_id::text, extract(epoch FROM pg_xact_commit_timestamp(d.xmin))::float8
  FROM pushops.push_message AS m JOIN pushops.push_dispatch AS d USING (message_id)
 WHERE m.campaign_id = 'live' AND d.outcome = 'accepted' AND d.attempts = 1"""

Due = tuple[str, float]  # a message, and when it was due, in seconds of the wall clock


class Live:
    """A process of its own, as an application is."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.sent: list[Due] = []

    def stop(self) -> None:
        """Let it end, and take what it sent."""
        out, _ = self._process.communicate("", timeout=60)
        self.sent = [tuple(each) for each in json.loads(out)]


@contextmanager
def sending(stage: Stage, **settings: object) -> Iterator[Live]:
    """Live messages for the length of the block or until they are stopped."""
    with begun([__name__], stage.house.environment(**stage.settings | settings)) as process:
        yield Live(process)


def p99_between(conn: psycopg.Connection[Any], sent: Sequence[Due], start: float, end: float) -> float:
    """Milliseconds that 99 in 100 of those that were due between two moments were settled within; each must be."""
    when = {str(message): float(at) for message, at in conn.execute(_SETTLED).fetchall()}
    meant = [(message, due) for message, due in sent if start <= due < end]
    missing = sum(message not in when for message, _ in meant)
    assert not missing, f"expected {len(meant)} live messages to be accepted at once, got {missing} that were not"
    return p99_ms([("upsert", due, when[message] - due) for message, due in meant], ("upsert",))


def serve(until: IO[str], out: IO[str]) -> None:
    """Send until ``until`` ends; what is late is not left out."""
    stop = threading.Event()
    threading.Thread(target=_wait, args=(until, stop), daemon=True).start()
    sent: list[Due] = []
    with Ops(open_runtime(load_settings())) as ops:
        _one(ops, 0)
        print("started", file=out, flush=True)
        started, n = time.time(), 0
        while not stop.wait(max(0.0, started + n / PER_SECOND - time.time())):
            sent.append((_one(ops, n), started + n / PER_SECOND))
            n += 1
    print(json.dumps(sent), file=out, flush=True)


def _wait(until: IO[str], stop: threading.Event) -> None:
    until.read()
    stop.set()


def _one(ops: Ops, number: int) -> str:
    made = ops.send(PAYLOAD, user=f"user-{number % WARM}", ttl=HOUR, campaign=CAMPAIGN, actor="bench")
    return str(made.message_id)


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
