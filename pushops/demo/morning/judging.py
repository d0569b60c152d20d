"""The end of the morning: letters, runs and the push service's own counts against what was known beforehand."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pushops.deadletters.alarms import Signal
from pushops.deadletters.service import Preview
from pushops.demo.campaign.judging import Rows, same
from pushops.demo.morning.bulletins import BULLETINS, GONE, STALE, Fate
from pushops.demo.morning.counting import Counted
from pushops.demo.morning.store import Ended, Live, Run
from pushops.demo.readers import percentile
from pushops.demo.report import Check, Number, Verdict

ALONE: Final = "alone"
DRAINING: Final = "draining"
WAITING: Final = "waiting"  # a drain that waits for a dead worker's lease
TOLERANCE: Final = 1.2  # of a pace that is counted over five seconds, where a bucket holds up to one second's worth
OURS: Final = frozenset(one.name for one in BULLETINS)


@dataclass(frozen=True)
class Planned:
    """Rows by what becomes of their letter. ``campaign``: rows whose letter the campaign itself left, as poison.

    ``share``: messages a second that replays may send, over all push services. ``expiry``: of each bulletin.
    """

    fates: Mapping[Fate, Rows]
    campaign: Rows
    share: float
    expiry: Mapping[str, datetime]

    def of(self, *fates: Fate) -> Rows:
        return frozenset[bytes]().union(*(self.fates[fate] for fate in fates))

    @property
    def total(self) -> int:
        return sum(map(len, self.fates.values())) + len(self.campaign)


@dataclass(frozen=True)
class Found:
    """What was seen. ``triaged``: letters in triage's groups; ``early``: how many were sent again before the table came
    from its backup; ``begun``: rows whose letters the killed worker had begun to send; ``busiest``: attempts of the
    drain a second, at most; ``remaining``: seconds that the freshest letter had left when it began; ``live``: messages
    with what went on when each was sent.
    """

    triaged: int
    preview: Preview
    early: int
    killed: int
    begun: Rows
    letters: Sequence[Ended]
    run: Run
    busiest: float
    remaining: float
    counted: Counted
    live: Sequence[tuple[Live, str]]
    live_errors: int
    alarms: Mapping[str, int]
    other_pages: int

    def closed(self, *reasons: str) -> Rows:
        return self._rows(one for one in self.letters if one.reason in reasons)

    @property
    def parked(self) -> Rows:
        return self._rows(one for one in self.letters if one.reason is None)

    @property
    def accepted(self) -> Counter[bytes]:
        """How often each row's letter was taken, whichever message it was of: each has one."""
        found = Counter[bytes]()
        for taken in self.counted.letters.values():
            found.update(taken)
        return found

    @property
    def live_doubles(self) -> int:
        """Live messages taken more often than they were sent, and not in doubt."""
        sent = Counter(one.endpoint_hash for one, _ in self.live)
        doubts = Counter(one.endpoint_hash for one, _ in self.live if one.ambiguous)
        return sum(max(0, times - sent[key] - doubts[key]) for key, times in self.counted.live.items())

    @property
    def double_sends(self) -> int:
        letters = sum(times > 1 and key not in self.closed("in_doubt") for key, times in self.accepted.items())
        return letters + self.live_doubles

    def p99(self, phase: str) -> float:
        return percentile([one.seconds for one, when in self.live if when == phase and one.seconds is not None], 0.99)

    @property
    def live_p99_ratio(self) -> float:
        alone = self.p99(ALONE)
        return round(self.p99(DRAINING) / alone, 2) if alone else 0.0

    @staticmethod
    def _rows(letters: Iterable[Ended]) -> Rows:
        return frozenset(one.endpoint_hash for one in letters if one.campaign in OURS)


def judge(planned: Planned, found: Found) -> Verdict:
    """Every letter and every live message is accounted for, at the push service as well."""
    checks = [
        *_checks_of_preview(planned, found),
        *_checks_of_letters(planned, found),
        *_checks_of_run(planned, found),
        *_checks_of_copies(planned, found),
        *_checks_of_live(found),
    ]
    return Verdict(checks, _numbers(found))


def _numbers(found: Found) -> dict[str, Number]:
    return {
        "parked": found.triaged,
        "preview": {
            "would_send": found.preview.would_send,
            "stale": found.preview.stale,
            "gone": found.preview.gone,
            "duplicate": found.preview.duplicate,
            "in_doubt": found.preview.in_doubt,
            "held": found.preview.held,
            "poison_left_out": found.preview.poison_left_out,
        },
        "replayed": len(found.closed("replayed")),
        "stale": len(found.closed("ttl_expired")),
        "gone": len(found.closed("subscription_gone")),
        "duplicate": len(found.closed("already_replayed")),
        "in_doubt": len(found.closed("in_doubt")),
        "double_sends": found.double_sends,
        "live_p99_ratio": found.live_p99_ratio,
    }


