"""Two templates: a message whose recipients are all due, and the same message after all of them became letters."""

from datetime import timedelta
from typing import Any, Final, LiteralString

import psycopg

from bench.house import House, say
from bench.sending import people
from bench.sending.job import KEY_ID, PAYLOAD, WARM
from bench.sending.web import Web
from bench.timing import connected
from pushops.deadletters import writer
from pushops.deadletters.store import parking
from pushops.delivery import fanning, finishing, sending
from pushops.delivery.fanning import FanOut
from pushops.runtime import Runtime, runtime
from pushops.settings import load_settings
from pushops.subscriptions.keychain import keychain

DUE: Final = "due"
LETTERS: Final = "letters"
DAY: Final = timedelta(days=1)  # nothing expires while it is measured
ATTEMPTS: Final = 10  # as many as a message has by default
NOW: Final = timedelta()

# The first of them are somebody: live messages go to them.
_NAME: Final[LiteralString] = """
UPDATE pushops.push_subscription AS s SET user_id = 'user-' || n
  FROM (SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM pushops.push_subscription
         ORDER BY id LIMIT %(live)s::int) AS first WHERE first.id = s.id"""
# As settling leaves a row whose push service answered 503 ten times within an hour.
_FAIL: Final[LiteralString] = """
UPDATE pushops.push_dispatch AS d
   SET state = 'ended', outcome = 'exhausted', ended_at = now(), status = 503, code = 'unavailable',
       snippet = 'Service Unavailable', attempts = tries.n, wait = 'retry', registration_no = s.registration_no,
       first_attempt_at = now() - interval '1 hour', last_attempt_at = now(), history = tries.history
  FROM pushops.push_subscription AS s,
       (SELECT count(*) AS n, jsonb_agg(
                 jsonb_build_object('n', n, 'at', now() - (%(attempts)s::int - n) * interval '6 minutes', 'status', 503,
                                    'code', 'unavailable', 'outcome', 'unavailable', 'snippet', 'Service Unavailable')
                 ORDER BY n) AS history
          FROM generate_series(1, %(attempts)s::int) AS n) AS tries
 WHERE s.id = d.subscription_id"""
_OWE: Final[LiteralString] = """
INSERT INTO pushops.push_unparked (message_id, endpoint_hash, error_class, ended_at)
SELECT message_id, endpoint_hash, 'retry_exhausted', ended_at FROM pushops.push_dispatch"""
# The first letters are written by whoever writes letters. The rest say what the first one says, of other recipients:
# the writer's way takes a millisecond each.
_COPY: Final[LiteralString] = """
WITH first AS MATERIALIZED (SELECT * FROM pushops.push_dlq LIMIT 1),
rest AS (
  INSERT INTO pushops.push_dlq
         (message_id, subscription_id, endpoint_hash, owner_no, replay_key, endpoint_host, push_service, campaign_id,
          payload_ref, attempt_count, first_attempt_at, last_attempt_at, terminal_status, error_class, error_code,
          error_snippet, original_ttl, expires_at, replayable, on_in_doubt, in_doubt)
  SELECT d.message_id, d.subscription_id, d.endpoint_hash, d.owner_no,
         pushops.replay_key(d.message_id, d.subscription_id), f.endpoint_host, f.push_service, f.campaign_id,
         f.payload_ref, f.attempt_count, f.first_attempt_at, f.last_attempt_at, f.terminal_status, f.error_class,
         f.error_code, f.error_snippet, f.original_ttl, f.expires_at, f.replayable, f.on_in_doubt, f.in_doubt
    FROM first AS f JOIN pushops.push_dispatch AS d USING (message_id)
    JOIN pushops.push_unparked AS u ON u.message_id = d.message_id AND u.endpoint_hash = d.endpoint_hash
   ORDER BY d.endpoint_hash
  RETURNING replay_key)
INSERT INTO pushops.push_dlq_attempt (replay_key, attempt, kind, at, settled_at, outcome, status, code, snippet)
SELECT r.replay_key, a.attempt, a.kind, a.at, a.settled_at, a.outcome, a.status, a.code, a.snippet
  FROM rest AS r CROSS JOIN first AS f JOIN pushops.push_dlq_attempt AS a ON a.replay_key = f.replay_key"""
_PAID: Final[LiteralString] = "DELETE FROM pushops.push_unparked"
# What a night leaves to be looked at in ten seconds is looked at now.
_HASTEN: Final[LiteralString] = "UPDATE pushops.push_message SET look_at = now()"
_COUNTS: Final[LiteralString] = """
SELECT (SELECT count(*) FROM pushops.push_dlq WHERE replay_state = 'parked'),
       (SELECT count(*) FROM pushops.push_dlq_attempt), (SELECT count(*) FROM pushops.push_unparked),
       (SELECT count(*) FROM pushops.push_message WHERE state = 'closed')"""


def build(house: House, web: Web, count: int) -> None:
    """Make both; ``count`` recipients, to ``WARM`` of whom live messages go, too."""
    say(f"making {count:,} subscriptions, one message to them, and {count:,} letters")
    assert count >= WARM, f"expected at least {WARM} letters, got {count}"
    people.store(house, web.issue(count, keychain(load_settings()).vapid[KEY_ID].public_text))
    house.clone(people.TEMPLATE)
    with connected(house) as conn, runtime(load_settings()) as rt:
        conn.execute(_NAME, {"live": WARM})
        _fan_out(rt, count)
        _vacuum(conn)
    house.keep(DUE)
    house.clone(DUE)
    with connected(house) as conn, runtime(load_settings()) as rt:
        _fail(conn, rt)
        _vacuum(conn)
        found = conn.execute(_COUNTS).fetchone()
    assert found == (count, count * ATTEMPTS, 0, 1), f"expected {count} letters of a message that is over, got {found}"
    house.keep(LETTERS)


def _fan_out(rt: Runtime, count: int) -> None:
    made = sending.send(rt, PAYLOAD, everyone=True, ttl=DAY, campaign="night", actor="bench")
    rows, outcome = 0, FanOut.MORE
    while outcome is FanOut.MORE:
        found = fanning.fan_out(rt, made.message_id)
        rows, outcome = rows + found.rows, found.outcome
    assert rows == count, f"expected {count} recipients, got {rows}"


def _fail(conn: psycopg.Connection[Any], rt: Runtime) -> None:
    """Every row ends as a night of 503s leaves it, and becomes a letter."""
    conn.execute(_FAIL, {"attempts": ATTEMPTS})
    conn.execute(_OWE)
    with rt.db.transaction() as tx:
        letters = parking.owed(tx, older=NOW, after=None, limit=WARM)
    writer.write(rt, letters)
    conn.execute(_COPY)
    conn.execute(_PAID)
    conn.execute(_HASTEN)
    finishing.finish(rt)


def _vacuum(conn: psycopg.Connection[Any]) -> None:
    conn.execute("CHECKPOINT")  # vacuum marks nothing as visible whose asynchronous commit is not flushed yet
    conn.execute("VACUUM ANALYZE")
