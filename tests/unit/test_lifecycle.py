"""The lifecycle's table holds together, and the documentation shows it."""

import itertools
from pathlib import Path

import pytest

from pushops.subscriptions.lifecycle import EDGES, END_REASON, ENDED, LIVE, UNDOABLE, Event, State, document, moves

DOCS = Path(__file__).parents[2] / "docs"
ENDS = tuple(END_REASON)


def test_the_documentation_shows_the_table() -> None:
    assert (DOCS / "lifecycle.md").read_text(encoding="utf-8") == document(), "say: make docs"


@pytest.mark.parametrize("event", Event)
def test_every_event_starts_somewhere(event: Event) -> None:
    found = moves(event)
    assert found["sources"]
    assert len(found["sources"]) == len(found["targets"]) == len(found["otherwise"])


@pytest.mark.parametrize("event", ENDS)
def test_an_event_with_an_end_reason_only_leads_to_an_end(event: Event) -> None:
    assert set(moves(event)["targets"]) <= set(ENDED)


@pytest.mark.parametrize("event", sorted(set(Event) - set(ENDS)))
def test_any_other_event_only_leads_to_life(event: Event) -> None:
    found = moves(event)
    assert set(found["targets"]) | set(found["otherwise"]) <= set(LIVE)


def test_no_push_service_answer_moves_an_ended_row() -> None:
    answers = (Event.ACCEPTED, Event.GONE, Event.VOTE, Event.VOTED_OUT)
    assert not [pair for pair in itertools.product(ENDED, answers) if pair in EDGES]


def test_a_registration_brings_any_row_to_life_and_never_downgrades_an_active_one() -> None:
    found = moves(Event.REGISTERED)
    assert dict(zip(found["sources"], found["targets"], strict=True)) == {
        State.PENDING: "pending",
        State.ACTIVE: "active",
        State.STALE: "pending",
        State.EXPIRED: "pending",
        State.REVOKED: "pending",
    }


def test_what_a_person_or_our_own_rule_ended_cannot_be_undone() -> None:
    assert set(UNDOABLE) == {"gone", "voted_out", "aged_out"}