def _checks_of_preview(planned: Planned, found: Found) -> list[Check]:
    asked = found.preview
    return [
        Check("letters in triage", planned.total, found.triaged),
        Check("preview: stale", len(planned.of(*STALE)), asked.stale),
        Check("preview: nobody to send to", len(planned.of(*GONE)), asked.gone),
        Check("preview: sent again already", len(planned.of(Fate.REPLAYED)), asked.duplicate),
        Check("preview: in doubt", len(planned.of(Fate.DOUBT)), asked.in_doubt),
        Check("preview: poison, left out", len(planned.of(Fate.POISON)) + len(planned.campaign), asked.poison_left_out),
        Check("preview: would be sent", len(planned.of(Fate.FRESH)), asked.would_send),
        Check("preview: held, or backing off", 0, asked.held + asked.waiting),
    ]


def _checks_of_letters(planned: Planned, found: Found) -> list[Check]:
    fresh, doubted = planned.of(Fate.FRESH), found.closed("in_doubt")
    theirs = [one for one in found.letters if one.campaign not in OURS]
    moved = [
        one for one in found.letters if one.campaign in OURS and one.expires_at != planned.expiry[one.campaign or ""]
    ]
    return [
        same("discarded as stale", planned.of(*STALE), found.closed("ttl_expired")),
        same("discarded, nobody to send to", planned.of(*GONE), found.closed("subscription_gone")),
        same("discarded, sent again already", planned.of(Fate.REPLAYED), found.closed("already_replayed")),
        same("discarded, in doubt since the night", planned.of(Fate.DOUBT), doubted - found.begun),
        same("discarded, in doubt by the kill", found.begun, doubted - planned.of(Fate.DOUBT)),
        same("sent again", fresh - found.begun, found.closed("replayed")),
        same("poison, still parked", planned.of(Fate.POISON), found.parked),
        same("poison of the campaign, still parked", planned.campaign, _still(theirs)),
        Check("letters whose expiry moved", 0, len(moved)),
        Check("letters that somebody still holds", 0, sum(one.state == "claimed" for one in found.letters)),
    ]


def _still(letters: Iterable[Ended]) -> Rows:
    return frozenset(one.endpoint_hash for one in letters if one.state == "parked" and one.replays == 0)


def _checks_of_run(planned: Planned, found: Found) -> list[Check]:
    told = found.run.outcomes
    ends = {"replayed": "replayed", "stale": "ttl_expired", "gone": "subscription_gone"}
    ends |= {"duplicate": "already_replayed", "in_doubt": "in_doubt"}
    apart = [name for name, reason in ends.items() if told.get(name, 0) != len(found.closed(reason))]
    return [
        Check("workers killed over letters", 1, found.killed),
        Check("letters that they had begun to send", 1, len(found.begun), at_least=True),
        Check("the drain ended", "done", found.run.state),
        Check("the run counts what the table says", "all of it", ", ".join(apart) or "all of it"),
        Check("its pace, beside a tenth of the rate", "within it", _pace(planned, found)),
        Check("alarms: letters grow old", 1, found.alarms.get(Signal.AGE, 0), at_least=True),
        Check("pages, alarms on letters aside", 0, found.other_pages),
    ]


def _pace(planned: Planned, found: Found) -> str:
    within = found.busiest <= planned.share * TOLERANCE
    return "within it" if within else f"{found.busiest:.0f} of {planned.share:.0f} a second"


def _checks_of_copies(planned: Planned, found: Found) -> list[Check]:
    taken = found.accepted
    replayed, doubted = found.closed("replayed"), found.closed("in_doubt")
    early = planned.of(Fate.REPLAYED)
    came = frozenset(key for key, times in taken.items() if times)
    return [
        Check("replays before the restore", len(early), found.early),
        Check("push service: letters it took twice", 0, sum(times > 1 for times in taken.values())),
        Check("push service: sent again, and never came", 0, len((replayed | early) - came)),
        Check("push service: came, and is not told of", 0, len(came - replayed - early - doubted)),
        Check("push service: copies of one message", 0, found.counted.copies),
        Check("push service: kept for longer than was left", 0, _overlong(found)),
        Check("push service: cannot be decrypted", 0, found.counted.undecryptable),
    ]


def _overlong(found: Found) -> int:
    """Of some letters: beyond the time that they had left, or no letter at all to ask about."""
    return sum(not 0 < ttl <= found.remaining for ttl in found.counted.lasting) + (not found.counted.lasting)


def _checks_of_live(found: Found) -> list[Check]:
    sent = Counter(one.endpoint_hash for one, _ in found.live)
    return [
        Check(
            "live: accepted, by the ledger", len(found.live), sum(one.outcome == "accepted" for one, _ in found.live)
        ),
        Check(
            "live: accepted, by the push service",
            len(found.live),
            sum(min(found.counted.live[k], n) for k, n in sent.items()),
        ),
        Check("live: taken twice, and not in doubt", 0, found.live_doubles),
        Check("live: while nothing else was sent", 1, sum(when == ALONE for _, when in found.live), at_least=True),
        Check("live: beside the drain", 1, sum(when == DRAINING for _, when in found.live), at_least=True),
        Check("live: not sent at all", 0, found.live_errors),
    ]
