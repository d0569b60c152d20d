"""Letters in hand: sifted by the gates, claimed with a token, opened before they are sent, settled and released.

A letter is claimed by its token, and only whoever holds it may open or settle. An attempt is written down before its
request goes out, so that nobody who comes later can take it for unsent.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, LiteralString, TypeVar
from uuid import UUID

from pushops.db import Tx
from pushops.deadletters.store.gates import STANDING, VERDICT
from pushops.sweeps import sql

Row = TypeVar("Row")
Rows = Sequence[Mapping[str, Any]]

_LOOKED_AT: Final = """dlq_id, message_id, subscription_id, endpoint_hash, endpoint_host, push_service, owner, owner_no,
         campaign_id, payload_ref, expires_at, replayable, on_in_doubt, in_doubt, replay_key, attempt_count,
         replay_count, first_attempt_at, error_code, error_snippet"""
_CLOSE: Final = """replay_state = 'discarded', closed_by = %(by)s::text, closed_at = now(), claim_token = NULL,
         claimed_until = NULL, run_id = coalesce(%(run_id)s::uuid, d.run_id)"""
# Only what is claimed has a token, as the table says. The state is not named: with it, a planner who believes that few
# are claimed reads all that anybody has claimed, for every letter that is meant.
_MINE: Final = "d.claim_token = %(token)s::uuid"

# What the gates end is ended, what they let through is named. Only what ends is locked: a page is looked at several
# times where the pace is slow. Rows that somebody else has in hand by then are left to them, and not named.
_SIFT: Final = (
    """
WITH page AS MATERIALIZED (
  SELECT """
    + _LOOKED_AT
    + """ FROM {schema}.push_dlq WHERE {batch}),
judged AS MATERIALIZED (
  SELECT d.dlq_id, d.push_service, m.rendered, n.lane_id, s.push_service AS label, d.endpoint_host AS host,
         coalesce(s.vapid_key_id, '') AS vapid_key_id,"""
    + VERDICT
    + " AS verdict FROM page AS d"
    + STANDING
    + """),
doomed AS MATERIALIZED (
  SELECT d.dlq_id, j.verdict FROM judged AS j JOIN {schema}.push_dlq AS d USING (dlq_id)
   WHERE j.verdict <> 'held' AND d.replay_state = 'parked' ORDER BY d.dlq_id FOR UPDATE OF d SKIP LOCKED),
ended AS (
  UPDATE {schema}.push_dlq AS d SET close_reason = j.verdict, """
    + _CLOSE
    + """
    FROM doomed AS j WHERE d.dlq_id = j.dlq_id RETURNING d.dlq_id)
SELECT * FROM judged AS j
 WHERE coalesce(j.verdict, 'held') = 'held' OR j.dlq_id IN (SELECT dlq_id FROM ended) ORDER BY dlq_id"""
)

# Between a look and this nobody may have had it: what another drain parked again is left to its time.
CLAIM: Final[LiteralString] = """
WITH picked AS MATERIALIZED (
  SELECT dlq_id FROM {schema}.push_dlq
   WHERE dlq_id = ANY (%(ids)s::uuid[]) AND replay_state = 'parked' AND next_replay_at <= clock_timestamp()
   ORDER BY dlq_id FOR UPDATE SKIP LOCKED)
UPDATE {schema}.push_dlq AS d
   SET replay_state = 'claimed', claim_token = %(token)s::uuid, run_id = %(run_id)s::uuid,
       claimed_until = clock_timestamp() + %(lease)s::interval
  FROM picked AS p WHERE d.dlq_id = p.dlq_id
RETURNING d.dlq_id"""

# The gates once more, at the moment of sending; whoever passes has an attempt from here on. Half a lease is left at
# least: a request that was begun is over before anybody may take the letter from us.
_OPEN: Final = (
    """
WITH mine AS MATERIALIZED (
  SELECT """
    + _LOOKED_AT
    + """ FROM {schema}.push_dlq AS d
   WHERE dlq_id = ANY (%(ids)s::uuid[]) AND {mine} FOR UPDATE),
judged AS MATERIALIZED (
  SELECT d.dlq_id, d.replay_key, d.replay_count, d.on_in_doubt, d.message_id, d.endpoint_hash, d.subscription_id,
         d.owner AS user_id, n.lane_id, d.attempt_count, d.expires_at, d.first_attempt_at, d.error_code AS last_code,
         d.error_snippet AS last_snippet, s.endpoint, s.p256dh, s.auth_sealed, s.auth_key_version, s.vapid_key_id,
         s.registration_no, s.push_service, s.locale, s.tags, s.max_payload, d.campaign_id, m.payload_ref,
         m.payload_key_version, m.rendered, m.ttl, m.urgency, m.topic, m.on_ambiguous, n.push_service AS service,
         1 + greatest(d.attempt_count, tries.last) AS attempt,"""
    + VERDICT
    + " AS verdict FROM mine AS d"
    + STANDING
    + """),
