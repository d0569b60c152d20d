"""What fault tests of replays share: workers that stand at a step, leases lost, what holds at the end."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg

from pushops import tasks
from pushops.deadletters import service as replays
from pushops.runtime import Runtime
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Pg
from tests.sweeping import count, expire_leases, wait_until
from tests.unsettled import sending

SCHEDULE: Final[Mapping[str, Mapping[str, Any]]] = {
    name: {"task": f"pushops.{name}", "schedule": every, "options": {"expires": 1.0}}
    for name, every in {"tend_sweeps": 0.3, "reap_claims": 0.5}.items()
}
OUTCOMES: Final = """
SELECT key, sum(value::int)::int FROM pushops.sweep_run, jsonb_each_text(outcomes)
 GROUP BY key HAVING sum(value::int) > 0"""
LETTERS: Final = """
SELECT s.endpoint, d.replay_state, d.close_reason, d.on_in_doubt, d.claim_token, d.claimed_until,
       count(a.replay_key) FILTER (WHERE a.settled_at IS NULL) AS open,
       count(a.replay_key) FILTER (WHERE a.outcome IN ('in_doubt', 'ambiguous')) AS doubts,
       count(a.replay_key) FILTER (WHERE a.outcome = 'accepted') AS accepted
  FROM pushops.push_dlq AS d JOIN pushops.push_subscription AS s ON s.id = d.subscription_id
  LEFT JOIN pushops.push_dlq_attempt AS a ON a.replay_key = d.replay_key AND a.kind = 'replay'
 GROUP BY d.dlq_id, s.endpoint"""

# Whoever changes a letter after its end is written down: late holders must not.
WATCH: Final = """
CREATE TABLE pushops.changed_after_its_end (dlq_id uuid, was text, is_now text);
CREATE FUNCTION pushops.watch_ends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO pushops.changed_after_its_end VALUES (old.dlq_id, old.replay_state, new.replay_state);
  RETURN new;
END $$;
CREATE TRIGGER watch_ends BEFORE UPDATE ON pushops.push_dlq FOR EACH ROW
  WHEN (old.replay_state IN ('replayed', 'discarded')) EXECUTE FUNCTION pushops.watch_ends()"""
CLAIMED: Final = "SELECT count(*) FROM pushops.push_dlq WHERE replay_state = 'claimed'"
OPENED: Final = "SELECT count(*) FROM pushops.push_dlq_attempt WHERE kind = 'replay' AND settled_at IS NULL"
PARKED: Final = "SELECT count(*) FROM pushops.push_dlq WHERE replay_state = 'parked'"

EVERYTHING: Final = {"class": "retry_exhausted"}  # what tests park


def ask(times: int = 1, **words: Any) -> None:
    """The task that a beat or an operator calls."""
    for _ in range(times):
        tasks.drain_dlq.delay(**words or EVERYTHING)


def replaying(settings: Settings, service: PushService, broker_url: str, **changes: Any) -> Settings:
    """Settings of workers that replay at once: nothing of the pace in the way unless a test wants it."""
    return sending(
        settings, service, broker_url, **{"replay_share": 1.0, "sweep_grace": timedelta(seconds=1)} | changes
    )


def run_over(pg: Pg) -> bool:
    """Whether a run was opened, and none is any more."""
    query = "SELECT count(*) > 0 AND bool_and(closed_at IS NOT NULL) FROM pushops.sweep_run"
    found = pg.execute(query).fetchone()
    return found is not None and bool(found[0])


def the_run(pg: Pg) -> UUID:
    """The one that is open, waited for."""
    query = "SELECT run_id FROM pushops.sweep_run WHERE closed_at IS NULL"
    found: UUID = wait_until(lambda: pg.execute(query).fetchone(), expected="an open run")[0]
    return found


def ends_of_runs(pg: Pg) -> list[tuple[str, str | None]]:
    return pg.execute("SELECT state, why FROM pushops.sweep_run ORDER BY opened_at").fetchall()


@contextmanager
def holding(settings: Settings, lock: str) -> Iterator[None]:
    """A lock in the way of everybody, on a connection of the test's own."""
    with psycopg.connect(settings.database_url.get_secret_value()) as conn:  # type: ignore[union-attr]
        conn.execute(lock.encode())
        yield
        conn.rollback()


def standing(pg: Pg) -> list[int]:
    """The backends of this database that wait for a lock."""
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND pid <> pg_backend_pid()"
    )
    return [row[0] for row in pg.execute(query).fetchall()]


def wait_for_the_dead(pg: Pg) -> None:
    """Until PostgreSQL has seen that the killed are gone: what their sessions had not committed is undone by then."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state <> 'idle'"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    wait_until(lambda: count(pg, query) == 0, expected="no session of the dead")


def lose_claims(pg: Pg) -> None:
    """The leases of whoever is dead run out, of letters, batches and slots: the rows are aged, not the clock."""
    pg.execute(
        "UPDATE pushops.push_dlq SET claimed_until = clock_timestamp() - interval '1 ms' WHERE replay_state = 'claimed'"
    )
    expire_leases(pg)


@dataclass(frozen=True)
class Reaped:
    """``untried`` are parked as they were, ``doubted`` may have been sent."""

    untried: int
    doubted: int


def reap(rt: Runtime, pg: Pg) -> Reaped:
    wait_for_the_dead(pg)
    lose_claims(pg)
    found = [each.opened for each in replays.reap(rt)]
    return Reaped(found.count(False), found.count(True))


def watch_ends(pg: Pg) -> None:
    pg.execute(WATCH)


def changed_after_its_end(pg: Pg) -> int:
    return count(pg, "SELECT count(*) FROM pushops.changed_after_its_end")


def outcomes(pg: Pg) -> dict[str, int]:
    """What all runs together say of their letters."""
    return dict(pg.execute(OUTCOMES).fetchall())


def at_most_once(pg: Pg, service: PushService) -> None:
    """Every letter has a named end or is parked, and the push service agrees with what the tables say of each."""
    with pg.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        letters = cursor.execute(LETTERS).fetchall()
    accepted = service.accepted([each["endpoint"] for each in letters])
    found = {
        each["endpoint"][-12:]: wrong
        for each, times in zip(letters, accepted, strict=True)
        if (wrong := _wrong(each, times))
    }
    assert not found, found


def _wrong(letter: Mapping[str, Any], times: int) -> str | None:
    if letter["replay_state"] == "claimed" or letter["claim_token"] or letter["claimed_until"] or letter["open"]:
        return "still in somebody's hands"
    if letter["replay_state"] != "parked" and not letter["close_reason"]:
        return "an end without a name"
    doubts = letter["doubts"]
    if times > (1 if letter["on_in_doubt"] == "discard" else 1 + doubts):
        return f"accepted {times} times, in doubt {doubts} times"
    if letter["replay_state"] == "replayed" and (times < 1 or letter["accepted"] != 1):
        return "said to be replayed"
    if times and letter["replay_state"] != "replayed" and not doubts:
        return f"accepted {times} times, and nothing says so"
    return None


def as_counted(pg: Pg) -> None:
    """The runs' own counts are the letters' ends."""
    ends: Counter[str] = Counter(
        dict(pg.execute("SELECT close_reason, count(*)::int FROM pushops.push_dlq GROUP BY 1").fetchall())
    )
    said = outcomes(pg)
    assert (said.get("replayed", 0), said.get("in_doubt", 0)) == (ends["replayed"], ends["in_doubt"])
