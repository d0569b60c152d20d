-- Subscriptions, their consent trail, the counters they fold into, and the sweep engine's tables.

-- Neighbours in key order are neighbours on disk. PostgreSQL 18 has uuidv7(); before it, ours does the same:
-- 48 bits of milliseconds, then the version, the sub-millisecond part, the variant and 62 random bits.
DO $do$
BEGIN
  IF current_setting('server_version_num')::int >= 180000 THEN
    CREATE FUNCTION {schema}.new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE
      RETURN pg_catalog.uuidv7();
  ELSE
    CREATE FUNCTION {schema}.new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $fn$
      SELECT encode(
        substring(int8send(floor(extract(epoch FROM t) * 1000)::bigint) FROM 3)  -- a cast alone rounds up
        || set_byte(
             set_byte(substring(uuid_send(gen_random_uuid()) FROM 7 FOR 10), 0,
                      112 + ((extract(microseconds FROM t)::bigint % 1000) * 4096 / 1000 / 256)::int),
             1, ((extract(microseconds FROM t)::bigint % 1000) * 4096 / 1000 % 256)::int), 'hex')::uuid
        FROM clock_timestamp() AS t
    $fn$;
  END IF;
END
$do$;

CREATE TABLE {schema}.push_subscription (
  id                 uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  endpoint_hash      bytea NOT NULL,
  endpoint           text,
  push_service       text NOT NULL,
  p256dh             text,
  auth_sealed        bytea,
  auth_key_version   integer,
  vapid_key_id       text,
  vapid_key_assumed  boolean NOT NULL DEFAULT false,
  content_encoding   text NOT NULL DEFAULT 'aes128gcm',
  expiration_time    timestamptz,
  user_id            text,
  tags               text[] NOT NULL DEFAULT '{}',
  user_agent         text,
  locale             text,
  origin             text,
  state              text NOT NULL DEFAULT 'pending',
  previous_state     text,
  state_since        timestamptz NOT NULL DEFAULT now(),
  registration_no    bigint NOT NULL DEFAULT 1,
  created_at         timestamptz NOT NULL DEFAULT now(),
  registered_at      timestamptz NOT NULL DEFAULT now(),
  last_seen_at       timestamptz NOT NULL DEFAULT now(),
  last_success_at    timestamptz,
  last_tried_at      timestamptz,
  last_failure_at    timestamptz,
  last_status        integer,
  votes              integer NOT NULL DEFAULT 0,
  first_vote_at      timestamptz,
  last_vote_at       timestamptz,
  send_block         text,
  max_payload        integer,
  end_reason         text,
  end_run_id         uuid,
  revoked_at         timestamptz,
  deleted_at         timestamptz,
  scrubbed_at        timestamptz,
  legal_hold         boolean NOT NULL DEFAULT false,
  -- Full, tombstones included: coming back is an upsert.
  CONSTRAINT push_subscription_endpoint_hash_key UNIQUE (endpoint_hash),
  CONSTRAINT push_subscription_endpoint_hash_length CHECK (octet_length(endpoint_hash) = 32),
  CONSTRAINT push_subscription_p256dh_length CHECK (char_length(p256dh) BETWEEN 80 AND 96),
  CONSTRAINT push_subscription_content_encoding CHECK (content_encoding = 'aes128gcm'),
  CONSTRAINT push_subscription_state CHECK (state IN ('pending', 'active', 'stale', 'expired', 'revoked')),
  CONSTRAINT push_subscription_previous_state
    CHECK (previous_state IN ('pending', 'active', 'stale', 'expired', 'revoked')),
  CONSTRAINT push_subscription_send_block CHECK (send_block IN ('bad_keys', 'key_mismatch', 'dead_service')),
  CONSTRAINT push_subscription_user_agent_length CHECK (char_length(user_agent) <= 400),
  CONSTRAINT push_subscription_counts CHECK (registration_no >= 1 AND votes >= 0),
  CONSTRAINT push_subscription_credentials CHECK (
    CASE WHEN scrubbed_at IS NULL
         THEN num_nulls(endpoint, p256dh, auth_sealed, auth_key_version) = 0
         ELSE num_nonnulls(endpoint, p256dh, auth_sealed, auth_key_version) = 0 AND deleted_at IS NOT NULL
    END),
  CONSTRAINT push_subscription_end CHECK (
    CASE WHEN state IN ('expired', 'revoked')
         THEN num_nulls(revoked_at, deleted_at, end_reason) = 0
         ELSE num_nonnulls(revoked_at, end_reason, end_run_id) = 0
    END)
);
COMMENT ON TABLE {schema}.push_subscription IS 'One row per endpoint, tombstones included; identity is endpoint_hash';

