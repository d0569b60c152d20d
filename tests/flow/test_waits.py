"""What waits does so in PostgreSQL, for as long as it was told, costs nobody anything, and ends by name."""

import json
import resource
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Final

import pytest

from pushops.delivery import finishing, pump
from pushops.delivery.store import lanes
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.sweeps.sql import PLAN_INDEX
from tests import ledger
from tests.outgoing import Outgoing, Pg, age, ends, hurry, one_row, outgoing, rows_of

pytestmark = pytest.mark.long

HOUR: Final = 3600.0
JITTER: Final = 1.21


@pytest.fixture
def out(settings: Settings, pushed_to: PushService) -> Iterator[Outgoing]:
    with outgoing(settings, pushed_to) as made:
        yield made


def queue_many(pg: Pg, count: int, lane: int, wait: str) -> None:
    """Ledger rows of nobody: they are looked at, not sent."""
    message = ledger.message(pg)
    pg.execute(
        "INSERT INTO pushops.push_dispatch (message_id, endpoint_hash, subscription_id, owner_no, lane_id, priority,"
        " next_attempt_at, expires_at, attempts, wait)"
        " SELECT %s, sha256(int8send(n)), gen_random_uuid(), 1, %s, n %% 4,"
        " now() + %s::interval, now() + interval '1 day', 1, 'retry' FROM generate_series(1, %s) AS n",
        [message, lane, wait, count],
    )


def buffers(out: Outgoing, query: str) -> int:
    """Pages that a query reads."""
    with out.rt.db.transaction(planner=PLAN_INDEX) as tx:
        explained = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.format(schema=tx.schema)
        plan = tx.conn.execute(explained.encode()).fetchone()
    assert plan is not None
    found = plan[0] if isinstance(plan[0], list) else json.loads(plan[0])
    return int(found[0]["Plan"]["Shared Hit Blocks"] + found[0]["Plan"]["Shared Read Blocks"])


def test_a_hundred_thousand_that_are_due_in_an_hour_cost_nothing_until_then(out: Outgoing, pg: Pg) -> None:
    """No message in the broker, no memory in the worker, a look of a few pages; who is due goes out past them (D01)."""
    (endpoint,) = out.register(pg, "fcm", 1)
    for host in ("fcm.googleapis.com", "jmt17.google.com"):
        queue_many(pg, 50_000, ledger.lane(pg, host), "1 hour")
    assert buffers(out, lanes.LANES) < 120
    out.pump()
    rung: list[int] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(30):
        done = pump.pump(out.rt, out.tools, on_full=lambda: rung.append(1))
        assert (done.outcome, done.rows, done.more) == ("nothing_due", 0, False)
    message = out.send()
    assert out.pump_all() == 1
    assert ends(pg, message) == {"accepted": 1}
    assert out.service.accepted([endpoint]) == [1]
    assert rung == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8192, "kilobytes"


def in_ten_minutes() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(minutes=10), usegmt=True)


# What Retry-After says, and from when to when the next attempt is; None: as if nothing had been said.
SAID: Final[dict[str, tuple[Any, tuple[float, float] | None]]] = {
    "an hour": ("3600", (HOUR, HOUR * JITTER)),
    "to the second (B25)": ("117", (117, 117 * JITTER)),
    "a date": (in_ten_minutes, (590, 600 * JITTER)),
    "a date that is past": ("Wed, 21 Oct 2015 07:28:00 GMT", (10, 10 * JITTER)),
    "a year": ("31536000", (HOUR, HOUR * JITTER)),
    "a date in a year": ("Wed, 21 Oct 2099 07:28:00 GMT", (HOUR, HOUR * JITTER)),
    "spaces": (" 120 ", (120, 120 * JITTER)),
    "a fraction": ("12.5", (13, 13 * JITTER)),
    "negative": ("-5", (10, 10 * JITTER)),
    "nothing at all": ("0", (10, 10 * JITTER)),
    "two headers": (["60", "90"], (90, 90 * JITTER)),
    "garbage": ("soon", None),
    "empty": ("", None),
}


def waits_from(row: dict[str, Any], before: datetime, after: datetime, least: float, most: float) -> tuple[Any, ...]:
    """What a row waits for, at which cost, and whether until a time within these seconds of its attempt."""
    in_time = before + timedelta(seconds=least) <= row["next_attempt_at"] <= after + timedelta(seconds=most)
    return row["state"], row["wait"], row["attempts"], in_time


def test_a_retry_after_in_any_form_is_obeyed_within_bounds(out: Outgoing, pg: Pg) -> None:
    """To the second, with jitter upward only; a 429 costs no attempt (B26)."""
    throttled, busy = out.register(pg, "fcm", len(SAID)), out.register(pg, "mozilla", len(SAID))
    for (name, (said, _)), *pair in zip(SAID.items(), throttled, busy, strict=True):
        headers = {"Retry-After": said() if callable(said) else said}
        for status, endpoint in zip((429, 503), pair, strict=True):
            answer = {"status": status, "headers": headers}
            out.service.script(f"{status} {name}", endpoints=[endpoint], answer=answer)
    out.send()
    before = pg.execute("SELECT now()").fetchall()[0][0]
    assert out.pump_all() == 2 * len(SAID)
    after = pg.execute("SELECT now()").fetchall()[0][0]
    for (name, (_, waits)), one, other in zip(SAID.items(), throttled, busy, strict=True):
        least, most = waits or (60, 60 * JITTER)
        assert waits_from(one_row(pg, one), before, after, least, most) == ("due", "throttled", 0, True), name
        least, most = waits or (24, 36)
        found = waits_from(one_row(pg, other), before, after, max(least, 24), max(most, 36))
        assert found == ("due", "retry", 1, True), name


