"""The effects of the built-in sweeps. ``{batch}`` is where the engine selects a page's rows."""

from typing import Final, LiteralString

# The last sign of life: a contact of the browser or an accepted push.
CONTACT: Final[LiteralString] = "GREATEST(last_seen_at, last_success_at)"

# While the guard of a push service is open, none of its rows ends or loses anything. In this form it stays a filter
# beside the others and halves the planner's estimate of a page; as an array it would divide it by twenty.
UNGUARDED: Final[LiteralString] = """push_service NOT IN (
   SELECT g.push_service FROM {schema}.push_guard AS g WHERE g.closed_at IS NULL)"""

# Quiet although we tried, or quiet for so long that trying no longer matters. The first condition is implied by
# both, and is what the index can use. Rows under a legal hold keep their state.
QUIET: Final[LiteralString] = f"""state = 'active' AND deleted_at IS NULL AND NOT legal_hold
 AND {CONTACT} < %(tried)s::timestamptz
 AND (last_tried_at > {CONTACT}
      OR {CONTACT} < %(untried)s::timestamptz)"""

AGE_STALE: Final[LiteralString] = """
WITH aged AS (
  UPDATE {schema}.push_subscription SET previous_state = state, state = 'stale', state_since = now()
   WHERE {batch} RETURNING id)
SELECT count(*)::int FROM aged"""

# A stale row has its full time in stale, in which one push a week may bring it back; a pending one is counted from
# its registration, and any contact since counts for it, as does an undo, which would else last until the next run.
AGED_OUT: Final[LiteralString] = f"""state IN ('pending', 'stale') AND deleted_at IS NULL AND NOT legal_hold
 AND {CONTACT} < GREATEST(%(pending)s::timestamptz, %(contact)s::timestamptz)
 AND CASE state
     WHEN 'stale' THEN
       state_since < %(stale)s::timestamptz AND {CONTACT} < %(contact)s::timestamptz
       AND (last_tried_at > {CONTACT}
            OR state_since < %(untried)s::timestamptz
               AND {CONTACT} < %(untried_contact)s::timestamptz)
     ELSE
       registered_at < %(pending)s::timestamptz AND {CONTACT} < %(pending)s::timestamptz
       AND state_since < %(pending)s::timestamptz
       AND (last_tried_at > {CONTACT}
            OR registered_at < %(untried)s::timestamptz
               AND {CONTACT} < %(untried)s::timestamptz)
     END
 AND {UNGUARDED}"""

# Ends and soft-deletes in one statement.
AGE_EXPIRED: Final[LiteralString] = """
WITH aged AS (
  UPDATE {schema}.push_subscription
     SET previous_state = state, state = 'expired', state_since = now(), revoked_at = now(), deleted_at = now(),
         end_reason = 'aged_out', end_run_id = %(run_id)s::uuid, user_agent = NULL, locale = NULL
   WHERE {batch} RETURNING id)
SELECT count(*)::int FROM aged"""

# The consent periods end with their rows. A statement of its own, with a snapshot of its own: where the effect waited
# for a detach, the period that the detach opened is one that only a later snapshot sees.
CLOSE_AGED_PERIODS: Final[LiteralString] = """
UPDATE {schema}.subscription_period AS p SET ended_at = greatest(now(), p.began_at), end_reason = 'aged_out'
  FROM {schema}.push_subscription AS s
 WHERE s.deleted_at = now() AND s.scrubbed_at IS NULL AND s.end_run_id = %(run_id)s::uuid
   AND p.endpoint_hash = s.endpoint_hash AND p.ended_at IS NULL"""

# Not deleted yet compares as unknown, so that IS NOT NULL would only spoil the planner's estimate of the page sizes.
UNDO_IS_OVER: Final[LiteralString] = f"""deleted_at < %(cutoff)s::timestamptz
 AND scrubbed_at IS NULL AND NOT legal_hold AND state IN ('expired', 'revoked')
 AND {UNGUARDED}"""

# What is left has no credential: nobody can send to it, and nobody can undo it.
SCRUB: Final[LiteralString] = """
WITH scrubbed AS (
  UPDATE {schema}.push_subscription
     SET endpoint = NULL, p256dh = NULL, auth_sealed = NULL, auth_key_version = NULL, scrubbed_at = now()
   WHERE {batch} RETURNING id)
SELECT count(*)::int FROM scrubbed"""

TOMBSTONE_OVER: Final[LiteralString] = f"""deleted_at < %(cutoff)s::timestamptz
 AND NOT legal_hold AND state IN ('expired', 'revoked')
 AND {UNGUARDED}"""