-- Fan-out by user and by service: live rows only, so that tombstones cost a campaign nothing.
-- By user also the few that are stale or blocked: logging out and unsubscribing must find them.
CREATE INDEX push_subscription_live_user ON {schema}.push_subscription (user_id, id)
  WHERE deleted_at IS NULL AND user_id IS NOT NULL;
CREATE INDEX push_subscription_live_service ON {schema}.push_subscription (push_service, id)
  WHERE deleted_at IS NULL AND send_block IS NULL AND state IN ('pending', 'active');
-- One for each sweep, in the order that it walks.
CREATE INDEX push_subscription_age_stale
  ON {schema}.push_subscription (GREATEST(last_seen_at, last_success_at), id)
  WHERE state = 'active' AND deleted_at IS NULL;
CREATE INDEX push_subscription_age_expired
  ON {schema}.push_subscription (GREATEST(last_seen_at, last_success_at), id)
  WHERE state IN ('pending', 'stale') AND deleted_at IS NULL;
CREATE INDEX push_subscription_scrub ON {schema}.push_subscription (deleted_at, id)
  WHERE deleted_at IS NOT NULL AND scrubbed_at IS NULL;
CREATE INDEX push_subscription_purge ON {schema}.push_subscription (deleted_at, id)
  WHERE deleted_at IS NOT NULL;
-- "Had this user a subscription that ended lately?"
CREATE INDEX push_subscription_ended_user ON {schema}.push_subscription (user_id, revoked_at)
  WHERE deleted_at IS NOT NULL AND user_id IS NOT NULL;

-- Who held which endpoint from when to when. Rows are only added; the end is written once.
CREATE TABLE {schema}.subscription_period (
  period_id      uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  endpoint_hash  bytea NOT NULL,
  user_id        text,
  push_service   text NOT NULL,
  origin         text,
  began_at       timestamptz NOT NULL,
  ended_at       timestamptz,
  end_reason     text,
  campaign_id    text,
  reconnection   boolean NOT NULL DEFAULT false,
  CONSTRAINT subscription_period_endpoint_hash_length CHECK (octet_length(endpoint_hash) = 32),
  CONSTRAINT subscription_period_end CHECK ((ended_at IS NULL) = (end_reason IS NULL))
);
-- One open period per endpoint: one endpoint, one live owner.
CREATE UNIQUE INDEX subscription_period_open ON {schema}.subscription_period (endpoint_hash) WHERE ended_at IS NULL;
CREATE INDEX subscription_period_hash ON {schema}.subscription_period (endpoint_hash, began_at);
CREATE INDEX subscription_period_user ON {schema}.subscription_period (user_id, began_at) WHERE user_id IS NOT NULL;
CREATE INDEX subscription_period_began ON {schema}.subscription_period (began_at);
CREATE INDEX subscription_period_purge ON {schema}.subscription_period (ended_at, period_id) WHERE ended_at IS NOT NULL;

CREATE FUNCTION {schema}.keep_period() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
  IF OLD.ended_at IS NOT NULL
     AND (NEW.ended_at, NEW.end_reason, NEW.campaign_id)
         IS DISTINCT FROM (OLD.ended_at, OLD.end_reason, coalesce(OLD.campaign_id, NEW.campaign_id)) THEN
    RAISE EXCEPTION 'a consent period ends once';
  END IF;
  IF (NEW.endpoint_hash, NEW.user_id, NEW.began_at) IS DISTINCT FROM (OLD.endpoint_hash, OLD.user_id, OLD.began_at) THEN
    RAISE EXCEPTION 'a consent period keeps its endpoint, owner and beginning';
  END IF;
  RETURN NEW;
