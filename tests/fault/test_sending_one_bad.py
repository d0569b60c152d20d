"""One visitor, one endpoint, one host at fault: it alone ends or waits, and everybody else gets the message."""

import hashlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest

from pushops.delivery import holds
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from pushops.subscriptions import service as subscriptions
from tests.outgoing import Outgoing, Pg, Recorded, age, ends, hurry, one_row, outgoing, pages, subscriptions_of
from tests.pushing import Sender

pytestmark = pytest.mark.long

OTHERS: Final = 40


@pytest.fixture
def out(settings: Settings, pushed_to: PushService, recorded: Recorded) -> Iterator[Outgoing]:
    sinks = (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    with outgoing(settings, pushed_to, sinks, read_timeout=timedelta(seconds=1), retry_attempts=3) as made:
        yield made


def went_out_to_the_others(out: Outgoing, pg: Pg, others: list[str], recorded: Recorded) -> None:
    """Each of them once; nobody was woken, nothing is held, no other row changed.

    What shared a connection with a request that broke it may have come twice: the ledger counts it.
    """
    unsure = dict(pg.execute("SELECT encode(endpoint_hash, 'hex'), ambiguous FROM pushops.push_dispatch").fetchall())
    for endpoint, times in zip(others, out.service.accepted(others), strict=True):
        assert 1 <= times <= 1 + unsure[hashlib.sha256(endpoint.encode()).hexdigest()]
    assert pages(recorded) == []
    assert holds.list_holds(out.rt) == []
    query = "SELECT count(*) FROM pushops.push_provider WHERE unhealthy_at IS NOT NULL OR guard_id IS NOT NULL"
    assert pg.execute(query).fetchone() == (0,)
    assert subscriptions_of(pg, "state", "send_block", "votes", endpoints=others) == {("active", None, 0): OTHERS}


@pytest.mark.parametrize("vendor", ["fcm", "mozilla", "apple", "wns"])
def test_a_foreign_key_blocks_its_own_row_and_its_next_contact_is_told_to_subscribe_again(
    out: Outgoing, pg: Pg, recorded: Recorded, vendor: str
) -> None:
    """The browser had subscribed with a key of before; its siblings' success says that ours is right (B17)."""
    others = out.register(pg, vendor, OTHERS)
    (made,) = out.service.issue(vendor, 1, Sender().public)  # bound to another key than the one we think
    subscriptions.save_subscription(out.rt, made)
    message = out.send()
    for _ in range(4):
        out.pump_all()
        hurry(pg)
    assert ends(pg, message) == {"accepted": OTHERS, "key_mismatch": 1}
    foreign = subscriptions_of(pg, "state", "send_block", "deleted_at IS NULL", endpoints=[made["endpoint"]])
    assert foreign == {("pending", "key_mismatch", True): 1}
    assert out.service.accepted([made["endpoint"]]) == [0]
    assert out.service.received([made["endpoint"]])[0] <= 2
    assert subscriptions.save_subscription(out.rt, made).advice == "resubscribe"
    went_out_to_the_others(out, pg, others, recorded)
    assert ends(pg, out.send()) == {"due": OTHERS}, "it is no recipient any more"


FORBIDDEN: Final = {"status": 403, "body": "no"}
# On HTTP/2 what ends a connection ends it for all who are on it: that is the push service's trouble, not one's.
ALONE: Final = {"http1": True}


@pytest.mark.parametrize(
    ("script", "outcome"),
    {
        "a 403 that nobody knows": ({"answer": FORBIDDEN}, "poison"),
        "a 401": ({"answer": {"status": 401}}, "poison"),
        "a 400 (B34)": ({"answer": {"status": 400, "body": "no"}}, "poison"),
        "a 413 (B29)": ({"answer": "*-413"}, "poison"),
        "a redirect (B09)": ({"answer": "redirect"}, "poison"),
        "a 500": ({"answer": "*-500"}, "poison"),
        "a 503": ({"answer": {"status": 503}}, "exhausted"),
        "no HTTP": ({"fault": "garbage"} | ALONE, "exhausted"),
        "hanging (B36)": ({"fault": "hang"}, "exhausted"),
        "dripping (B36)": ({"drip": 0.3, "answer": {"status": 503}}, "exhausted"),
        "ending its stream": ({"fault": "rst_stream"}, "exhausted"),
        "resetting": ({"fault": "reset"} | ALONE, "exhausted"),
        "closing half-way": ({"fault": "close", "at": "body"} | ALONE, "exhausted"),
        "cutting answers short": (
            {"fault": "truncate", "http1": True},
            "accepted",
        ),  # on HTTP/2 all on the connection end
    }.values(),
    ids=str,
)
def test_one_endpoint_s_trouble_is_its_own(
    out: Outgoing, pg: Pg, recorded: Recorded, script: dict[str, Any], outcome: str
) -> None:
    """Nothing is held, the push service goes on, and the row ends after its attempts at the latest."""
    others = out.register(pg, "fcm", OTHERS)
    (bad,) = out.register(pg, "fcm", 1)
    if script.get("http1"):
        out.service.script("version", handshake="http1")
    out.service.script("bad", endpoints=[bad], **{name: value for name, value in script.items() if name != "http1"})
    message = out.send()
    for _ in range(out.rt.settings.retry_attempts + 2):
        out.pump(timedelta(seconds=3))
        if not ends(pg, message)["due"]:
            break
        age(pg, "2 minutes")
        hurry(pg)
    row = one_row(pg, bad)
    assert row["outcome"] == outcome, row
    assert row["attempts"] <= out.rt.settings.retry_attempts
    assert subscriptions_of(pg, "votes", "send_block", "deleted_at IS NULL", endpoints=[bad]) == {(0, None, True): 1}
    went_out_to_the_others(out, pg, others, recorded)


@pytest.mark.parametrize("script", [{"fault": "hang"}, {"delay": 5.0}, {"fault": "reset"}, {"handshake": "stranger"}])
def test_one_hostile_host_keeps_no_other_of_its_push_service_from_being_sent_to(
    out: Outgoing, pg: Pg, script: dict[str, Any]
) -> None:
    """A host of Apple's own naming hangs; a handshake that is not Apple's holds that host and no other (B38)."""
    others = out.register(pg, "apple", OTHERS)
    made = out.service.issue("apple", 6, host="hostile.push.apple.com")
    for subscription in made:
        subscriptions.save_subscription(out.rt, subscription)
    out.service.script("hostile", host="hostile.push.apple.com", **script)
    message = out.send()
    out.pump(timedelta(seconds=3))
    found = ends(pg, message)
    assert found == {"accepted": OTHERS, "due": 6}
    assert out.service.accepted(others) == [1] * OTHERS
    held = [(hold.host, hold.members) for hold in holds.list_holds(out.rt)]
    assert held == ([("hostile.push.apple.com", 6)] if "handshake" in script else [])
    assert out.service.accepted(others) == [1] * OTHERS
    again = out.send()
    out.pump(timedelta(seconds=3))
    assert ends(pg, again)["accepted"] == OTHERS
    out.service.clear()
    hurry(pg)
    out.pump_all()
    hurry(pg)
    out.pump_all()
    assert ends(pg, message) == {"accepted": OTHERS + 6}


def test_one_endpoint_that_is_sent_many_messages_holds_nobody(out: Outgoing, pg: Pg, recorded: Recorded) -> None:
    """Five answers within five minutes are a hold's worth, but not where they are all about one browser."""
    others = out.register(pg, "fcm", OTHERS)
    out.send("proof", ttl=3600)
    out.pump_all()
    (bad,) = out.register(pg, "fcm", 1, user_id="bad")
    out.service.script("bad", endpoints=[bad], answer=FORBIDDEN)
    for number in range(8):
        out.send(f"message {number}", user="bad")
    out.pump_all()
    hurry(pg)
    out.pump_all()
    went_out_to_the_others(out, pg, others, recorded)
