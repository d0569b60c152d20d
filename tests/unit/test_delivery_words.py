"""States, ends and waits stand in enums and in SQL: what one has, the other has."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from pushops.delivery.guard import Judgement
from pushops.delivery.health import Why as Trouble
from pushops.delivery.message import MessageState, OnAmbiguous, OnInDoubt, RecipientState, Urgency
from pushops.delivery.providers import Pausable
from pushops.delivery.retry import End, Why
from pushops.delivery.store import churn, fanning, finishing, guard, ledger, messages, providers
from pushops.delivery.store.partitions import OPEN
from pushops.subscriptions.finding import EvidenceOutcome, EvidenceState, Finding
from pushops.subscriptions.lifecycle import END_REASON, State
from pushops.subscriptions.store import evidence

MIGRATIONS = Path(ledger.__file__).parents[2] / "db" / "migrations" / "versions"
SCHEMA = "".join(path.read_text(encoding="utf-8") for path in sorted(MIGRATIONS.glob("*.sql")))

LEDGER = {*RecipientState, *End, *Why, *MessageState, *OnAmbiguous, *Pausable, *State}
EVIDENCE = {*EvidenceState, *EvidenceOutcome, *Judgement, *Finding, *State, *Trouble, *END_REASON.values(), *End}
# What stands in SQL only: how a claim sets a row aside, what the reaper and the guard write beside an outcome.
IN_SQL_ONLY = {"later", "lease_expired", "turned_back", "proven", "lifted"}

CHECKS = {
    "push_message_state": MessageState,
    "push_message_urgency": Urgency,
    "push_message_on_ambiguous": OnAmbiguous,
    "push_message_on_in_doubt": OnInDoubt,
    "push_dispatch_state": RecipientState,
    "push_pause_kind": Pausable,
    "push_evidence_state": EvidenceState,
    "push_guard_verdict": Judgement,
}


ATTEMPT = {"n", "at", "status", "code", "outcome", "snippet"}  # the keys of a row's history


def words(module: ModuleType) -> set[str]:
    """Words in quotes in a module's statements; intervals and the like have digits or blanks."""
    statements = [value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)]
    return {word for sql in statements for word in re.findall(r"(?<!interval )'([a-z_]+)'", sql)} - {"infinity"}


@pytest.mark.parametrize("module", [fanning, finishing, ledger, messages, providers], ids=lambda one: one.__name__)
def test_statements_on_the_ledger_know_no_word_that_its_enums_have_not(module: ModuleType) -> None:
    assert words(module) - LEDGER - IN_SQL_ONLY - ATTEMPT == set()


@pytest.mark.parametrize("module", [churn, evidence, guard], ids=lambda one: one.__name__)
def test_statements_on_evidence_know_no_word_that_its_enums_have_not(module: ModuleType) -> None:
    assert words(module) - EVIDENCE - IN_SQL_ONLY == set()


@pytest.mark.parametrize("name", CHECKS)
def test_the_schema_takes_what_the_enum_has_and_nothing_else(name: str) -> None:
    found = re.search(rf"CONSTRAINT {name} CHECK \(\w+ IN \(([^)]*)\)\)", SCHEMA)
    assert found is not None
    assert set(re.findall(r"'([^']*)'", found[1])) == set(CHECKS[name])


def test_a_week_of_the_ledger_is_over_when_all_its_rows_have_ended() -> None:
    assert set(OPEN) == set(RecipientState) - {RecipientState.ENDED}


def test_every_end_of_a_recipient_is_explained_to_operators() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    assert [end for end in End if f"`{end}`" not in page] == []