END
$fn$;
CREATE TRIGGER subscription_period_keep BEFORE UPDATE ON {schema}.subscription_period
  FOR EACH ROW EXECUTE FUNCTION {schema}.keep_period();

-- What hard deletion leaves: how many ended on which day, where, why and after how long. A row for all lifetimes, since
-- writing a row costs as much log as deleting several. Several folds write to a day's rows: there is room for it.
CREATE TABLE {schema}.subscription_ended (
  day            date NOT NULL,
  push_service   text NOT NULL,
  origin         text NOT NULL,
  end_reason     text NOT NULL,
  under_1_day    bigint NOT NULL,
  from_1_day     bigint NOT NULL,
  from_7_days    bigint NOT NULL,
  from_30_days   bigint NOT NULL,
  from_90_days   bigint NOT NULL,
  from_365_days  bigint NOT NULL,
  PRIMARY KEY (day, push_service, origin, end_reason)
) WITH (fillfactor = 70);

-- The same of single batches, until a shift's end folds many of them into the days at once: two batches never wait for
-- each other's counters, and a day's row is written once in hundreds of batches. A slot is a day and a lifetime: days
-- since 2000-01-01 times 8, plus 0 for under a day to 5 for over a year.
CREATE TABLE {schema}.subscription_ended_batch (
  fold_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  push_service  text NOT NULL,
  origin        text NOT NULL,
  end_reason    text NOT NULL,
  slots         integer[] NOT NULL,
  ended         integer[] NOT NULL
);

-- Both as one reads them: to be summed, since what waits to be folded stands beside what is.
CREATE VIEW {schema}.subscription_ended_daily AS
SELECT e.day, e.push_service, e.origin, e.end_reason, b.lifetime_bucket, b.ended
  FROM {schema}.subscription_ended AS e,
       LATERAL (VALUES ('under 1 day', e.under_1_day), ('1 to 7 days', e.from_1_day), ('7 to 30 days', e.from_7_days),
                       ('30 to 90 days', e.from_30_days), ('90 to 365 days', e.from_90_days),
                       ('over 365 days', e.from_365_days)) AS b (lifetime_bucket, ended)
 WHERE b.ended > 0
UNION ALL
SELECT date '2000-01-01' + (g.slot >> 3), w.push_service, w.origin, w.end_reason,
       (ARRAY['under 1 day', '1 to 7 days', '7 to 30 days', '30 to 90 days', '90 to 365 days', 'over 365 days'])
         [(g.slot & 7) + 1],
       g.ended::bigint
  FROM {schema}.subscription_ended_batch AS w, unnest(w.slots, w.ended) AS g (slot, ended);

