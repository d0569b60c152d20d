"""``pushops message``: send, look at what became of it, cancel."""

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from pushops.cli.context import STDIN, actor, opened, unique
from pushops.cli.exits import DOCUMENTED, Exit
from pushops.cli.output import Json, as_plain, note, print_fields, print_json, print_table, say, short
from pushops.cli.run import a_duration
from pushops.cli.subscription import a_time
from pushops.delivery import service
from pushops.delivery.content import Payload
from pushops.delivery.message import MessageState, OnAmbiguous, OnInDoubt, RecipientState, Urgency
from pushops.delivery.preflight import Draft
from pushops.delivery.reading import Progress
from pushops.delivery.sending import Preview, Sent
from pushops.delivery.store.messages import MessageRow
from pushops.doorbell import Doorbell
from pushops.errors import RefusedError
from pushops.runtime import Runtime

app = typer.Typer(no_args_is_help=True)

PAGE: Final = 1_000
CANCELLABLE: Final = (MessageState.WAITING, MessageState.FANNING_OUT, MessageState.SENDING)
MessageId = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="The id of a message or its beginning, see pushops message list.")
]


@app.callback()
def message() -> None:
    """Send messages, cancel them, and see what became of each recipient. Payloads and endpoints are never printed."""


@app.command(epilog=DOCUMENTED)
def send(
    payload: Annotated[str | None, typer.Option("--payload", metavar="TEXT", help="What to send.")] = None,
    payload_file: Annotated[
        str | None, typer.Option("--payload-file", metavar="FILE|-", help="Read it from a file, or - for stdin.")
    ] = None,
    stamp: Annotated[
        bool, typer.Option("--stamp", help='It is a JSON object: add {"pushops": {"id": ...}} to it.')
    ] = False,
    user: Annotated[str | None, typer.Option("--user", help="To this user.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="To who has this tag; several: any of them.")] = None,
    id_: Annotated[list[str] | None, typer.Option("--id", help="To this subscription; may be repeated.")] = None,
    push_service: Annotated[str | None, typer.Option("--service", help="Only to this push service.")] = None,
    origin: Annotated[str | None, typer.Option("--origin", help="Only to this site.")] = None,
    locale: Annotated[str | None, typer.Option("--locale", help="Only to this locale.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only to who subscribed with this VAPID key id.")] = None,
    everyone: Annotated[bool, typer.Option("--everyone", help="To every live subscription.")] = False,
    ttl: Annotated[
        timedelta | None,
        typer.Option("--ttl", parser=a_duration, metavar="DURATION", help="How long it is worth delivering: 30m, 2d."),
    ] = None,
    urgency: Annotated[Urgency, typer.Option("--urgency")] = Urgency.NORMAL,
    topic: Annotated[str | None, typer.Option("--topic", help="Replaces what waits with the same topic.")] = None,
    campaign: Annotated[
        str | None, typer.Option("--campaign", help="Messages of a campaign are judged together.")
    ] = None,
    not_before: Annotated[
        datetime | None, typer.Option("--not-before", parser=a_time, metavar="TIME", help="Wait until then.")
    ] = None,
    no_replay: Annotated[bool, typer.Option("--no-replay", help="Never send it again from the dead letters.")] = False,
    on_ambiguous: Annotated[
        OnAmbiguous, typer.Option("--on-ambiguous", help="Where it may or may not have been taken.")
    ] = OnAmbiguous.RETRY,
    on_in_doubt: Annotated[
        OnInDoubt, typer.Option("--on-in-doubt", help="Where a replay cannot know whether it was taken.")
    ] = OnInDoubt.DISCARD,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="The same key sends the same message once.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check and count; nothing is written.")] = False,
    json_: Json = False,
) -> None:
    """Send a message. Exit code 1 where pre-flight finds a fault: all of them are printed, and nothing is written."""
    request: dict[str, Any] = {
        "user": user,
        "tags": tag or None,
        "ids": id_ or None,
        "service": push_service,
        "origin": origin,
        "locale": locale,
        "key": key,
        "everyone": everyone,
        "ttl": ttl,
        "urgency": urgency,
        "topic": topic,
        "campaign": campaign,
        "not_before": not_before,
        "replayable": not no_replay,
        "on_ambiguous": on_ambiguous,
        "on_in_doubt": on_in_doubt,
        "idempotency_key": idempotency_key,
    }
    body = _payload(payload, payload_file, stamp=stamp)
    with opened() as rt:
        if dry_run:
            _tell_preview(service.preview(rt, Draft(payload=body, **request)), json_=json_)
            return
        sent = service.send(rt, body, actor=actor(), **request)
        _ring(rt, sent, at_once=not_before is None)
    _tell_sent(sent, json_=json_)