opened AS (
  INSERT INTO {schema}.push_dlq_attempt (replay_key, attempt, kind, run_id, forced)
  SELECT replay_key, attempt, 'replay', %(run_id)s::uuid, %(why)s::text FROM judged
   WHERE verdict IS NULL AND lane_id IS NOT NULL
  ON CONFLICT DO NOTHING RETURNING replay_key),
ended AS (
  UPDATE {schema}.push_dlq AS d SET close_reason = j.verdict, """
    + _CLOSE
    + """
    FROM judged AS j WHERE d.dlq_id = j.dlq_id AND j.verdict <> 'held'),
let_go AS (
  UPDATE {schema}.push_dlq AS d SET replay_state = 'parked', claim_token = NULL, claimed_until = NULL
    FROM judged AS j
   WHERE d.dlq_id = j.dlq_id AND coalesce(j.verdict, 'held') = 'held'
     AND j.replay_key NOT IN (SELECT replay_key FROM opened))
SELECT j.dlq_id, j.replay_key, j.attempt, j.replay_count, j.on_in_doubt, j.message_id, j.endpoint_hash,
       j.subscription_id, j.user_id, j.lane_id, j.attempt_count AS attempts, 0 AS repeats, 0 AS ambiguous, j.expires_at,
       j.first_attempt_at, NULL::text AS wait, j.last_code, j.last_snippet, j.endpoint, j.p256dh, j.auth_sealed,
       j.auth_key_version, j.vapid_key_id, j.registration_no, j.push_service, j.locale, j.tags, j.max_payload,
       j.campaign_id, j.payload_ref, j.payload_key_version, j.rendered, j.ttl, j.urgency, j.topic, j.on_ambiguous,
       0 AS picked, j.service,
       CASE WHEN j.replay_key NOT IN (SELECT replay_key FROM opened) THEN coalesce(j.verdict, 'held') END AS verdict
  FROM judged AS j ORDER BY j.dlq_id"""
)
OPEN: Final[LiteralString] = sql.literal(
    _OPEN.replace("{mine}", _MINE + " AND claimed_until > clock_timestamp() + %(lease)s::interval / 2")
)
# A closed letter is never claimed, and stays what it is while it is sent once more: its attempt alone says so. Whoever
# asks for a second one meanwhile finds the first.
OPEN_CLOSED: Final[LiteralString] = sql.literal(
    _OPEN.replace(
        "{mine}",
        """d.closed_at IS NOT NULL AND NOT EXISTS (
      SELECT FROM {schema}.push_dlq_attempt AS a
       WHERE a.replay_key = d.replay_key AND a.settled_at IS NULL AND a.at > now() - %(lease)s::interval)""",
    )
)

# One letter, closed or not, and what the gates say of it; whoever asks is alone with it until they commit.
ONE: Final[LiteralString] = (
    """
WITH letter AS MATERIALIZED (
  SELECT """
    + _LOOKED_AT
    + """, replay_state, close_reason FROM {schema}.push_dlq WHERE dlq_id = %(dlq_id)s::uuid FOR UPDATE)
SELECT d.dlq_id, d.push_service, m.rendered, n.lane_id, s.push_service AS label, d.endpoint_host AS host,
       coalesce(s.vapid_key_id, '') AS vapid_key_id, d.replay_state, d.close_reason,"""
    + VERDICT
    + " AS verdict FROM letter AS d"
    + STANDING
)
# An operator's own claim does not wait for the end of a back-off.
TAKE: Final[LiteralString] = """
UPDATE {schema}.push_dlq
   SET replay_state = 'claimed', claim_token = %(token)s::uuid,
       claimed_until = clock_timestamp() + %(lease)s::interval
 WHERE dlq_id = %(dlq_id)s::uuid AND replay_state = 'parked'"""

# The many: their attempt with them, and only where the letter is still ours.
SETTLE_ACCEPTED: Final[LiteralString] = (
    """
WITH kept AS (
  UPDATE {schema}.push_dlq AS d
     SET replay_state = 'replayed', close_reason = %(reason)s::text, closed_by = %(by)s::text, closed_at = now(),
         close_note = %(why)s::text, claim_token = NULL, claimed_until = NULL, attempt_count = d.attempt_count + 1,
         last_attempt_at = now()
    FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[], %(statuses)s::integer[]) AS r (dlq_id, attempt, status)
   WHERE d.dlq_id = r.dlq_id AND """
    + _MINE
    + """ RETURNING d.dlq_id, d.replay_key, r.attempt, r.status)
UPDATE {schema}.push_dlq_attempt AS a SET settled_at = now(), outcome = 'accepted', status = k.status
  FROM kept AS k WHERE a.replay_key = k.replay_key AND a.attempt = k.attempt
