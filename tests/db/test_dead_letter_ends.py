"""How letters end by themselves: stale ones are closed, closed ones go when they are old, with all their attempts."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from pushops.retention.policies import CLOSE_DEAD_LETTERS, PURGE_DEAD_LETTERS
from pushops.runtime import Runtime
from tests.letters import CLAIMED, CLOSED, letter, park_letter
from tests.sending import Pg
from tests.sweepdb import drive


def left(pg: Pg) -> set[UUID]:
    return {row[0] for row in pg.execute("SELECT dlq_id FROM push_dlq")}


def add_attempts(pg: Pg, dlq_id: UUID) -> None:
    pg.execute(
        """INSERT INTO push_dlq_attempt (replay_key, attempt, kind, settled_at, outcome)
           SELECT replay_key, n, 'live', now(), 'unavailable' FROM push_dlq, generate_series(1, 3) AS n
            WHERE dlq_id = %s""",
        [dlq_id],
    )


def attempts(pg: Pg) -> dict[UUID, int]:
    query = "SELECT dlq_id, count(*) FROM push_dlq JOIN push_dlq_attempt USING (replay_key) GROUP BY 1"
    return dict(pg.execute(query).fetchall())


def total(pg: Pg, table: str) -> int:
    row = pg.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def state(pg: Pg, dlq_id: UUID) -> tuple[Any, ...]:
    row = letter(pg, dlq_id)
    return row["replay_state"], row["close_reason"], row["closed_by"]


def test_parked_letters_are_closed_when_they_expire_and_claimed_ones_are_left_to_the_reaper(
    runtime: Runtime, pg: Pg
) -> None:
    over = "now() - interval '1 second'"
    stale = park_letter(pg, expires_at=over)
    backing_off = park_letter(pg, expires_at=over, next_replay_at="now() + interval '1 day'")
    poison = park_letter(pg, expires_at=over, error_class="'poison'")
    fresh = park_letter(pg, expires_at="now() + interval '10 seconds'")
    claimed = park_letter(pg, expires_at=over, **CLAIMED)
    replayed = park_letter(
        pg,
        expires_at=over,
        **CLOSED | {"replay_state": "'replayed'", "close_reason": "'replayed'", "closed_by": "'me'"},
    )
    for _ in range(2):
        run = drive(runtime, CLOSE_DEAD_LETTERS)
    for each in (stale, backing_off, poison):
        assert state(pg, each) == ("discarded", "ttl_expired", "close-dead-letters")
        assert letter(pg, each)["closed_at"] is not None
    assert state(pg, fresh) == ("parked", None, None)
    assert state(pg, claimed) == ("claimed", None, None)
    assert state(pg, replayed) == ("replayed", "replayed", "me")
    assert run.state == "done"


def test_closed_letters_go_with_their_attempts_when_they_are_old_and_open_ones_stay(runtime: Runtime, pg: Pg) -> None:
    old, young = ("now() - interval '91 days'", "now() - interval '89 days'")
    kept = {
        park_letter(pg, parked_at=young, **CLOSED),
        park_letter(pg, parked_at=old),
        park_letter(pg, parked_at=old, **CLAIMED),
    }
    gone = park_letter(pg, parked_at=old, **CLOSED)
    for dlq_id in (*kept, gone):
        add_attempts(pg, dlq_id)
    drive(runtime, PURGE_DEAD_LETTERS)
    assert left(pg) == kept
    assert attempts(pg) == dict.fromkeys(kept, 3)
    assert total(pg, "push_dlq_attempt") == 9


def test_no_setting_takes_letters_younger_than_a_month(runtime: Runtime, pg: Pg) -> None:
    rt = Runtime(
        runtime.settings.model_copy(update={"dead_letter_retention": timedelta(0)}),
        runtime.db,
        runtime.redis,
        runtime.events,
    )
    both = {park_letter(pg, parked_at=f"now() - interval '{days} days'", **CLOSED) for days in (29, 31)}
    drive(rt, PURGE_DEAD_LETTERS)
    assert left(pg) == both  # such a cut-off is none
