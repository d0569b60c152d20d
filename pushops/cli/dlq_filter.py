"""The words with which commands name letters: the same for all of them."""

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import typer

from pushops.cli.context import unique
from pushops.cli.subscription import a_time
from pushops.deadletters import looking
from pushops.deadletters.filters import Filter, parse
from pushops.deadletters.letter import ErrorClass
from pushops.runtime import Runtime
from pushops.settings import parse_duration


def a_moment(text: str) -> datetime:
    """A time as other commands take it, or how long ago: 24h, 2d."""
    try:
        return datetime.now(UTC) - parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        return a_time(text)
    except typer.BadParameter:
        raise typer.BadParameter("expected a time such as 2026-03-01T02:00, or how long ago, such as 24h") from None


Class = Annotated[ErrorClass | None, typer.Option("--class", help="Only of this class.")]
Code = Annotated[str | None, typer.Option("--code", help="Only with this error code.")]
Host = Annotated[str | None, typer.Option("--host", help="Only of this push service's host.")]
Campaign = Annotated[str | None, typer.Option("--campaign", help="Only of this campaign.")]
Since = Annotated[
    datetime | None,
    typer.Option("--since", parser=a_moment, metavar="TIME", help="Parked then or later; 24h is so long ago."),
]
Until = Annotated[datetime | None, typer.Option("--until", parser=a_moment, metavar="TIME", help="Parked before then.")]
Words = Annotated[str | None, typer.Option("--text", help="Only with this in the error's code or text.")]
LetterId = Annotated[str, typer.Argument(metavar="ID", help="A letter's id or its beginning, see pushops dlq list.")]


def named(rt: Runtime, prefix: str) -> UUID:
    """The letter whose id begins so. Raises NotFoundError, or RefusedError where several do."""
    return unique(prefix, "dead letter", lambda text: looking.letters_like(rt, text))


def meant(
    class_: ErrorClass | None,
    code: str | None,
    host: str | None,
    campaign: str | None,
    since: datetime | None,
    until: datetime | None,
    text: str | None,
) -> Filter:
    """Raises RefusedError for what cannot be meant."""
    named = {"code": code, "host": host, "campaign": campaign, "since": since, "until": until, "text": text}
    return parse({"class": class_, **named})
