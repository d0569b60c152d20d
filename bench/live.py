"""Live traffic beside a purge: registrations and fan-out reads at a fixed rate, each timed from when it was due.

Run as a program it makes that traffic until its standard input closes, then prints what it measured.
"""

import hashlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, Final, Literal

import pushops
from bench.house import House, wait_for
from pushops.ops import Ops
from pushops.subscriptions import base64url
from pushops.subscriptions.keys import generate_vapid_key

CLIENTS: Final = 4
PER_SECOND: Final = 25  # operations of each client: one in three registers, the others read
READ_ROWS: Final = 100

Kind = Literal["upsert", "by_user", "by_service"]
Sample = tuple[Kind, float, float]  # kind, when it was due (monotonic), seconds until it was done

_LIVE: Final = "deleted_at IS NULL AND send_block IS NULL AND state IN ('pending', 'active')"
_COLUMNS: Final = "id, endpoint, p256dh, auth_sealed, auth_key_version, vapid_key_id"
BY_USER: Final = f"SELECT {_COLUMNS} FROM pushops.push_subscription WHERE user_id = %s AND {_LIVE}"
BY_SERVICE: Final = f"""
SELECT {_COLUMNS} FROM pushops.push_subscription
 WHERE push_service = %s AND id > (SELECT uuidv7(-'400 days'::interval + %s * '240 days'::interval)) AND {_LIVE}
 ORDER BY id LIMIT {READ_ROWS}"""


class Traffic:
    """A process of its own, so that its clients share no interpreter with anything that is measured."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.samples: list[Sample] = []

    def stop(self) -> None:
        """Let it end, and take what it measured."""
        out, _ = self._process.communicate("", timeout=60)
        self.samples = [tuple(each) for each in json.loads(out)]

    def between(self, start: float, end: float) -> list[Sample]:
        return [each for each in self.samples if start <= each[1] < end]


@contextmanager
def traffic(house: House, rows: int) -> Iterator[Traffic]:
    """Traffic for the length of the block or until it is stopped."""
    with begun([__name__, str(rows)], house.environment(log_level="error")) as process:
        yield Traffic(process)


@contextmanager
def begun(module: Sequence[str], environment: Mapping[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A module with its arguments as a process of its own, from its first line on; killed where nobody ended it."""
    command, pipe = [sys.executable, "-m", *module], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            wait_for(lambda: _first_line(process), 60, "live traffic to begin")
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _first_line(process: "subprocess.Popen[str]") -> str | None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"expected live traffic, got exit {process.wait()}")
    return line


def p99_ms(samples: Sequence[Sample], kinds: Sequence[str]) -> float:
    """Milliseconds that 99 in 100 stayed under."""
    found = sorted(seconds for kind, _, seconds in samples if kind in kinds)
    return found[min(len(found) - 1, int(len(found) * 0.99))] * 1000


class Client:
    """One client: its operations are due at even intervals whether or not the last one is done."""

    def __init__(self, ops: Ops, rows: int, seed: int) -> None:
        self._ops, self._rows, self._seed = ops, rows, seed
        self._random = random.Random(seed)
        self._keys = [base64url.encode(generate_vapid_key().public) for _ in range(20)]
        self._made = 0
        self.samples: list[Sample] = []

    def run(self, stop: threading.Event) -> None:
        verbs: list[tuple[Kind, Callable[[], object]]] = [
            ("upsert", self.upsert),
            ("by_user", self.by_user),
            ("by_service", self.by_service),
        ]
        started, n = time.monotonic() + self._seed / CLIENTS / PER_SECOND, 0
        while not stop.wait(max(0.0, started + n / PER_SECOND - time.monotonic())):
            kind, verb = verbs[n % len(verbs)]
            verb()
            due = started + n / PER_SECOND
            self.samples.append((kind, due, time.monotonic() - due))
            n += 1

    def upsert(self) -> None:
        """A browser that comes back, or, every other time, a new one."""
        self._made += 1
        token = f"new{self._seed}-{self._made}" if self._made % 2 else str(self._random.randrange(1, self._rows + 1))
        subscription = {
            "endpoint": _endpoint(token),
            "expirationTime": None,
            "keys": {"p256dh": self._random.choice(self._keys), "auth": base64url.encode(self._random.randbytes(16))},
        }
        self._ops.save_subscription(subscription, user_id=self._user(), origin="https://shop-1.example.org")

    def by_user(self) -> None:
        self._read(BY_USER, self._user())

    def by_service(self) -> None:
        self._read(BY_SERVICE, "fcm", self._random.random())

    def _user(self) -> str:
        return f"user-{self._random.randrange(self._rows // 3 + 1)}"

    def _read(self, query: str, *values: object) -> None:
        with self._ops.runtime.db.transaction() as tx:
            tx.conn.execute(query.encode(), values).fetchall()


def _endpoint(token: str) -> str:
    """As the layouts make them for row ``token``: rows of the other services are simply new under FCM's host."""
    first, second = (hashlib.sha256(f"{letter}{token}".encode()).hexdigest() for letter in "ab")
    return f"https://fcm.googleapis.com/fcm/send/{first}{second}"


def serve(rows: int, until: IO[str], out: IO[str]) -> None:
    """Make traffic until ``until`` ends."""
    stop = threading.Event()
    with pushops.open() as ops, ThreadPoolExecutor(CLIENTS) as threads:
        clients = [Client(ops, rows, seed) for seed in range(CLIENTS)]
        for client in clients:
            client.upsert()  # connected and warm
        print("started", file=out, flush=True)
        running = [threads.submit(client.run, stop) for client in clients]
        until.read()
        stop.set()
        for each in running:
            each.result()
    samples: list[Any] = [sample for client in clients for sample in client.samples]
    print(json.dumps(samples), file=out, flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.stdin, sys.stdout)
