"""The end of the campaign: ledger, table and the push service's own counts against what the scripts' hash decided."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pushops.demo.campaign.store import Entry, Guard, Row
from pushops.demo.report import Check, Number, Verdict

Rows = frozenset[bytes]


@dataclass(frozen=True)
class Planned:
    """Rows by endpoint hash: everyone, and whom the campaign's day and the outage's first minute meet with what."""

    everyone: Rows
    day: Mapping[str, Rows]
    dawn: Mapping[str, Rows]
    services: int

    @property
    def taken(self) -> Rows:
        """Whom the outage's first minute ends: only who was alive until then."""
        return self.dawn["gone"] - self.day["gone"]

    @property
    def voted(self) -> Rows:
        """Whom it votes against: not again who had a vote within the last hours."""
        return self.dawn["not_found"] - self.day["gone"] - self.day["not_found"]


@dataclass(frozen=True)
class Counted:
    """A message: its ledger, and by row how often the push service accepted it and how many requests it read."""

    ledger: Mapping[bytes, Entry]
    accepted: Mapping[bytes, int]
    requests: Mapping[bytes, int]
    undecryptable: int

    def ended(self, outcome: str) -> Rows:
        return frozenset(key for key, entry in self.ledger.items() if entry.outcome == outcome)

    @property
    def ambiguous(self) -> Rows:
        return frozenset(key for key, entry in self.ledger.items() if entry.ambiguous)

    @property
    def doubled(self) -> Rows:
        return frozenset(key for key, times in self.accepted.items() if times > 1)

    @property
    def retried(self) -> Rows:
        return frozenset(key for key, times in self.requests.items() if times > 1)

    @property
    def disputed(self) -> Rows:
        """Rows of which ledger and push service say different things, ambiguous ones left out where more came."""
        told = self.ended("accepted")
        came = frozenset(key for key, times in self.accepted.items() if times)
        return (told - came) | (came - told - self.ambiguous)

    @property
    def lost_answers(self) -> int:
        return sum(entry.ambiguous for entry in self.ledger.values())

    @property
    def open(self) -> Rows:
        return self.ended("due") | self.ended("claimed") | self.ended("paused")


@dataclass(frozen=True)
class Kept:
    """Evidence of the outage, by what it did: rows ended and rows voted against."""

    ended: Rows
    voted: Rows


@dataclass(frozen=True)
class Found:
    """What was seen: ``before``: who was live ahead of the outage; ``guards_of_the_day``: how many the campaign opened;
    ``took``: what the outage's first minute did; ``gave``: what of it the guard took back; ``rejected``: answers that
    the operator discarded.
    """

    messages: Mapping[str, Counted]
    before: Rows
    rows: Mapping[bytes, Row]
    guards_of_the_day: int
    took: Kept
    gave: Kept
    rejected: int
    guards: Sequence[Guard]
    pages: Sequence[str]

    @property
    def live(self) -> Rows:
        return frozenset(key for key, row in self.rows.items() if row.live)

    @property
    def lost(self) -> Rows:
        return self.before - self.live


CAMPAIGN: Final = "campaign"
EARLY: Final = "early"
LATE: Final = "late"


def judge(planned: Planned, found: Found) -> Verdict:
    """Every recipient of every message, and every row, is accounted for."""
    checks = [
        *_checks_of_campaign(planned, found.messages[CAMPAIGN]),
        *_checks_of_copies(found.messages.values()),
        *_checks_of_outage(planned, found),
        *_checks_of_rows(planned, found),
    ]
    return Verdict(checks, _numbers(found))


def _numbers(found: Found) -> dict[str, Number]:
    campaign, messages = found.messages[CAMPAIGN], found.messages.values()
    return {
        "sent": len(campaign.ended("accepted")),
        "revoked": sum(row.state == "revoked" for row in found.rows.values()),
        "votes": sum(row.votes for row in found.rows.values()),
        "retried": len(campaign.retried),
        "ambiguous": sum(len(one.ambiguous) for one in messages),
        "doubled_by_resets": sum(len(one.doubled) for one in messages),
        "double_sends": sum(map(_unexcused, messages)),
        "guard_opened": len(found.guards),
        "given_back": len(found.gave.ended),
        "pages": len(found.pages),
        "lost_to_outage": len(found.lost),
    }