RETURNING k.dlq_id"""
)

# What was not accepted. state says what becomes of the letter; a status that never stands in a letter (404, 410, 429)
# comes as no error of it, and stands in its attempt only.
SETTLE: Final[LiteralString] = (
    """
WITH settled AS MATERIALIZED (
  SELECT * FROM json_to_recordset(%(rows)s::json) AS r
         (dlq_id uuid, attempt integer, outcome text, status integer, code text, snippet text, state text,
          close_reason text, poison boolean, spends boolean, in_doubt boolean, of_letter boolean,
          next_replay_at timestamptz)),
kept AS (
  UPDATE {schema}.push_dlq AS d
     SET replay_state = r.state, close_reason = r.close_reason,
         closed_by = CASE WHEN r.close_reason IS NOT NULL THEN %(by)s::text END,
         closed_at = CASE WHEN r.close_reason IS NOT NULL THEN now() END,
         claim_token = NULL, claimed_until = NULL, in_doubt = d.in_doubt OR r.in_doubt,
         error_class = CASE WHEN r.poison THEN 'poison' ELSE d.error_class END,
         attempt_count = d.attempt_count + r.spends::integer, replay_count = d.replay_count + r.spends::integer,
         last_attempt_at = CASE WHEN r.spends THEN now() ELSE d.last_attempt_at END,
         terminal_status = CASE WHEN r.of_letter THEN r.status ELSE d.terminal_status END,
         error_code = CASE WHEN r.of_letter THEN r.code ELSE d.error_code END,
         error_snippet = CASE WHEN r.of_letter THEN r.snippet ELSE d.error_snippet END,
         next_replay_at = coalesce(r.next_replay_at, d.next_replay_at)
    FROM settled AS r WHERE d.dlq_id = r.dlq_id AND """
    + _MINE
    + """ RETURNING d.dlq_id, d.replay_key, r.attempt, r.outcome, r.status, r.code, r.snippet)
UPDATE {schema}.push_dlq_attempt AS a
   SET settled_at = now(), outcome = k.outcome, status = k.status, code = k.code, snippet = k.snippet
  FROM kept AS k WHERE a.replay_key = k.replay_key AND a.attempt = k.attempt
RETURNING k.dlq_id"""
)

# A closed letter that was sent once more: taken, it was replayed after all; not taken, it is closed as it was.
SETTLE_CLOSED: Final[LiteralString] = """
WITH settled AS MATERIALIZED (
  SELECT *, r.outcome = 'accepted' AS taken FROM json_to_recordset(%(rows)s::json) AS r
         (dlq_id uuid, attempt integer, outcome text, status integer, code text, snippet text, in_doubt boolean)),
kept AS (
  UPDATE {schema}.push_dlq AS d
     SET attempt_count = d.attempt_count + 1, last_attempt_at = now(), in_doubt = d.in_doubt OR r.in_doubt,
         replay_state = CASE WHEN r.taken THEN 'replayed' ELSE d.replay_state END,
         close_reason = CASE WHEN r.taken THEN 'resent' ELSE d.close_reason END,
         closed_by = CASE WHEN r.taken THEN %(by)s::text ELSE d.closed_by END,
         closed_at = CASE WHEN r.taken THEN now() ELSE d.closed_at END,
         close_note = CASE WHEN r.taken THEN %(why)s::text ELSE d.close_note END
    FROM settled AS r WHERE d.dlq_id = r.dlq_id AND d.closed_at IS NOT NULL
  RETURNING d.dlq_id, d.replay_key, r.attempt, r.outcome, r.status, r.code, r.snippet)
UPDATE {schema}.push_dlq_attempt AS a
   SET settled_at = now(), outcome = k.outcome, status = k.status, code = k.code, snippet = k.snippet
  FROM kept AS k WHERE a.replay_key = k.replay_key AND a.attempt = k.attempt
RETURNING k.dlq_id"""
FORGET: Final[LiteralString] = """
DELETE FROM {schema}.push_dlq_attempt AS a
 USING unnest(%(opened)s::uuid[], %(attempts)s::integer[]) AS r (dlq_id, attempt)
  JOIN {schema}.push_dlq AS d ON d.dlq_id = r.dlq_id AND d.closed_at IS NOT NULL
 WHERE a.replay_key = d.replay_key AND a.attempt = r.attempt AND a.kind = 'replay' AND a.settled_at IS NULL"""

# As if nobody had had it; an attempt that was opened and never sent was none.
RELEASE: Final[LiteralString] = (
    """
WITH freed AS (
  UPDATE {schema}.push_dlq AS d SET replay_state = 'parked', claim_token = NULL, claimed_until = NULL
   WHERE d.dlq_id = ANY (%(ids)s::uuid[]) AND """
    + _MINE
    + """ RETURNING d.dlq_id, d.replay_key),
