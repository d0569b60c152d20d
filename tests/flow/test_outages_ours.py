"""What is nobody's death: names that do not resolve, broken TLS, the wrong key, a wrong clock. Nothing is believed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import pytest
from pydantic import SecretStr

from pushops.delivery import holds
from pushops.delivery.vapid import Tokens
from pushops.sandbox.push import PushService
from pushops.sandbox.push.vendors import HOST_PATTERNS
from pushops.settings import Settings
from tests.made import random_key
from tests.outgoing import Outgoing, Pg, Recorded, ends, hurry, outgoing, pages, rows_of, subscriptions_of

VENDORS: Final = ("apple", "fcm", "mozilla", "wns")
EACH: Final = 30
STANDING: Final = ("state", "votes", "deleted_at IS NULL", "send_block", "blocked_at")
NOTHING_HAPPENED: Final = {("active", 0, True, None, None): EACH * len(VENDORS)}

Opened = Callable[..., AbstractContextManager[Outgoing]]


@pytest.fixture
def opened(settings: Settings, pushed_to: PushService, recorded: Recorded) -> Opened:
    """A sender with its settings changed, as one that was started anew with them."""
    sinks = (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    return partial(outgoing, settings, pushed_to, sinks)


@pytest.fixture
def people(opened: Opened, pg: Pg) -> list[str]:
    """Thirty browsers of each vendor."""
    with opened() as out:
        return [endpoint for vendor in VENDORS for endpoint in out.register(pg, vendor, EACH)]


@contextmanager
def clock(off: timedelta) -> Iterator[None]:
    """The database's clock, as tokens see it."""
    header = Tokens.header

    def wrong(self: Tokens, key_id: str, origin: str, now: datetime) -> str:
        return header(self, key_id, origin, now + off)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokens, "header", wrong)
        yield


@dataclass(frozen=True)
class Trouble:
    """``settings``: what the sender starts with; ``script``: of the push service; ``during``: around the sending.

    ``codes``: of the pages, by vendor. ``ours``: the fault is one, so that lanes are held.
    """

    codes: tuple[str, str, str, str]
    settings: dict[str, Any] | None = None
    script: dict[str, Any] | None = None
    off: timedelta | None = None
    ours: bool = True

    @property
    def during(self) -> AbstractContextManager[None]:
        return clock(self.off) if self.off else nullcontext()

    @property
    def pages(self) -> list[tuple[str, str, str]]:
        event = "hold.opened" if self.ours else "provider.unhealthy"
        return [(event, vendor, code) for vendor, code in zip(VENDORS, self.codes, strict=True)]


NOWHERE: Final = dict.fromkeys(HOST_PATTERNS, "nowhere.invalid:443")
REFUSED: Final = dict.fromkeys(HOST_PATTERNS, "127.0.0.1:1")
CLOCK: Final = ("vapid_jwt", "vapid_auth", "vapid_auth", "vapid_auth")
TROUBLES: Final = {
    "names do not resolve (B01)": Trouble(("dns",) * 4, {"connect_to": NOWHERE}, ours=False),
    "connections are refused": Trouble(("connect",) * 4, {"connect_to": REFUSED}, ours=False),
    "handshakes are reset": Trouble(("connect",) * 4, script={"handshake": "reset"}, ours=False),
    "certificates of a stranger": Trouble(("tls",) * 4, script={"handshake": "stranger"}),
    "certificates that expired": Trouble(("tls",) * 4, script={"handshake": "expired"}),
    "certificates of others": Trouble(("tls",) * 4, script={"handshake": "wrong_name"}),
    "another key under the same id (B17)": Trouble(
        ("key_mismatch",) * 4, {"vapid_keys": {"test": SecretStr(random_key())}}
    ),
    "a clock a day behind (B13)": Trouble(CLOCK, off=timedelta(days=-1)),
    "a clock a day ahead (B13)": Trouble(CLOCK, off=timedelta(days=1)),
}


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES.keys())
def test_a_trouble_of_ours_or_the_network_s_touches_no_subscription_and_costs_no_attempt(
    opened: Opened, people: list[str], pg: Pg, recorded: Recorded, trouble: Trouble
) -> None:
    """One page for each push service; the messages wait, and go out once a probe finds it mended."""
    with opened(**trouble.settings or {}) as out, trouble.during:
        if trouble.script:
            out.service.script("trouble", **trouble.script)
        message = out.send(campaign="c")
        out.pump_all()
        for _ in range(3):
            hurry(pg)
            assert out.pump().rows == len(VENDORS), "a probe for each push service"
    assert subscriptions_of(pg, *STANDING) == NOTHING_HAPPENED
    assert rows_of(pg, message, "state", "attempts") == {("due", 0): len(people)}
    assert rows_of(pg, message, "wait").keys() <= {"held", "resign"}, "a token that was refused is made anew at once"
    assert sorted(pages(recorded)) == trouble.pages
    with opened() as out:
        out.service.clear()
        held = holds.list_holds(out.rt)
        assert sorted((hold.push_service, hold.code, hold.members) for hold in held) == [
            (vendor, code, EACH) for vendor, code in zip(VENDORS, trouble.codes, strict=True) if trouble.ours
        ]
        hurry(pg)
        out.pump_all()
        hurry(pg)
        out.pump_all()
        assert holds.list_holds(out.rt) == []
        assert out.service.accepted(people) == [1] * len(people)
    assert ends(pg, message) == {"accepted": len(people)}
    assert rows_of(pg, message, "attempts") == {1: len(people)}
    assert len(pages(recorded)) == len(VENDORS)
    assert subscriptions_of(pg, *STANDING) == NOTHING_HAPPENED