# Counted in the same statement, into a few rows of the batch's own. Day and lifetime are computed as the row goes
# and in hours, on the integers that timestamps are: in days and in zones they cost as much as the delete itself.
PURGE: Final[LiteralString] = """
WITH gone AS (
  DELETE FROM {schema}.push_subscription WHERE {batch}
  RETURNING date_bin('24 hours', revoked_at, timestamptz '2000-01-01 00:00:00+00') AS day,
            push_service, origin, end_reason,
            CASE WHEN created_at <= revoked_at - interval '8760 hours' THEN 5
                 WHEN created_at <= revoked_at - interval '2160 hours' THEN 4
                 WHEN created_at <= revoked_at - interval '720 hours' THEN 3
                 WHEN created_at <= revoked_at - interval '168 hours' THEN 2
                 WHEN created_at <= revoked_at - interval '24 hours' THEN 1
                 ELSE 0 END AS bucket),
counted AS (
  SELECT day, push_service, origin, end_reason, bucket, count(*)::int AS ended FROM gone GROUP BY 1, 2, 3, 4, 5),
kept AS (
  INSERT INTO {schema}.subscription_ended_batch (push_service, origin, end_reason, slots, ended)
  SELECT push_service, coalesce(origin, ''), end_reason,
         array_agg(((day::date - date '2000-01-01') << 3) + bucket), array_agg(ended)
    FROM counted GROUP BY 1, 2, 3)
SELECT coalesce(sum(ended), 0)::int FROM counted"""

ENDED_BATCHES: Final[LiteralString] = "SELECT count(*)::int FROM {schema}.subscription_ended_batch"

# Whoever comes second waits for the first and finds its rows gone; the days are written in key order, so that two
# never wait for each other crosswise.
FOLD_ENDED: Final[LiteralString] = """
WITH taken AS (
  DELETE FROM {schema}.subscription_ended_batch RETURNING push_service, origin, end_reason, slots, ended)
INSERT INTO {schema}.subscription_ended AS whole
       (day, push_service, origin, end_reason,
        under_1_day, from_1_day, from_7_days, from_30_days, from_90_days, from_365_days)
SELECT date '2000-01-01' + (g.slot >> 3), push_service, origin, end_reason,
       coalesce(sum(g.ended) FILTER (WHERE g.slot & 7 = 0), 0),
       coalesce(sum(g.ended) FILTER (WHERE g.slot & 7 = 1), 0),
       coalesce(sum(g.ended) FILTER (WHERE g.slot & 7 = 2), 0),
       coalesce(sum(g.ended) FILTER (WHERE g.slot & 7 = 3), 0),
       coalesce(sum(g.ended) FILTER (WHERE g.slot & 7 = 4), 0),
       coalesce(sum(g.ended) FILTER (WHERE g.slot & 7 = 5), 0)
  FROM taken, unnest(taken.slots, taken.ended) AS g (slot, ended)
 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
ON CONFLICT (day, push_service, origin, end_reason)
DO UPDATE SET under_1_day = whole.under_1_day + EXCLUDED.under_1_day,
              from_1_day = whole.from_1_day + EXCLUDED.from_1_day,
              from_7_days = whole.from_7_days + EXCLUDED.from_7_days,
              from_30_days = whole.from_30_days + EXCLUDED.from_30_days,
              from_90_days = whole.from_90_days + EXCLUDED.from_90_days,
              from_365_days = whole.from_365_days + EXCLUDED.from_365_days"""

PERIOD_OVER: Final[LiteralString] = "ended_at IS NOT NULL AND ended_at < %(cutoff)s::timestamptz"

PURGE_PERIODS: Final[LiteralString] = """
WITH gone AS (DELETE FROM {schema}.subscription_period WHERE {batch} RETURNING 1)
SELECT count(*)::int FROM gone"""

# Only of closed runs: an open one still counts by its receipts.
RECEIPT_OVER: Final[LiteralString] = """finished_at IS NOT NULL AND finished_at < %(cutoff)s::timestamptz
 AND run_id IN (SELECT r.run_id FROM {schema}.sweep_run AS r WHERE r.closed_at IS NOT NULL)"""

PURGE_RECEIPTS: Final[LiteralString] = """
WITH gone AS (DELETE FROM {schema}.sweep_batch WHERE {batch} RETURNING batch_id),
receipts AS (DELETE FROM {schema}.sweep_receipt AS r USING gone WHERE r.batch_id = gone.batch_id)
SELECT count(*)::int FROM gone"""

