"""Letters for people, for programs and for spreadsheets."""

import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import StrEnum
from itertools import islice
from typing import IO, Final

from pushops.cli.output import as_plain, duration, print_fields, print_table, say, shown
from pushops.deadletters.looking import DeadLetter, Story
from pushops.deadletters.store.reading import Attempt
from pushops.deadletters.triage import Group, Triage

EVERY: Final = 500  # letters between two words of progress
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # what spreadsheets would run


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


def say_triage(found: Triage) -> None:
    columns = ("LETTERS>", "OF CAMPAIGN>", "CAN GO>", "OLDEST>", "OF TTL>", "NEW", "WHAT")
    print_table(columns, [_group(group) for group in found.groups], empty="no letter waits")
    hidden = found.all_groups - len(found.groups)
    more = f", {hidden:,} more groups: --limit" if hidden > 0 else ""
    if found.letters:
        say(f"{found.letters:,} letters in {found.all_groups:,} groups{more}; new since {shown(found.new_since)}")
    if found.faults:
        say("")
        say("Nobody's fault alone, so no letters: these wait and are sent by themselves when it is over.")
        rows = [(one.kind, one.push_service, one.waiting, one.since, f"{one.why}: {one.what}") for one in found.faults]
        print_table(("FAULT", "SERVICE", "WAITING>", "SINCE", "BECAUSE"), rows)


def say_story(found: Story) -> None:
    print_fields({name.replace("_", " "): value for name, value in as_fields(found.letter).items()})
    columns = ("TRY>", "KIND", "AT", "STATUS>", "OUTCOME", "CODE")
    print_table(columns, [_attempt(one) for one in found.attempts], empty="no attempt is known")


def as_fields(letter: DeadLetter) -> dict[str, object]:
    return {field.name: getattr(letter, field.name) for field in fields(DeadLetter)}


def write_letters(out: IO[str], letters: Iterable[DeadLetter], form: Format, told: Callable[[int], None]) -> None:
    """One at a time; ``told`` hears how many are out."""
    write = _csv(out) if form is Format.CSV else _lines(out)
    found, done = iter(letters), 0
    while some := list(islice(found, EVERY)):
        for letter in some:
            write(letter)
        done += len(some)
        told(done)


def _lines(out: IO[str]) -> Callable[[DeadLetter], object]:
    return lambda letter: out.write(json.dumps(as_fields(letter), default=as_plain) + "\n")


def _csv(out: IO[str]) -> Callable[[DeadLetter], object]:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in fields(DeadLetter)])
    return lambda letter: writer.writerow([_cell(value) for value in as_fields(letter).values()])


def _cell(value: object) -> object:
    """What push services write may begin as a formula does."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return value
    text = shown(value) if isinstance(value, str) else str(as_plain(value))
    return f"'{text}" if text.startswith(FORMULA) else text


def _group(group: Group) -> tuple[object, ...]:
    campaign = "-" if group.campaign_share is None else f"{group.campaign_share:.1%}"
    what = f"{group.error_class} {group.error_code} at {group.endpoint_host}"
    return (
        group.letters,
        campaign,
        f"{group.replayable_share:.0%}",
        duration(group.oldest),
        f"{group.ttl_used:.0%}",
        "new" if group.new else "",
        f"{what}, campaign {group.campaign_id or '-'}",
    )


def _attempt(one: Attempt) -> tuple[object, ...]:
    outcome = one.outcome or "nobody knows"
    said = one.code if not one.snippet else f"{one.code or '-'}: {one.snippet}"
    forced = f" (forced: {one.forced})" if one.forced else ""
    return one.attempt, one.kind, one.at, one.status, outcome, f"{said or '-'}{forced}"