@pytest.mark.parametrize(
    ("script", "count", "wait"),
    {
        "our CA file": ({"handshake": "stranger"}, 3, "retry"),
        "a 403 that nobody knows (B16)": ({"answer": {"status": 403, "body": "no"}}, 3, "retry"),
        "a push service that fails": ({"answer": "*-500"}, 15, "retry"),
        "a push service that hangs up": ({"fault": "reset", "at": "end"}, 15, "ambiguous"),
    }.values(),
    ids=str,
)
def test_attempts_that_were_spent_on_the_way_into_a_trouble_are_given_back(
    opened: Opened, pg: Pg, script: dict[str, Any], count: int, wait: str
) -> None:
    """A few answers say nothing and cost an attempt each; more of them say whose fault they all were."""
    with opened() as out:
        out.register(pg, "fcm", count)
        out.service.script("trouble", **script)
        message = out.send()
        pg.execute("UPDATE pushops.push_dispatch SET attempts = 4")
        out.pump_all()
        assert rows_of(pg, message, "state", "wait", "attempts") == {("due", wait, 5): count}
        for _ in range(2):
            hurry(pg)
            out.pump_all()
            assert rows_of(pg, message, "state", "wait", "attempts") == {("due", "held", 4): count}


def test_those_who_wait_when_a_trouble_is_found_get_back_what_it_cost_them(opened: Opened, pg: Pg) -> None:
    """They are in nobody's hands: the answers of others say whose fault theirs were."""
    with opened() as out:
        out.register(pg, "fcm", 3, user_id="first")
        out.register(pg, "fcm", 10, user_id="second")
        out.service.script("trouble", handshake="stranger")
        early = out.send(user="first")
        pg.execute("UPDATE pushops.push_dispatch SET attempts = 4")
        out.pump_all()
        assert rows_of(pg, early, "state", "wait", "attempts") == {("due", "retry", 5): 3}
        out.send(user="second")
        out.pump_all()
        assert rows_of(pg, early, "state", "wait", "attempts") == {("due", "held", 4): 3}


def test_blocks_of_a_key_that_turns_out_to_be_ours_are_lifted_and_their_messages_go_out(
    opened: Opened, pg: Pg, recorded: Recorded
) -> None:
    """While a sibling's success is fresh the first mismatches look like visitors' own; the hold takes that back."""
    with opened() as out:
        proven, first, rest = (out.register(pg, "fcm", count, user_id=f"u{count}") for count in (1, 3, 20))
        out.send(user="u1")
        assert out.pump_all() == 1
    with opened(vapid_keys={"test": SecretStr(random_key())}) as out:
        early = out.send(user="u3")
        out.pump_all()
        assert subscriptions_of(pg, "send_block", endpoints=first) == {"key_mismatch": 3}
        assert ends(pg, early) == {"key_mismatch": 3}
        late = out.send(user="u20")
        out.pump_all()
    assert subscriptions_of(pg, "send_block", "blocked_at") == {(None, None): 24}
    assert rows_of(pg, late, "state", "wait", "attempts") == {("due", "held", 0): 20}
    assert rows_of(pg, early, "state", "wait", "attempts") == {("due", "held", 0): 3}
    with opened() as out:
        for _ in range(2):
            hurry(pg)
            out.pump_all()
        assert out.service.accepted([*proven, *first, *rest]) == [1] * 24
    assert pages(recorded) == [("hold.opened", "fcm", "key_mismatch")]


def test_a_probe_is_not_spent_on_rows_that_nobody_may_be_sent(opened: Opened, pg: Pg) -> None:
    """Whoever left meanwhile stands in front of the queue; a hold would outlive its cause by half a minute for each."""
    with opened() as out:
        out.register(pg, "fcm", 10, user_id="one")
        out.service.script("trouble", handshake="stranger")
        message = out.send()
        out.pump_all()
        assert ends(pg, message) == {"due": 10}
        pg.execute(
            "UPDATE pushops.push_subscription SET user_id = 'two' WHERE endpoint_hash <>"
            " (SELECT endpoint_hash FROM pushops.push_dispatch ORDER BY next_attempt_at DESC LIMIT 1)"
        )
        out.service.clear()
        hurry(pg)
        out.pump_all()
        assert ends(pg, message) == {"owner_changed": 9, "accepted": 1}
        assert holds.list_holds(out.rt) == []


def test_what_expires_behind_a_hold_is_named_by_it(opened: Opened, pg: Pg) -> None:
    with opened() as out:
        out.register(pg, "fcm", 10)
        out.service.script("trouble", handshake="stranger")
        out.send()
        out.pump_all()
        late = out.send()
        pg.execute("UPDATE pushops.push_dispatch SET expires_at = now()")
        hurry(pg)
        out.pump_all()
        assert ends(pg, late) == {"held": 10}
