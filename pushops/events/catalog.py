"""Every event there is: its level, its fields and what it means. docs/events.md is printed from this."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class EventKind:
    level: str
    fields: frozenset[str]
    meaning: str


def _kind(level: str, fields: str, meaning: str) -> EventKind:
    return EventKind(level, frozenset(fields.split()), meaning)


_SPAN: Final = " seconds error"

CATALOG: Final[dict[str, EventKind]] = {
    "subscription.saved": _kind(
        "info", "endpoint host service state inserted advice reconnection expiration_ignored", "stored or refreshed"
    ),
    "subscription.refused": _kind("info", "field reason host", "intake refused a subscription"),
    "subscription.ended": _kind(
        "info", "verb endpoint reason rows", "unsubscribed, rotated or otherwise ended by a verb"
    ),
    "subscription.blocked": _kind("warning", "service rows", "not sent to until their browsers subscribe anew"),
    "subscription.detached": _kind("info", "verb rows", "the link to a user ended"),
    "subscription.evidence": _kind("info", "finding outcome endpoint", "what a send result did to a row"),
    "subscription.undone": _kind("warning", "rows skipped actor", "an operator brought ended rows back"),
    "subscription.imported": _kind("info", "rows inserted updated refused dry_run" + _SPAN, "an import ran"),
    "erasure.asked": _kind(
        "info", "request rows ended held actor", "somebody is to be forgotten: nothing is sent any more"
    ),
    "erasure.done": _kind(
        "info", "request rows seconds", "nothing is left of them but the receipt and suppressed hashes"
    ),
    "erasure.held": _kind("warning", "request why", "an erasure waits for a store that is away"),
    "erasure.late": _kind(
        "warning", "request hours why", "an erasure is not done after a day; after three it is a page"
    ),
    "erasure.lifted": _kind("info", "endpoint verb", "an erased endpoint may come back: its client unsubscribed it"),
    "hold.legal": _kind("warning", "verb rows requests actor", "a legal hold was set or lifted"),
    "import.held": _kind("warning", "valve reading reason", "an import waits between two pages"),
    "import.tidied": _kind("warning", "imports", "what imports left whose process died is removed"),
    "guard.opened": _kind(
        "page",
        "service guard why answers terminal streak usual",
        "more answers say dead than can be: evidence waits for an operator",
    ),
    "guard.turned_back": _kind("warning", "guard rows votes", "what the guard's hour had ended or voted is back"),
    "guard.closed": _kind("warning", "service guard verdict pending actor", "an operator judged what the guard kept"),
    "guard.settled": _kind("info", "service guard verdict rows revoked", "what was judged is applied, or discarded"),
    "provider.unhealthy": _kind(
        "warning", "service why code attempts faults", "only probes are sent; a page the first time in an hour"
    ),
    "provider.recovered": _kind("info", "service", "a push service took a message again"),
    "send.paused": _kind("warning", "kind what verb actor", "an operator paused or resumed sending"),
    "hold.opened": _kind(
        "page", "hold service host key code lifted", "our key or configuration is refused: its messages wait"
    ),
    "hold.released": _kind("info", "hold service host key code members actor why", "a lane is sent to again"),
    "sweep.opened": _kind("info", "sweep run walk eligible cutoff windows started_by filter", "a run was opened"),
    "sweep.dispatched": _kind("info", "sweep run outcome why batches rows" + _SPAN, "a dispatcher looked at a run"),
    "sweep.batch": _kind(
        "info", "sweep run batch outcome rows locked expected attempt worker" + _SPAN, "a batch was tried"
    ),
    "sweep.split": _kind("warning", "sweep run batch into error", "a failing batch was halved"),
    "sweep.quarantined": _kind("error", "sweep run batch identity error", "a key or a page was set apart"),
    "sweep.held": _kind("warning", "sweep run valve reading reason", "a valve does not say OPEN"),
    "sweep.resumed": _kind("info", "sweep run valve", "the valves say OPEN again"),
    "sweep.closed": _kind("info", "sweep run state why rows batches quarantined filter outcomes", "a run ended"),
    "sweep.control": _kind(
        "warning", "sweep run verb actor why", "an operator paused, resumed, cancelled, released, ..."
    ),
    "sweep.refused": _kind("warning", "sweep reason", "a table of your own cannot be swept as its section says"),
    "sweep.unknown_id": _kind("warning", "task reason", "a message named something malformed or unknown"),
    "keys.missing": _kind("warning", "run batch turn", "a worker lacks a key that its run needs: others do the page"),
    "sweep.snapshot": _kind(
        "warning", "age transactions owner", "an old snapshot keeps vacuum from removing what was deleted"
    ),
    "message.sent": _kind("info", "message state bytes urgency", "a message was made; its recipients follow"),
    "message.refused": _kind("info", "reasons", "pre-flight refused a message: nothing was written"),
    "message.fanned_out": _kind("info", "message outcome rows" + _SPAN, "recipients were written into the ledger"),
    "message.held": _kind("warning", "message valve reason", "a valve keeps a message from fanning out"),
    "message.ended": _kind("info", "message rows", "recipients that nobody sends to any more were ended"),
    "message.closed": _kind("info", "message", "every recipient of a message has an end"),
    "message.cancelled": _kind("warning", "message campaign actor", "somebody cancelled a message"),
    "message.unknown_id": _kind("warning", "task reason", "a task named a message that is malformed or unknown"),
    "ledger.partition": _kind(
        "info",
        "partition did error",
        "a week of the ledger was made, kept, detached or dropped, or will be tried again",
    ),
    "partition.changed": _kind(
        "info",
        "table partition did why",
        "a partition was made or dropped, must stay, or is held",
    ),
    "partition.failed": _kind(
        "error", "table partition did why", "a partition could not be made or dropped, or something stands in its way"
    ),
    "adoption.step": _kind("warning", "table step", "a table of somebody's own was changed for its endpoint hash"),
    "send.shift": _kind("info", "rows more" + _SPAN, "a sender's shift: attempts settled, and whether more is due"),
    "send.held": _kind("warning", "valve reading reason", "a valve keeps everything from being sent"),
    "send.settled": _kind("debug", "service rows lost outcomes", "a batch of answers was written down"),
    "send.unknown_reason": _kind("warning", "service status row", "a push service gave a reason that no row knows"),
    "send.tampered": _kind("error", "service", "a sealed value does not open: moved, changed or under another key"),
    "send.claims_expired": _kind("warning", "rows ended", "senders died: what they had claimed was taken back"),
    "send.store_failed": _kind("error", "error", "the object store is away: nothing can be sent"),
    "payload.orphans": _kind(
        "info", "seen orphans foreign deleted held why", "objects that no message names were looked for"
    ),
    "payload.held": _kind(
        "warning", "run batch error", "the object store is away: what is to go stays, and is tried again"
    ),
    "replay.held": _kind("warning", "service reason", "nobody can say how much may be sent again now: nothing is"),
    "replay.settled": _kind(
        "debug", "service run rows lost outcomes", "a batch of answers to replays was written down"
    ),
    "replay.lost": _kind(
        "warning", "service run rows", "answers to letters that another holds by now: nothing is done"
    ),
    "replay.claims_expired": _kind(
        "warning", "rows in_doubt", "who held these letters is gone: taken back, or in doubt where they may be sent"
    ),
    "replay.resent": _kind("warning", "letter outcome actor why", "an operator had a letter sent once more"),
    "dlq.discarded": _kind("warning", "rows claimed locked actor why", "an operator discarded dead letters"),
    "dlq.alarm": _kind(
        "warning", "signal subject reading", "dead letters come as they should not; a page where it is grave"
    ),
    "dlq.calm": _kind("info", "signal subject", "what an alarm was about is over"),
    "dlq.parked": _kind("info", "rows codes", "what could not be delivered and is not resolved is kept"),
    "dlq.spooled": _kind(
        "page", "rows error", "the table of letters refuses: they wait in the spool; a page the first time in an hour"
    ),
    "dlq.ingested": _kind("info", "rows source", "letters that waited are in their table"),
    "dlq.spool_failed": _kind("error", "rows error", "letters or lines that the spool or the table does not take"),
    "broker.failed": _kind("error", "task error", "a message could not be published; its rows stay due"),
}


def as_markdown() -> str:
    """The catalog as docs/events.md has it."""
    lines = [
        "# Events",
        "",
        "One API, several sinks: a JSON object per event on stderr, and Sentry for errors and pages. Fields never",
        "hold an endpoint, a key or a payload: `endpoint` is a keyed HMAC. Printed by `make docs`.",
        "",
        "| event | level | fields | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{name}` | {kind.level} | {', '.join(sorted(kind.fields))} | {kind.meaning} |"
        for name, kind in sorted(CATALOG.items())
    ]
    return "\n".join([*lines, ""])