# A run stays for as long as something of it is in quarantine, and goes together with what was released long ago.
RUN_OVER: Final[LiteralString] = """closed_at IS NOT NULL AND closed_at < %(cutoff)s::timestamptz
 AND NOT EXISTS (SELECT FROM {schema}.sweep_batch AS b WHERE b.run_id = sweep_run.run_id)
 AND NOT EXISTS (SELECT FROM {schema}.sweep_quarantine AS q WHERE q.run_id = sweep_run.run_id
                  AND (q.released_at IS NULL OR q.released_at >= %(cutoff)s::timestamptz))"""

PURGE_RUNS: Final[LiteralString] = """
WITH gone AS (DELETE FROM {schema}.sweep_run WHERE {batch} RETURNING run_id),
released AS (
  DELETE FROM {schema}.sweep_quarantine AS q USING gone WHERE q.run_id = gone.run_id AND q.released_at IS NOT NULL)
SELECT count(*)::int FROM gone"""

# By the key first, which is what the walk can use. A message that was cancelled before it began has only its own end.
# One look into the one week that it could be in, for each message; a week that is gone has nothing to look into. What
# still names an object stays, since nobody else knows of it.
MESSAGE_OVER: Final[LiteralString] = """message_id < {schema}.id_floor(%(cutoff)s::timestamptz)
 AND closed_at < %(cutoff)s::timestamptz AND coalesce(expires_at, closed_at) < %(cutoff)s::timestamptz
 AND payload_ref IS NULL
 AND NOT EXISTS (SELECT FROM {schema}.push_dispatch AS d WHERE d.message_id = push_message.message_id)"""

PURGE_MESSAGES: Final[LiteralString] = """
WITH gone AS (DELETE FROM {schema}.push_message WHERE {batch} RETURNING 1)
SELECT count(*)::int FROM gone"""

# Closed: none of its recipients is due. A letter expires with its message, and so none is left that may be sent again;
# but who looks for it here needs no such rule of others.
PAYLOAD_OVER: Final[LiteralString] = """payload_ref IS NOT NULL
 AND coalesce(expires_at, closed_at) < %(cutoff)s::timestamptz AND closed_at IS NOT NULL
 AND NOT EXISTS (SELECT FROM {schema}.push_dlq AS d
                  WHERE d.message_id = push_message.message_id AND d.replay_state IN ('parked', 'claimed')
                    AND d.expires_at >= %(cutoff)s::timestamptz)"""

# Whoever has one claimed settles it, or the reaper parks it again: no holder loses its letter.
LETTER_STALE: Final[LiteralString] = "replay_state = 'parked' AND expires_at <= %(opened)s::timestamptz"

CLOSE_LETTERS: Final[LiteralString] = """
WITH closed AS (
  UPDATE {schema}.push_dlq
     SET replay_state = 'discarded', close_reason = 'ttl_expired', closed_by = 'close-dead-letters', closed_at = now()
   WHERE {batch} RETURNING 1)
SELECT count(*)::int FROM closed"""

# From its parking on, so that whoever closes one late keeps it no longer.
LETTER_OVER: Final[LiteralString] = "closed_at IS NOT NULL AND parked_at < %(cutoff)s::timestamptz"

PURGE_LETTERS: Final[LiteralString] = """
WITH gone AS (DELETE FROM {schema}.push_dlq WHERE {batch} RETURNING replay_key),
attempts AS (DELETE FROM {schema}.push_dlq_attempt AS a USING gone WHERE a.replay_key = gone.replay_key)
SELECT count(*)::int FROM gone"""

# What waits for somebody's judgement stays, however long.
EVIDENCE_OVER: Final[LiteralString] = "at < %(cutoff)s::timestamptz AND state <> 'pending'"

PURGE_EVIDENCE: Final[LiteralString] = """
WITH gone AS (DELETE FROM {schema}.push_evidence WHERE {batch} RETURNING 1)
SELECT count(*)::int FROM gone"""

ANSWER_OVER: Final[LiteralString] = "minute < %(cutoff)s::timestamptz"

PURGE_ANSWERS: Final[LiteralString] = """
WITH gone AS (DELETE FROM {schema}.push_answer WHERE {batch} RETURNING 1)
SELECT count(*)::int FROM gone"""

AUDIT_OVER: Final[LiteralString] = """audit_id < {schema}.id_floor(%(cutoff)s::timestamptz)
 AND at < %(cutoff)s::timestamptz"""

PURGE_AUDIT: Final[LiteralString] = """
WITH gone AS (DELETE FROM {schema}.audit WHERE {batch} RETURNING 1)
SELECT count(*)::int FROM gone"""