@app.command("list")
def list_(
    campaign: Annotated[str | None, typer.Option("--campaign", help="Only of this campaign.")] = None,
    state: Annotated[MessageState | None, typer.Option("--state", help="Only in this state.")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="MESSAGE", help="Go on after this one.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000)] = 20,
    json_: Json = False,
) -> None:
    """The latest messages, newest first."""
    with opened() as rt:
        after = _named(rt, before) if before else None
        found = service.messages(rt, campaign=campaign, state=state, before=after, limit=limit)
    if json_:
        print_json(found)
        return
    rows = [
        (short(row.message_id), f"{row.created_at:%m-%d %H:%M}", row.state, row.recipients, row.campaign_id)
        for row in found
    ]
    print_table(("MESSAGE", "MADE", "STATE", "RECIPIENTS>", "CAMPAIGN"), rows, empty="no messages")


@app.command()
def show(message_id: MessageId, json_: Json = False) -> None:
    """One message: for whom, until when, and how many of its recipients are where."""
    with opened() as rt:
        found = service.message(rt, _named(rt, message_id))
    if json_:
        print_json(found)
        return
    print_fields(_described(found))
    rows = [(share.outcome or share.state, share.wait, share.rows, share.tried) for share in found.shares]
    print_table(("RECIPIENTS ARE", "WAITED FOR", "ROWS>", "TRIED>"), rows, empty="no recipients yet")


@app.command()
def results(
    message_id: MessageId,
    outcome: Annotated[
        str | None, typer.Option("--outcome", help="Only with this outcome, or in this state without one yet.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
) -> None:
    """What became of each recipient: a JSON object a line. Endpoints are named by the tag that logs have."""
    with opened() as rt:
        for found in islice(service.all_results(rt, _named(rt, message_id), outcome=outcome), limit):
            sys.stdout.write(json.dumps(dataclasses.asdict(found), default=as_plain) + "\n")


@app.command(epilog=DOCUMENTED)
def cancel(
    message_id: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="A message's id or its beginning.")
    ] = None,
    campaign: Annotated[str | None, typer.Option("--campaign", help="Every open message of this campaign.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this it is only counted.")] = False,
    json_: Json = False,
) -> None:
    """Stop a message: who was not sent to yet is not sent to any more. What is out stays out."""
    if (message_id is None) == (campaign is None):
        raise typer.BadParameter("expected a message or --campaign, one of the two")
    with opened() as rt:
        named = None if message_id is None else _named(rt, message_id)
        waiting = _waiting(rt, named, campaign)
        done = service.cancel(rt, named, campaign=campaign, actor=actor()) if yes else None
    if json_:
        print_json({"messages": len(waiting), "waiting": sum(waiting.values()), "cancelled": done})
    elif done is None:
        rows = f"{sum(waiting.values()):,} recipients of {len(waiting):,} open messages"
        say(f"{rows} would not be sent to; --yes does it")
    else:
        say(f"{len(done.messages):,} messages cancelled, {done.rows:,} recipients ended")


def _payload(text: str | None, file: str | None, *, stamp: bool) -> Payload:
    if (text is None) == (file is None):
        raise typer.BadParameter("expected --payload or --payload-file, one of the two")
    found = text.encode("utf-8", "surrogateescape") if text is not None else _read(str(file))
    if not stamp:
        return found
    try:
        parsed = json.loads(found)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise RefusedError("expected a JSON object to put the message id into, got something else")
    return parsed


def _read(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise RefusedError(f"expected to read {file}, got {error.strerror}") from None


def _ring(rt: Runtime, sent: Sent, *, at_once: bool) -> None:
    if sent.created and at_once:
        bell = Doorbell(rt)
        bell.ring(sent)
        bell.close()


def _named(rt: Runtime, prefix: str) -> UUID:
    return unique(prefix, "message", lambda text: service.messages_like(rt, text))


def _waiting(rt: Runtime, message_id: UUID | None, campaign: str | None) -> Counter[UUID]:
    """The open messages that are meant, with how many of their recipients have no end yet."""
    named = [message_id] if message_id is not None else _open_of(rt, campaign)
    found = [service.message(rt, each) for each in named]
    return Counter({each.message.message_id: _unended(each) for each in found if each.message.state in CANCELLABLE})


def _open_of(rt: Runtime, campaign: str | None) -> Iterator[UUID]:
    """All of a campaign that a cancel would take, however many there are."""
    before: UUID | None = None
    while page := service.messages(rt, campaign=campaign, before=before, limit=PAGE):
        yield from (row.message_id for row in page if row.state in CANCELLABLE)
        before = page[-1].message_id


def _unended(found: Progress) -> int:
    return sum(share.rows for share in found.shares if share.state != RecipientState.ENDED)


def _tell_sent(sent: Sent, *, json_: bool) -> None:
    if json_:
        print_json(sent)
        return
    for warning in sent.warnings:
        note(f"note: {warning}")
    say(f"message {sent.message_id}: {'' if sent.created else 'was sent before, '}{sent.state}")


def _tell_preview(found: Preview, *, json_: bool) -> None:
    if json_:
        print_json(found)
    else:
        for finding in (*found.faults, *found.warnings):
            note(str(finding))
        rows = sorted(found.recipients.items())
        print_table(("SERVICE", "RECIPIENTS>"), rows, empty="nobody would be sent to")
        say(f"{sum(found.recipients.values()):,} would be sent {found.payload_bytes:,} bytes; nothing was written")
    if found.faults:
        raise typer.Exit(Exit.FAILED)


def _described(found: Progress) -> dict[str, object]:
    row = found.message
    return {
        "message": str(row.message_id),
        "state": row.state if row.cancelled_by is None else f"{row.state}, cancelled by {row.cancelled_by}",
        "campaign": row.campaign_id,
        "made": row.created_at,
        "made by": row.created_by,
        "for": _audience(row),
        "not before": row.not_before,
        "first dispatch": row.first_dispatched_at,
        "expires": row.expires_at,
        "closed": row.closed_at,
        "ttl": timedelta(seconds=row.ttl),
        "urgency": row.urgency,
        "topic": row.topic,
        "payload bytes": row.payload_bytes,
        "recipients": row.recipients,
        "ended": found.ended,
        "accepted": found.accepted,
    }


def _audience(row: MessageRow) -> list[str]:
    named = {
        "user": row.to_user,
        "any tag of": row.to_tags,
        "subscriptions": row.to_ids,
        "service": row.to_service,
        "origin": row.to_origin,
        "locale": row.to_locale,
        "key": row.to_key,
    }
    said = [
        f"{name} {', '.join(value) if isinstance(value, list) else value}" for name, value in named.items() if value
    ]
    return said or ["everyone"]
