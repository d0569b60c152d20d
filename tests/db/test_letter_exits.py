"""Whatever state a letter is in and whatever the time, exactly one thing is to become of it, and in the end it goes."""

from collections import Counter
from datetime import timedelta
from typing import Any, Final, LiteralString

from pushops.db import Tx
from pushops.deadletters.replay.draining import DRAIN, filtered
from pushops.deadletters.store import gates, reaping
from pushops.retention.policies import CLOSE_DEAD_LETTERS, PURGE_DEAD_LETTERS
from pushops.settings import Settings
from pushops.sweeps import sql
from pushops.sweeps.sql import literal
from pushops.sweeps.sweep import Sweep
from tests.letters import park_letters

SETTINGS: Final = Settings()
EVERYTHING: Final = 1_000_000

# Columns by the number of the row: together all combinations, and some at random beside the bounds.
STATES: Final = ("parked", "claimed", "replayed", "discarded")
TIMES: Final = {
    "expires_at": ("- interval '80 days'", "- interval '1 second'", "- interval '0'", "+ interval '1 minute'", "+ r"),
    "next_replay_at": ("- interval '1 hour'", "- interval '0'", "+ interval '1 minute'", "- r", "+ r"),
    "claimed_until": ("- interval '1 minute'", "+ interval '1 minute'", "- r", "+ r"),
    "parked_at": ("- interval '0'", "- interval '89 days'", "- interval '91 days'", "- r", "- interval '400 days'"),
}
RANDOM: Final = "(random() * interval '180 days')"


def fill(tx: Tx) -> int:
    size = 1
    columns: dict[str, str] = {}

    def pick(*values: str) -> str:
        nonlocal size
        found = f"(ARRAY[{', '.join(values)}])[1 + (n - 1) / {size} % {len(values)}]"
        size *= len(values)
        return found

    columns["replay_state"] = pick(*(f"'{state}'" for state in STATES))
    for name, offsets in TIMES.items():
        columns[name] = pick(*(f"now() {offset}".replace(" r", f" {RANDOM}") for offset in offsets))
    columns["error_class"] = pick("'poison'", "'retry_exhausted'")
    state = columns["replay_state"]
    closed, claimed = (f"{state} IN ('replayed', 'discarded')", f"{state} = 'claimed'")
    columns["claimed_until"] = f"CASE WHEN {claimed} THEN {columns['claimed_until']} END"
    columns["claim_token"] = f"CASE WHEN {claimed} THEN gen_random_uuid() END"
    columns |= dict.fromkeys(("close_reason", "closed_by"), f"CASE WHEN {closed} THEN 'x' END")
    columns["closed_at"] = f"CASE WHEN {closed} THEN now() END"
    park_letters(tx.conn, size, **columns)
    return size


def named(tx: Tx, sweep: Sweep, **more: Any) -> set[Any]:
    """The letters that a run opened now would take, by its own statement's predicate."""
    values: dict[str, Any] = sql.floors(sweep) | more
    for window in sweep.windows:
        back = sum((SETTINGS.window(name) for name in window.settings), timedelta())
        values[window.name] = tx.now - back
    query = literal(f"SELECT dlq_id FROM {sweep.table} WHERE {sql.predicate(sweep)}")
    return set(tx.scalars(query, values))


def drained(tx: Tx) -> set[Any]:
    """By the drain for all, and by one that asks for poison."""
    every, poison = filtered(""), filtered('{"error_class":"poison"}')
    return named(tx, DRAIN, **every) | named(tx, DRAIN, **poison)


def of(tx: Tx, condition: LiteralString) -> set[Any]:
    return set(tx.scalars("SELECT dlq_id FROM {schema}.push_dlq WHERE " + condition, {}))


VERDICTS: Final = "SELECT d.dlq_id, " + gates.VERDICT + " AS verdict FROM {schema}.push_dlq AS d" + gates.STANDING


def test_every_letter_is_one_of_claimable_waiting_to_be_closed_or_to_be_purged(tx: Tx) -> None:
    """None between two filters, where it is neither sent nor ended nor deleted (E11)."""
    size = fill(tx)
    to_be_closed, drain = named(tx, CLOSE_DEAD_LETTERS), drained(tx)
    reaped, purged = set(reaping.expired(tx, EVERYTHING)), named(tx, PURGE_DEAD_LETTERS)
    # A drain that comes before the closing ends stale letters itself, by the same reason.
    claimable = drain - to_be_closed
    in_hand = of(tx, "replay_state = 'claimed' AND claimed_until >= clock_timestamp()")
    backing_off = of(tx, "replay_state = 'parked' AND next_replay_at > now() AND expires_at > now()")
    young = of(tx, "closed_at IS NOT NULL AND parked_at >= now() - interval '90 days'")
    kinds = {
        "claimable": claimable,
        "waiting": in_hand | reaped | backing_off,
        "to be closed": to_be_closed,
        "to be purged": purged | young,
    }
    assert all(kinds.values())
    assert all((claimable, in_hand, reaped, backing_off, purged, young))
    assert not in_hand & reaped
    assert not purged & young
    counted = Counter(dlq_id for kind in kinds.values() for dlq_id in kind)
    assert len(counted) == size
    assert set(counted.values()) == {1}


def test_a_drain_sends_nothing_that_is_to_be_closed(tx: Tx) -> None:
    fill(tx)
    known = gates.params(["test"])
    verdicts = {row[0]: row[1] for row in tx.conn.execute(_rendered(tx), known).fetchall()}
    stale = named(tx, CLOSE_DEAD_LETTERS) & drained(tx)
    assert stale
    assert {verdicts[dlq_id] for dlq_id in stale} == {"ttl_expired"}


def test_once_time_has_passed_every_letter_is_gone(tx: Tx) -> None:
    """Reaped, closed, purged: three passes empty the table, whatever was in it."""
    fill(tx)
    tx.conn.execute("ALTER TABLE pushops.push_dlq DISABLE TRIGGER push_dlq_fixed")
    tx.conn.execute(
        """UPDATE pushops.push_dlq SET (expires_at, next_replay_at, claimed_until, parked_at) =
           ROW (expires_at - ago, next_replay_at - ago, claimed_until - ago, parked_at - ago)
             FROM (VALUES (interval '400 days')) AS v (ago)"""
    )
    ids = reaping.expired(tx, EVERYTHING)
    reaping.reap(tx, ids, most=5, base=timedelta(seconds=30), cap=timedelta(hours=1))
    for sweep in (CLOSE_DEAD_LETTERS, PURGE_DEAD_LETTERS):
        values = {"opened": tx.now, "cutoff": tx.now - SETTINGS.dead_letter_retention} | sql.floors(sweep)
        assert tx.scalar(sql.effect(sweep, sql.predicate(sweep)), values) > 0
    assert of(tx, "true") == set()


def _rendered(tx: Tx) -> bytes:
    return VERDICTS.replace("{schema}", tx.schema).encode()