unsent AS (
  DELETE FROM {schema}.push_dlq_attempt AS a
   USING freed AS f, unnest(%(opened)s::uuid[], %(attempts)s::integer[]) AS r (dlq_id, attempt)
   WHERE r.dlq_id = f.dlq_id AND a.replay_key = f.replay_key AND a.attempt = r.attempt AND a.kind = 'replay'
     AND a.settled_at IS NULL)
SELECT count(*)::integer FROM freed"""
)


@dataclass(frozen=True, slots=True)
class Sifted:
    """A letter as the gates found it. ``verdict`` None: it may be sent. ``label``: of the subscription's own host."""

    dlq_id: UUID
    push_service: str
    rendered: bool | None
    lane_id: int | None
    label: str | None
    host: str
    vapid_key_id: str
    verdict: str | None


@dataclass(frozen=True, slots=True)
class Letter(Sifted):
    """A letter as it stands, and as the gates find it."""

    replay_state: str
    close_reason: str | None


def sifting(clause: str) -> LiteralString:
    """The statement that sifts the letters of a clause."""
    return sql.literal(_SIFT.replace("{batch}", clause))


def sift(
    tx: Tx, clause: str, values: Mapping[str, Any], gates: Mapping[str, Any], *, by: str, run_id: UUID | None
) -> list[Sifted]:
    """End what the gates end, among the letters that ``clause`` selects; all of them as they were found."""
    return tx.rows(sifting(clause), {**values, **gates, "by": by, "run_id": run_id}, Sifted)


def claim(tx: Tx, ids: Collection[UUID], *, token: UUID, lease: timedelta, run_id: UUID | None) -> set[UUID]:
    """Those of them that are ours now."""
    return set(tx.scalars(CLAIM, {"ids": list(ids), "token": token, "lease": lease, "run_id": run_id}))


def open_letters(
    tx: Tx,
    ids: Collection[UUID],
    gates: Mapping[str, Any],
    row: type[Row],
    *,
    token: UUID,
    lease: timedelta,
    by: str,
    run_id: UUID | None,
    why: str | None = None,
    closed: bool = False,
) -> list[Row]:
    """Judge once more and open an attempt for what passes; ``verdict`` None says that it did. ``why``: it is forced.

    ``closed``: of closed letters, which nobody claims; where a gate keeps one, the caller rolls back.
    """
    values = {"ids": list(ids), "token": token, "lease": lease, "by": by, "run_id": run_id, "why": why}
    return tx.rows(OPEN_CLOSED if closed else OPEN, values | dict(gates), row)


def one(tx: Tx, dlq_id: UUID, gates: Mapping[str, Any]) -> Letter | None:
    """A letter with its lock; None where there is none."""
    return tx.maybe(ONE, {"dlq_id": dlq_id, **gates}, Letter)


def take(tx: Tx, dlq_id: UUID, *, token: UUID, lease: timedelta) -> bool:
    """Claim a parked letter whatever it waits for."""
    return tx.run(TAKE, {"dlq_id": dlq_id, "token": token, "lease": lease}) == 1


def settle_accepted(
    tx: Tx,
    token: UUID,
    ids: Sequence[UUID],
    attempts: Sequence[int],
    statuses: Sequence[int | None],
    *,
    by: str,
    reason: str,
    why: str | None = None,
) -> set[UUID]:
    """Those that were still ours."""
    values = {"token": token, "ids": list(ids), "attempts": list(attempts), "statuses": list(statuses)}
    return set(tx.scalars(SETTLE_ACCEPTED, values | {"by": by, "reason": reason, "why": why}))


def settle(tx: Tx, token: UUID, rows: Rows, *, by: str) -> set[UUID]:
    """Settle what was not accepted, rows with SETTLE's columns; those that were still ours."""
    return set(tx.scalars(SETTLE, {"token": token, "rows": json.dumps(list(rows)), "by": by}))


def settle_closed(tx: Tx, rows: Rows, *, by: str, why: str | None) -> set[UUID]:
    """Settle attempts at closed letters, rows with SETTLE_CLOSED's columns."""
    return set(tx.scalars(SETTLE_CLOSED, {"rows": json.dumps(list(rows)), "by": by, "why": why}))


def forget(tx: Tx, opened: Mapping[UUID, int]) -> None:
    """Of attempts at closed letters that were never sent nothing is left."""
    tx.run(FORGET, {"opened": list(opened), "attempts": list(opened.values())})


def release(tx: Tx, token: UUID, ids: Collection[UUID], opened: Mapping[UUID, int]) -> int:
    """Give back what was claimed; ``opened`` says which of it has an attempt that was never sent."""
    values = {"token": token, "ids": list(ids), "opened": list(opened), "attempts": list(opened.values())}
    return int(tx.scalar(RELEASE, values))
