"""When somebody should look at the dead letters: how fast they come, of what, and how old they grow; never how many.

The thresholds are starting points for a sender of 10,000 to 10,000,000 pushes a day.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from pushops.db import Tx
from pushops.deadletters.letter import ErrorClass
from pushops.deadletters.store import alarms as store
from pushops.deadletters.store import triage as triage_store
from pushops.deadletters.store.alarms import Numbers, Part
from pushops.deadletters.triage import MOST_MESSAGES, PATIENCE
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.sweeps.sql import PLAN_PAGES

FEW: Final = 20  # letters below which a share says nothing
MANY: Final = 100
FLOOD: Final = 500
INFLOW: Final = (0.005, 0.02)  # of sends; a campaign of one in a hundred that fails whole is always seen
POISON: Final = 0.5
ONE_CODE: Final = 0.8
OF_CAMPAIGN: Final = 0.9
OF_OTHERS: Final = 0.01
OF_TRAFFIC: Final = 0.1
ONE_HOST: Final = 0.8
UNANSWERED: Final = (0.2, 0.5)
AGE: Final = (0.5, 0.8)  # of the median time to live
REPLAYABLE: Final = (0.25, 0.05)
LEASES: Final = 50
QUIET: Final = timedelta(minutes=15)


class Signal(StrEnum):
    INFLOW = "inflow"
    POISON = "poison_of_one_code"
    CAMPAIGN = "campaign_cluster"
    PROVIDER = "provider_cluster"
    TRANSPORT = "no_answers"
    AGE = "oldest_parked"
    REPLAYABLE = "replayable_share"
    LEASES = "leases_over"
    NEW_CODE = "new_code"


@dataclass(frozen=True, slots=True)
class Alarm:
    """``subject``: the code, campaign or host that it is about, if any; ``reading``: the numbers behind it."""

    signal: Signal
    level: Level
    subject: str
    reading: str


@dataclass(frozen=True)
class Facts:
    """``recipients``: of the campaigns in the mix, where they are known; ``known``: codes that were seen before."""

    numbers: Numbers
    mix: tuple[Part, ...] = ()
    recipients: Mapping[str, int] | None = None
    known: frozenset[str] = frozenset()


def current(rt: Runtime) -> list[Alarm]:
    """The alarms there are now; nothing is told or kept."""
    with rt.db.transaction(statement_timeout=PATIENCE, planner=PLAN_PAGES) as tx:
        return judge(_facts(tx))


def tell(rt: Runtime) -> list[Alarm]:
    """Emit an event for each alarm that begins or becomes grave, and one for each that is over; those it told of.

    Once for each episode, whichever worker looks, and however often.
    """
    with rt.db.transaction(statement_timeout=PATIENCE, planner=PLAN_PAGES) as tx:
        found = judge(_facts(tx))
        kept = sorted((str(one.signal), one.subject, str(one.level)) for one in found)  # two workers lock alike
        told = {(episode.signal, episode.subject) for episode in store.begin(tx, kept)}
        store.seen(tx, kept)
        over = store.end(tx, QUIET)
    new = [one for one in found if (one.signal, one.subject) in told]
    for one in new:
        rt.events.emit("dlq.alarm", one.level, signal=one.signal, subject=one.subject, reading=one.reading)
    for episode in over:
        rt.events.emit("dlq.calm", signal=episode.signal, subject=episode.subject)
    return new


def judge(facts: Facts) -> list[Alarm]:
    """Pure: what is as it should not be, the grave first."""
    rules = (_inflow, _poison, _campaigns, _provider, _transport, _age, _replayable, _leases, _new_codes)
    found = [alarm for rule in rules for alarm in rule(facts)]
    return sorted(found, key=lambda alarm: alarm.level is not Level.PAGE)


def _facts(tx: Tx) -> Facts:
    mix = tuple(store.mix(tx))
    campaigns = sorted({part.campaign_id for part in mix if part.campaign_id})
    counted = triage_store.recipients(tx, campaigns[:FEW], MOST_MESSAGES)
    codes = sorted({part.error_code for part in mix if part.error_code is not None})
    recipients = {one.name: one.recipients for one in counted if one.recipients}
    return Facts(store.numbers(tx), mix, recipients, frozenset(store.known(tx, codes)))


def _inflow(facts: Facts) -> Iterator[Alarm]:
    now = facts.numbers
    share = _share(now.inflow, now.sends)
    grave = share > INFLOW[1] and now.inflow >= MANY
    if grave or (share > INFLOW[0] and now.inflow >= FEW):
        reading = f"{now.inflow:,} letters of {now.sends:,} sends within 15 minutes"
        yield Alarm(Signal.INFLOW, _level(grave), "", reading)


def _poison(facts: Facts) -> Iterator[Alarm]:
    """A payload or a request that is built wrongly."""
    total = _letters(facts, "")
    poison = _letters(facts, "error_class", error_class=ErrorClass.POISON)
    for part in _parts(facts, "error_class error_code"):
        most = part.error_class == ErrorClass.POISON and part.letters >= ONE_CODE * poison
        if most and poison > POISON * total and poison >= FEW:
            reading = f"{part.letters:,} of {poison:,} poison letters within the hour, {total:,} in all"
            yield Alarm(Signal.POISON, _level(poison >= FLOOD), part.error_code or "", reading)


def _campaigns(facts: Facts) -> Iterator[Alarm]:
    """A campaign that nobody takes while others pass. Those of the hour beyond what was looked at count alike."""
    now, looked = facts.numbers, _letters(facts, "")
    scale = max(now.inflow_hour, looked) / looked if looked else 1.0
    of_code = {part.error_code: part.letters * scale for part in _parts(facts, "error_code")}
    for part in _parts(facts, "campaign_id error_code"):
        recipients = (facts.recipients or {}).get(part.campaign_id or "")
        if recipients is None or part.letters < FEW:
            continue
        tried = min(recipients, now.sends_hour or recipients)
        letters = part.letters * scale
        others = of_code.get(part.error_code, letters) - letters
        passing = _share(others, max(now.sends_hour - tried, 0)) <= OF_OTHERS
        if letters >= OF_CAMPAIGN * tried and passing:
            reading = f"{part.error_code}: {letters:,.0f} letters of {recipients:,} recipients"
            grave = tried > OF_TRAFFIC * now.sends_hour
            yield Alarm(Signal.CAMPAIGN, _level(grave), part.campaign_id or "", reading)


def _provider(facts: Facts) -> Iterator[Alarm]:
    """A push service in trouble: what it left is replayed when it is well."""
    exhausted = _letters(facts, "error_class", error_class=ErrorClass.EXHAUSTED)
    for part in _parts(facts, "error_class push_service endpoint_host"):
        most = part.error_class == ErrorClass.EXHAUSTED and part.letters >= ONE_HOST * exhausted
        if most and exhausted >= FEW:
            grave = part.push_service in facts.numbers.long_unhealthy
            unhealthy = ", unhealthy for half an hour" if grave else ""
            reading = f"{part.letters:,} of {exhausted:,} exhausted letters within the hour{unhealthy}"
            yield Alarm(Signal.PROVIDER, _level(grave), part.endpoint_host or "", reading)


def _transport(facts: Facts) -> Iterator[Alarm]:
    """The way out, names, TLS, or what is built before a request."""
    for part in _parts(facts, ""):
        share = _share(part.unanswered, part.letters)
        if part.letters >= FEW and share > UNANSWERED[0]:
            reading = f"{part.unanswered:,} of {part.letters:,} letters within the hour had no HTTP answer"
            yield Alarm(Signal.TRANSPORT, _level(share > UNANSWERED[1]), "", reading)


def _age(facts: Facts) -> Iterator[Alarm]:
    now = facts.numbers
    if now.oldest is None or not now.median_ttl:
        return
    used = now.oldest.total_seconds() / now.median_ttl
    if used > AGE[0]:
        reading = f"parked for {now.oldest.total_seconds():,.0f} s of a median time to live of {now.median_ttl:,.0f} s"
        yield Alarm(Signal.AGE, _level(used > AGE[1]), "", reading)


def _replayable(facts: Facts) -> Iterator[Alarm]:
    """Nobody drains them in time: an archive, which is closed as it expires."""
    now = facts.numbers
    parked = now.fresh + now.stale
    share = _share(now.fresh, parked)
    if parked >= FEW and share < REPLAYABLE[0]:
        grave = share < REPLAYABLE[1] and parked > MANY
        yield Alarm(
            Signal.REPLAYABLE, _level(grave), "", f"{now.fresh:,} of {parked:,} parked letters have a minute left"
        )


def _leases(facts: Facts) -> Iterator[Alarm]:
    now = facts.numbers
    grave = now.leases_over >= LEASES
    if grave or now.leases_lost:
        reading = f"{now.leases_over:,} claims are over, {now.leases_lost:,} of them for five minutes"
        yield Alarm(Signal.LEASES, _level(grave), "", reading)


def _new_codes(facts: Facts) -> Iterator[Alarm]:
    for part in _parts(facts, "error_code"):
        if part.error_code is not None and part.error_code not in facts.known:
            reading = f"{part.letters:,} letters within the hour, none before"
            yield Alarm(Signal.NEW_CODE, Level.WARNING, part.error_code, reading)


_LINES: Final = ("error_class", "error_code", "push_service", "endpoint_host", "campaign_id")


def _parts(facts: Facts, names: str) -> Iterable[Part]:
    """The counts along one line: where these names, and no others, are told apart."""
    wanted = set(names.split())
    return [part for part in facts.mix if {name for name in _LINES if getattr(part, name) is not None} == wanted]


def _letters(facts: Facts, names: str, **values: str) -> int:
    parts = _parts(facts, names)
    return sum(part.letters for part in parts if all(getattr(part, name) == it for name, it in values.items()))


def _share(part: float, whole: float) -> float:
    """All of it where there is no whole."""
    return part / whole if whole else float(part > 0)


def _level(grave: bool) -> Level:
    return Level.PAGE if grave else Level.WARNING