def _checks_of_campaign(planned: Planned, campaign: Counted) -> list[Check]:
    day = planned.day
    others = planned.everyone - day["gone"] - day["not_found"] - day["too_large"]
    asked = day["throttled"] | day["unavailable"]
    return [
        Check("campaign: recipients", len(planned.everyone), len(campaign.ledger)),
        same("campaign: accepted", others, campaign.ended("accepted")),
        same("campaign: 410, ended gone", day["gone"], campaign.ended("gone")),
        same("campaign: 404, ended not found", day["not_found"], campaign.ended("not_found")),
        same("campaign: 413, ended as poison", day["too_large"], campaign.ended("poison")),
        same("campaign: 429 and 503, tried again", asked, asked & campaign.retried),
        Check("campaign: tried again for nothing", 0, len(campaign.retried - asked - campaign.ambiguous)),
        Check("campaign: answers lost to resets", len(day["reset"]), campaign.lost_answers, at_least=True),
    ]


def _checks_of_copies(messages: Iterable[Counted]) -> list[Check]:
    every = list(messages)
    return [
        Check("accepted twice, and not in doubt", 0, sum(map(_unexcused, every))),
        Check("ledger and push service disagree", 0, sum(len(one.disputed) for one in every)),
        Check("messages that cannot be decrypted", 0, sum(one.undecryptable for one in every)),
        Check("recipients without an end", 0, sum(len(one.open) for one in every)),
    ]


def _unexcused(one: Counted) -> int:
    return len(one.doubled - one.ambiguous)


def _checks_of_outage(planned: Planned, found: Found) -> list[Check]:
    late = found.messages[LATE]
    struck = late.ended("gone") | late.ended("not_found")
    verdicts = [guard.verdict for guard in found.guards if guard.settled]
    return [
        Check("guards that the campaign opened", 0, found.guards_of_the_day),
        same("outage: ended in its first minute", planned.taken, found.took.ended),
        same("outage: votes in its first minute", planned.voted, found.took.voted),
        Check("outage: guards opened", planned.services, len(found.guards)),
        Check("outage: pages, one a guard", planned.services, found.pages.count("guard.opened")),
        Check("outage: other pages", 0, len(found.pages) - found.pages.count("guard.opened")),
        # Of the rest, too, whatever came in a batch too small for a streak: the table's rows say that it came back.
        same("guard: given back of what was ended", planned.taken, found.gave.ended - late.ended("gone")),
        same("guard: given back of the votes", planned.voted, found.gave.voted - late.ended("not_found")),
        Check(
            "guard: answers rejected",
            len(planned.taken | planned.voted),
            found.rejected,
            at_least=True,
        ),
        Check("guard: rejected and settled", planned.services, verdicts.count("rejected")),
        Check("outage: it did strike", planned.services, len(struck), at_least=True),
        Check("outage: the others, accepted after it", len(late.ledger) - len(struck), len(late.ended("accepted"))),
    ]


def _checks_of_rows(planned: Planned, found: Found) -> list[Check]:
    gone, voted = planned.day["gone"], planned.day["not_found"]
    revoked = frozenset(key for key, row in found.rows.items() if row.state == "revoked")
    votes = frozenset(key for key, row in found.rows.items() if row.votes and row.live)
    active = frozenset(key for key, row in found.rows.items() if row.live and row.state == "active")
    proven = frozenset(key for one in found.messages.values() for key in one.ended("accepted"))
    return [
        same("at the end: revoked, by the 410s", gone, revoked),
        same("at the end: one vote, by the 404s", voted, votes),
        Check("at the end: votes", len(voted), sum(row.votes for row in found.rows.values())),
        same("at the end: live", planned.everyone - gone, found.live),
        same("at the end: active, since a success", proven, active),
        Check("live rows lost to the outage", 0, len(found.lost)),
    ]


def same(what: str, expected: Rows, found: Rows) -> Check:
    """The very same rows, not only as many."""
    others = len(found - expected)
    return Check(what, len(expected), f"{len(found & expected):,} and {others:,} others" if others else len(found))
