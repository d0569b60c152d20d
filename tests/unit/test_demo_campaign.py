"""What the campaign's ending believes, and the shares of its push service."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pushops.demo.campaign.judging import CAMPAIGN, EARLY, LATE, Counted, Found, Kept, Planned, Rows, judge
from pushops.demo.campaign.mix import DAWN, DAY
from pushops.demo.campaign.store import Entry, Guard, Row


def rows(*names: str) -> Rows:
    return frozenset(name.encode() for name in names)


# Of twelve browsers a to f meet the campaign's day, g and h the outage's first minute, i the rest of it.
EVERYONE = rows(*"abcdefghijkl")
PLANNED = Planned(
    EVERYONE,
    day={
        "gone": rows("a"),
        "not_found": rows("b"),
        "too_large": rows("c"),
        "throttled": rows("d"),
        "unavailable": rows("e"),
        "reset": rows("f"),
    },
    dawn={"gone": rows("a", "g"), "not_found": rows("b", "h")},
    services=1,
)


def counted(ends: Mapping[str, str], requests: Mapping[str, int], accepted: Mapping[str, int], doubt: str) -> Counted:
    ledger = {
        name.encode(): Entry(name.encode(), outcome, ambiguous=int(name in doubt)) for name, outcome in ends.items()
    }
    return Counted(
        ledger,
        accepted={name.encode(): times for name, times in accepted.items()},
        requests={name.encode(): times for name, times in requests.items()},
        undecryptable=0,
    )


SENT: dict[str, str] = {"a": "gone", "b": "not_found", "c": "poison"} | dict.fromkeys("defghijkl", "accepted")
DAY_OF = counted(
    SENT,
    requests=dict.fromkeys(SENT, 1) | {"d": 2, "e": 2, "f": 2},
    accepted=dict.fromkeys("deghijkl", 1) | {"f": 2},
    doubt="f",
)
FIRST_MINUTE = counted({"g": "gone", "h": "not_found"}, {"g": 1, "h": 1}, {}, "")
REST = counted({"i": "gone", "j": "accepted"}, {"i": 1, "j": 1}, {"j": 1}, "")


def row(name: str, state: str = "active", votes: int = 0) -> Row:
    return Row(name.encode(), state, votes, live=state in ("active", "pending"))


TABLE = {one.endpoint_hash: one for one in [*map(row, "defghijkl"), row("c", "pending"), row("b", "pending", 1)]}
TABLE[b"a"] = row("a", "revoked")
GOOD = Found(
    messages={CAMPAIGN: DAY_OF, EARLY: FIRST_MINUTE, LATE: REST},
    before=EVERYONE - rows("a"),
    rows=TABLE,
    guards_of_the_day=0,
    took=Kept(ended=rows("g"), voted=rows("h")),
    gave=Kept(ended=rows("g"), voted=rows("h")),
    rejected=3,
    guards=[Guard("fcm", turned_back=True, verdict="rejected", settled=True)],
    pages=["guard.opened"],
)


def with_rows(*changed: Row) -> Found:
    return replace(GOOD, rows={**GOOD.rows, **{one.endpoint_hash: one for one in changed}})


def with_message(name: str, **changes: Any) -> Found:
    return replace(GOOD, messages={**GOOD.messages, name: replace(GOOD.messages[name], **changes)})


def with_end(name: str, recipient: str, outcome: str) -> Found:
    key = recipient.encode()
    return with_message(name, ledger={**GOOD.messages[name].ledger, key: Entry(key, outcome, 0)})


def test_a_day_that_accounts_for_everyone_is_ok() -> None:
    assert judge(PLANNED, GOOD).summary() == {
        "ok": True,
        "sent": 9,
        "revoked": 1,
        "votes": 1,
        "retried": 3,
        "ambiguous": 1,
        "doubled_by_resets": 1,
        "double_sends": 0,
        "guard_opened": 1,
        "given_back": 1,
        "pages": 1,
        "lost_to_outage": 0,
    }


def test_what_the_guard_took_back_of_the_rest_of_the_outage_is_no_fault() -> None:
    assert judge(PLANNED, replace(GOOD, gave=Kept(rows("g", "i"), rows("h")))).ok


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(with_end(CAMPAIGN, "a", "accepted"), id="a 410 counted as accepted"),
        pytest.param(with_end(CAMPAIGN, "j", "due"), id="a recipient has no end"),
        pytest.param(with_end(CAMPAIGN, "j", "exhausted"), id="a good recipient got nothing"),
        pytest.param(with_end(LATE, "j", "held"), id="a message that waited for the guard was lost"),
        pytest.param(with_message(CAMPAIGN, requests={**DAY_OF.requests, b"d": 1}), id="a 429 was not tried again"),
        pytest.param(
            with_message(CAMPAIGN, requests={**DAY_OF.requests, b"j": 2}), id="a retry that nothing asked for"
        ),
        pytest.param(
            with_message(CAMPAIGN, accepted={**DAY_OF.accepted, b"j": 2}), id="a message came twice without a doubt"
        ),
        pytest.param(
            with_message(CAMPAIGN, accepted={**DAY_OF.accepted, b"j": 0}), id="the push service knows nothing of one"
        ),
        pytest.param(
            with_message(LATE, accepted={**REST.accepted, b"i": 1}), id="the push service accepted what ended gone"
        ),
        pytest.param(with_message(LATE, undecryptable=1), id="a message cannot be decrypted"),
        pytest.param(replace(GOOD, guards_of_the_day=1), id="the campaign opened a guard"),
        pytest.param(replace(GOOD, took=Kept(rows(), rows("h"))), id="the first minute ended nobody"),
        pytest.param(replace(GOOD, took=Kept(rows("g", "j"), rows("h"))), id="the first minute ended another"),
        pytest.param(replace(GOOD, gave=Kept(rows(), rows("h"))), id="an end was not given back"),
        pytest.param(replace(GOOD, gave=Kept(rows("g"), rows("i"))), id="another's vote was given back"),
        pytest.param(replace(GOOD, guards=[]), id="no guard opened"),
        pytest.param(replace(GOOD, guards=[replace(GOOD.guards[0], settled=False)]), id="the guard is not settled"),
        pytest.param(replace(GOOD, guards=[replace(GOOD.guards[0], verdict="accepted")]), id="the guard was accepted"),
        pytest.param(replace(GOOD, rejected=1), id="less was rejected than had been given back"),
        pytest.param(replace(GOOD, pages=[]), id="nobody was paged"),
        pytest.param(replace(GOOD, pages=["guard.opened", "guard.opened"]), id="two pages for one guard"),
        pytest.param(replace(GOOD, pages=["guard.opened", "provider.unhealthy"]), id="a page for something else"),
        pytest.param(with_rows(row("g", "revoked")), id="a row was lost to the outage"),
        pytest.param(with_rows(row("a")), id="a row that was really gone lives"),
        pytest.param(with_rows(row("h", votes=1)), id="a vote of the outage stands"),
        pytest.param(with_rows(row("b", "pending")), id="a vote of the campaign is lost"),
        pytest.param(with_rows(row("b", "pending", 2)), id="a vote was counted twice"),
        pytest.param(with_rows(row("j", "pending")), id="a success did not activate its row"),
    ],
)
def test_a_day_with_one_thing_wrong_is_not_ok(found: Found) -> None:
    assert not judge(PLANNED, found).ok


@pytest.mark.parametrize("mix", [DAY, DAWN])
def test_shares_stay_far_below_what_a_guard_would_doubt(mix: Any) -> None:
    dead = sum(part.share for part in mix.parts if part.fate in ("gone", "not_found"))
    assert dead < 0.15
    assert len({part.fate for part in mix.parts}) == len(mix.parts)
