"""Keys roll under load: all is sealed anew while people register and are sent to, with workers killed in the middle."""

import itertools
import os
import random
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest

from pushops.rolling import seal
from pushops.rolling.resealing import NAME
from pushops.runtime import Runtime, open_runtime
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import base64url, service
from pushops.subscriptions.keychain import AUTH, keychain
from tests.browser import encode, subscribe
from tests.keyrolls import add_sealed, ring_of, unreadable, versions, with_keys
from tests.outgoing import ends, outgoing
from tests.sweeping import (
    TENDING,
    Process,
    assert_every_batch_has_one_receipt,
    closed,
    count,
    open_runs,
    publishing,
    quick,
    run_of,
    state_of,
    tend,
    wait_until,
    workers,
)
from tests.unsettled import sending

pytestmark = pytest.mark.long

Pg = psycopg.Connection[Any]
ROWS: Final = int(os.environ.get("RESEAL_ROWS", "200000"))
REACHABLE: Final = 200
KILL_AT: Final = (0.25, 0.6)  # of the rows
DONE: Final = "SELECT coalesce(sum(rows_done), 0) FROM sweep_receipt"
IN_HAND: Final = "SELECT count(*) FROM sweep_batch WHERE state = 'claimed'"
SAMPLE: Final = """
SELECT endpoint_hash, auth_key_version, auth_sealed FROM pushops.push_subscription TABLESAMPLE SYSTEM (1)
 WHERE scrubbed_at IS NULL"""


@pytest.fixture
def behind(settings: Settings, pushed_to: PushService, valkey_url: str) -> Settings:
    """Settings of a process that holds the new key and still seals with the old one."""
    limits = {"statement_timeout": timedelta(seconds=5), "sweep_lease": timedelta(seconds=10)}
    found = quick(sending(settings, pushed_to, valkey_url), sweep_batch_rows=1000, **limits)
    return with_keys(found, 1, 2, current=1)


@pytest.fixture
def ahead(behind: Settings) -> Settings:
    return behind.model_copy(update={"seal_key_version": 2})


@dataclass
class Traffic:
    """What goes on beside the roll, until ``over``; every secret that was registered meanwhile, by its endpoint."""

    ahead: Settings
    behind: Settings
    push: PushService
    over: threading.Event = field(default_factory=threading.Event)
    registered: dict[str, str] = field(default_factory=dict)
    sent: list[Any] = field(default_factory=list)
    looked_at: int = 0
    unreadable: int = 0

    def register(self, known: list[str], browsers: list[dict[str, Any]]) -> None:
        """Known endpoints with new secrets, new ones, and browsers that repeat themselves; by new and old settings."""
        with opened(self.ahead) as new, opened(self.behind) as old:
            for rt in itertools.cycle((new, old)):
                if self.over.is_set():
                    return
                for subscription in (subscribe(random.choice(known)), subscribe(), random.choice(browsers)):
                    service.save_subscription(rt, subscription, tags=subscription.get("tags"))
                    self.registered[subscription["endpoint"]] = subscription["keys"]["auth"]

    def send(self) -> None:
        with outgoing(self.ahead, self.push) as out:
            while not self.over.is_set():
                self.sent.append(out.send(secrets.token_hex(4), tags=["there"]))
                out.pump_all()

    def look(self) -> None:
        """What a sender would read at this moment, of one row in a hundred."""
        with opened(self.ahead) as rt:
            ring = ring_of(rt)
            while not self.over.wait(0.05):
                with rt.db.borrowed() as conn:
                    found = conn.execute(SAMPLE).fetchall()
                self.looked_at += len(found)
                self.unreadable += sum(not opens(ring, *row) for row in found)


def opens(ring: Any, digest: bytes, version: int, sealed: bytes) -> bool:
    try:
        return len(ring.open(AUTH, digest, version, sealed)) == 16
    except Exception:  # noqa: BLE001  (whatever it is, the row cannot be read)
        return False


@contextmanager
def opened(settings: Settings) -> Iterator[Runtime]:
    rt = open_runtime(settings)
    try:
        yield rt
    finally:
        rt.close()


@contextmanager
def beside(traffic: Traffic, *work: Callable[[], None]) -> Iterator[None]:
    """The traffic goes on while the body runs; what fails in it fails the test."""
    with ThreadPoolExecutor(len(work)) as pool:
        running: list[Future[None]] = [pool.submit(one) for one in work]
        try:
            yield
        finally:
            traffic.over.set()
        for one in running:
            one.result(timeout=60)