-- Who did what to which subscription. No endpoint, no key.
CREATE TABLE {schema}.audit (
  audit_id       uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  at             timestamptz NOT NULL DEFAULT now(),
  verb           text NOT NULL,
  actor          text NOT NULL,
  endpoint_hash  bytea,
  user_id        text,
  detail         jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_hash ON {schema}.audit (endpoint_hash, at) WHERE endpoint_hash IS NOT NULL;
CREATE INDEX audit_user ON {schema}.audit (user_id, at) WHERE user_id IS NOT NULL;

-- What an operator decided about a sweep, what its batches taught it, and when it last ended well.
CREATE TABLE {schema}.sweep_control (
  sweep          text PRIMARY KEY,
  paused_at      timestamptz,
  paused_by      text,
  paused_why     text,
  acknowledged   jsonb NOT NULL DEFAULT '{}',
  batch_rows     integer,
  dispatched_at  timestamptz,
  succeeded_at   timestamptz
);

-- At most max_parallel batches of a sweep at once: whoever holds a slot works. free_at is the lease while
-- it is held and the end of the pause after.
CREATE TABLE {schema}.sweep_slot (
  sweep    text NOT NULL,
  slot     smallint NOT NULL,
  holder   uuid,
  free_at  timestamptz NOT NULL DEFAULT '-infinity',
  PRIMARY KEY (sweep, slot)
) WITH (fillfactor = 50);

CREATE TABLE {schema}.sweep_run (
  run_id           uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  sweep            text NOT NULL,
  filter           text NOT NULL DEFAULT '',
  state            text NOT NULL DEFAULT 'running',
  why              text,
  started_by       text NOT NULL,
  opened_at        timestamptz NOT NULL DEFAULT now(),
  cutoffs          jsonb NOT NULL,
  windows          jsonb NOT NULL,
  walk             text NOT NULL,
  cursor           text[],
  walk_end         text[],
  walked           boolean NOT NULL DEFAULT false,
  revisited        boolean NOT NULL DEFAULT false,
  force            boolean NOT NULL DEFAULT false,
  row_limit        bigint,
  eligible_rows    bigint,
  table_rows       bigint,
  page_rows        integer,
  rows_dispatched  bigint NOT NULL DEFAULT 0,
  pages            integer NOT NULL DEFAULT 0,
  held_since       timestamptz,
  held_by          text,
  rung_at          timestamptz,
  budget_until     timestamptz,
  closed_at        timestamptz,
  CONSTRAINT sweep_run_state CHECK (
    state IN ('running', 'pausing', 'paused', 'cancelling', 'cancelled', 'stopped', 'done')),
  CONSTRAINT sweep_run_walk CHECK (walk IN ('index', 'blocks')),
  CONSTRAINT sweep_run_closed CHECK ((closed_at IS NOT NULL) = (state IN ('cancelled', 'stopped', 'done')))
);
-- One open run per sweep and filter, whoever starts it.
CREATE UNIQUE INDEX sweep_run_open ON {schema}.sweep_run (sweep, filter) WHERE closed_at IS NULL;
CREATE INDEX sweep_run_recent ON {schema}.sweep_run (sweep, opened_at);
CREATE INDEX sweep_run_purge ON {schema}.sweep_run (closed_at, run_id) WHERE closed_at IS NOT NULL;

CREATE TABLE {schema}.sweep_batch (
  batch_id       uuid PRIMARY KEY,
  run_id         uuid NOT NULL,
  seq            integer NOT NULL,
  visit          smallint NOT NULL DEFAULT 1,
  lo             text[],
  hi             text[] NOT NULL,
  expected       integer,
  state          text NOT NULL DEFAULT 'due',
  attempts       integer NOT NULL DEFAULT 0,
  failures       integer NOT NULL DEFAULT 0,
  due_at         timestamptz NOT NULL DEFAULT now(),
  claim_token    uuid,
  claimed_until  timestamptz,
  worker         text,
  last_error     text,
  finished_at    timestamptz,
  CONSTRAINT sweep_batch_state CHECK (state IN ('due', 'claimed', 'done', 'split', 'quarantined', 'cancelled')),
  CONSTRAINT sweep_batch_claim CHECK ((state = 'claimed') = (claim_token IS NOT NULL))
);
CREATE INDEX sweep_batch_open ON {schema}.sweep_batch (run_id, seq) WHERE state IN ('due', 'claimed');
CREATE INDEX sweep_batch_purge ON {schema}.sweep_batch (finished_at, batch_id) WHERE finished_at IS NOT NULL;
CREATE INDEX sweep_batch_run ON {schema}.sweep_batch (run_id);

-- Effect and receipt commit together; a second delivery of the same batch finds it.
CREATE TABLE {schema}.sweep_receipt (
  batch_id     uuid PRIMARY KEY,
  run_id       uuid NOT NULL,
  rows_done    integer NOT NULL,
  rows_locked  integer NOT NULL,
  seconds      double precision NOT NULL,
  worker       text NOT NULL,
  applied_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  detail       jsonb
);
CREATE INDEX sweep_receipt_run ON {schema}.sweep_receipt (run_id);

-- Keys (and whole pages that killed their workers) that are left alone until somebody releases them.
CREATE TABLE {schema}.sweep_quarantine (
  quarantine_id  uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  sweep          text NOT NULL,
  run_id         uuid NOT NULL,
  batch_id       uuid NOT NULL,
  identity       text,
  walk           text NOT NULL,
  lo             text[],
  hi             text[] NOT NULL,
  error          text NOT NULL,
  at             timestamptz NOT NULL DEFAULT now(),
  released_at    timestamptz,
  released_by    text
);
CREATE INDEX sweep_quarantine_held ON {schema}.sweep_quarantine (sweep) WHERE released_at IS NULL;
CREATE INDEX sweep_quarantine_run ON {schema}.sweep_quarantine (run_id);