def test_an_endpoint_that_is_throttled_gets_none_of_its_other_messages(out: Outgoing, pg: Pg) -> None:
    one, *others = out.register(pg, "fcm", 10)
    out.service.script("busy", endpoints=[one], answer={"status": 429, "headers": {"Retry-After": "600"}}, times=1)
    first = out.send("first")
    assert out.pump_all() == 10
    second = out.send("second")
    assert out.pump_all() == 9
    assert ends(pg, second) == {"accepted": 9, "due": 1}
    waiting = pg.execute(
        "SELECT message_id, wait, attempts, next_attempt_at - now() > interval '9 minutes' FROM pushops.push_dispatch"
        " WHERE state = 'due' ORDER BY message_id"
    ).fetchall()
    assert waiting == [(first, "throttled", 0, True), (second, "throttled", 0, True)]
    hurry(pg)
    out.pump_all()
    assert out.service.accepted([one, *others]) == [2] * 10


def factor(pg: Pg) -> float:
    return float(pg.execute("SELECT factor FROM pushops.push_rate").fetchall()[0][0])


@pytest.mark.parametrize(("vendor", "answer"), [("fcm", "fcm-429"), ("wns", "wns-406")])
def test_a_push_service_that_throttles_many_is_sent_to_at_half_the_pace_until_it_no_longer_does(
    out: Outgoing, pg: Pg, vendor: str, answer: str
) -> None:
    """A throttled few change nothing; throttled attempts are unspent, however often (B22, B25)."""
    out.register(pg, vendor, 50)
    out.service.script("few", answer=answer, times=2)
    message = out.send()
    out.pump_all()
    assert (factor(pg), ends(pg, message)) == (1.0, {"accepted": 48, "due": 2})
    out.service.script("all", answer=answer)
    message = out.send()
    for paces in (0.5, 0.25):
        out.pump_all()
        assert factor(pg) == paces
        age(pg, "5 seconds")
        hurry(pg)
    assert rows_of(pg, message, "state", "wait", "attempts") == {("due", "throttled", 0): 50}
    out.service.clear()
    out.pump_all()
    assert ends(pg, message) == {"accepted": 50}
    for _ in range(8):
        age(pg, "11 seconds")
        out.send()
        out.pump_all()
    assert factor(pg) == 1.0


def test_a_rate_is_kept_and_what_it_holds_back_is_waited_for(
    settings: Settings, pushed_to: PushService, pg: Pg
) -> None:
    """A shift does not end because the bucket is empty for a moment: the pace would be a fifth of what was asked."""
    with outgoing(settings, pushed_to, provider_rate=20.0) as out:
        out.register(pg, "fcm", 200)
        message = out.send()
        began = time.monotonic()
        done = out.pump(timedelta(seconds=2))
        lasted = time.monotonic() - began
        assert 45 <= done.rows <= 20 + 20 * lasted
        assert done.more
        assert rows_of(pg, message, "state") == {"ended": done.rows, "due": 200 - done.rows}


ENDS: Final = {
    "throttled": ({"status": 429, "headers": {"Retry-After": "3600"}}, "throttled", 0),
    "busy": ({"status": 503, "headers": {"Retry-After": "3600"}}, "exhausted", 1),
    "failing": ("fcm-500", "exhausted", 1),
    "refused": ({"status": 403}, "exhausted", 1),
}


@pytest.mark.parametrize(("answer", "outcome", "attempts"), ENDS.values(), ids=ENDS.keys())
def test_what_would_wait_beyond_its_end_ends_at_once_by_name(
    out: Outgoing, pg: Pg, answer: Any, outcome: str, attempts: int
) -> None:
    (endpoint,) = out.register(pg, "fcm", 1)
    out.service.script("no", answer=answer)
    message = out.send(ttl=20)
    out.pump_all()
    assert ends(pg, message) == {outcome: 1}
    assert one_row(pg, endpoint)["attempts"] in (attempts, 1)


def test_what_expires_while_it_waits_is_named_by_what_it_waited_for(out: Outgoing, pg: Pg) -> None:
    """Found by the next look at the message, whether or not anybody would have sent it."""
    throttled, held, failing, idle = (out.register(pg, vendor, 30) for vendor in ("fcm", "mozilla", "apple", "wns"))
    out.service.script("429", host="fcm.googleapis.com", answer={"status": 429})
    out.service.script("403", host="updates.push.services.mozilla.com", answer={"status": 403})
    out.service.script("500", host="web.push.apple.com", answer="apple-500")
    message = out.send()
    pg.execute(
        "UPDATE pushops.push_dispatch SET next_attempt_at = now() + interval '1 hour' WHERE lane_id ="
        " (SELECT lane_id FROM pushops.push_lane WHERE push_service = 'wns')"
    )
    out.pump_all()
    assert ends(pg, message) == {"due": 120}
    pg.execute("UPDATE pushops.push_dispatch SET expires_at = now()")
    ledger.age_freely(pg)
    pg.execute("UPDATE pushops.push_message SET expires_at = now(), look_at = now()")
    out.service.clear()
    before = out.service.counts()["received"]
    finishing.finish(out.rt)
    assert ends(pg, message) == {"throttled": 30, "held": 60, "expired": 30}
    assert rows_of(pg, message, "attempts") == {0: 120}
    hurry(pg)
    out.pump_all()
    assert out.service.counts()["received"] == before
    assert {one_row(pg, ends_at[0])["outcome"] for ends_at in (throttled, held, failing, idle)} == {
        "throttled",
        "held",
        "expired",
    }