@pytest.mark.timeout(600)
def test_two_hundred_thousand_rows_are_sealed_anew_under_load_and_two_kills_and_none_is_ever_unreadable(
    ahead: Settings, behind: Settings, pg: Pg, pushed_to: PushService
) -> None:
    """A10, A11; and registrations meanwhile win, whichever version sealed them."""
    traffic = Traffic(ahead, behind, pushed_to)
    with opened(behind) as rt:
        public = next(iter(keychain(rt.settings).vapid.values())).public
        browsers = [{**one, "tags": ["there"]} for one in pushed_to.issue("fcm", REACHABLE, encode(public))]
        for browser in browsers:
            service.save_subscription(rt, browser, tags=["there"])
        add_sealed(pg, ring_of(rt), ROWS)
    pg.execute("ANALYZE push_subscription")
    known = [row[0] for row in pg.execute("SELECT endpoint FROM push_subscription TABLESAMPLE BERNOULLI (2)")]
    known = [endpoint for endpoint in known if endpoint not in {browser["endpoint"] for browser in browsers}]
    in_hand = []
    with (
        publishing(ahead),
        opened(ahead) as rt,
        beside(traffic, lambda: traffic.register(known, browsers), traffic.send, traffic.look),
    ):
        from pushops import tasks

        (found,) = seal.roll(rt, tasks.bell(rt), actor="test")
        run = run_of(found)
        for share in KILL_AT:
            with workers(ahead, 2) as crew:
                tend_until(rt, lambda share=share: count(pg, DONE) >= share * ROWS, crew)
                crew.kill()
            in_hand.append(count(pg, IN_HAND))
            assert versions(pg)[1] > 0
        with workers(ahead, 2) as crew:
            tend_until(rt, lambda: closed(pg, run), crew)
    assert sum(in_hand) > 0, "a worker was killed in the middle of a page"
    assert state_of(pg, run) == ("done", None)
    assert_every_batch_has_one_receipt(pg, run)
    assert (traffic.unreadable, traffic.looked_at > ROWS / 10) == (0, True)
    with opened(ahead) as rt:
        roll_the_rest(rt, pg)
        assert versions(pg) == {2: count(pg, "SELECT count(*) FROM push_subscription")}
        assert unreadable(pg, ring_of(rt)) == 0
        assert_secrets(pg, rt, traffic.registered)
    assert [ends(pg, message) for message in traffic.sent] == [{"accepted": REACHABLE}] * len(traffic.sent)
    assert (len(traffic.sent) > 3, len(traffic.registered) > 100) == (True, True)
    assert pushed_to.counts().get("undecryptable", 0) == 0
    print(f"{traffic.looked_at:,} looks, {len(traffic.sent)} messages, {len(traffic.registered):,} registered")  # noqa: T201


def tend_until(rt: Runtime, condition: Callable[[], bool], crew: Process) -> None:
    """Tend as beat does, until the condition holds."""

    def done() -> bool:
        tend(rt)
        return condition()

    wait_until(done, 240, crew.tail, poll=TENDING)


def roll_the_rest(rt: Runtime, pg: Pg) -> None:
    """What the old settings registered behind the run's cursor, as beat's hourly tick has it rolled."""
    from pushops import tasks

    with publishing(rt.settings), workers(rt.settings, 1) as crew:
        tasks.reseal_auth.delay()
        wait_until(lambda: not versions(pg)[1] and not open_runs(pg), 60, crew.tail)
    assert count(pg, f"SELECT count(*) FROM sweep_quarantine WHERE sweep = '{NAME}'") == 0


def assert_secrets(pg: Pg, rt: Runtime, registered: dict[str, str]) -> None:
    """The secret of every row is the one that came last: from its browser, or from the beginning."""
    ring = ring_of(rt)
    query = "SELECT endpoint, endpoint_hash, auth_key_version, auth_sealed FROM push_subscription WHERE tags = '{}'"
    wrong = [
        endpoint
        for endpoint, digest, version, blob in pg.execute(query)
        if base64url.encode(ring.open(AUTH, digest, version, blob))
        != registered.get(endpoint, base64url.encode(digest[:16]))
    ]
    assert not wrong
