-- Messages and the ledger of their recipients; what is known of push services; evidence and the guard that judges it.

-- A change of owner is one even where the owner before last comes back: what was queued in between stays unsent.
ALTER TABLE {schema}.push_subscription ADD COLUMN owner_no bigint NOT NULL DEFAULT 1;
ALTER TABLE {schema}.push_subscription ADD COLUMN blocked_at timestamptz;

CREATE FUNCTION {schema}.count_owners() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
  NEW.owner_no := OLD.owner_no + 1;
  RETURN NEW;
END
$fn$;
-- Every statement that changes the owner, those of the previous release included.
CREATE TRIGGER push_subscription_owner BEFORE UPDATE OF user_id ON {schema}.push_subscription
  FOR EACH ROW WHEN (NEW.user_id IS DISTINCT FROM OLD.user_id) EXECUTE FUNCTION {schema}.count_owners();

-- Fan-out walks who may be sent to in the order of hashes, which mixes old rows with new ones: the guard's window is a
-- fair sample only then. It takes the place of an index in the order of ids.
CREATE INDEX CONCURRENTLY IF NOT EXISTS push_subscription_fan_out ON {schema}.push_subscription (endpoint_hash)
  WHERE deleted_at IS NULL AND send_block IS NULL;
DROP INDEX CONCURRENTLY IF EXISTS {schema}.push_subscription_live_service;

-- The smallest UUIDv7 of a moment: what bounds partitions, and lets a query look at late ones only.
CREATE FUNCTION {schema}.id_floor(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  RETURN (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid;

-- A message and, in fan-out, its run: the cursor is the last endpoint hash whose row is in the ledger. The audience is
-- what the to_ columns say, all of which must hold; expires_at is the first dispatch plus ttl, for ever. Before
-- finish_cursor all its rows have ended; look_at is when somebody looks again whether more have.
CREATE TABLE {schema}.push_message (
  message_id           uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  idempotency_key      text,
  request_hash         bytea,
  campaign_id          text,
  created_at           timestamptz NOT NULL DEFAULT now(),
  created_by           text NOT NULL DEFAULT 'application',
  state                text NOT NULL DEFAULT 'waiting',
  payload_ref          text,
  payload_key_version  integer,
  payload_bytes        integer NOT NULL DEFAULT 0,
  rendered             boolean NOT NULL DEFAULT false,
  ttl                  integer NOT NULL,
  urgency              text NOT NULL DEFAULT 'normal',
  topic                text,
  not_before           timestamptz,
  replayable           boolean NOT NULL DEFAULT true,
  on_ambiguous         text NOT NULL DEFAULT 'retry',
  on_in_doubt          text NOT NULL DEFAULT 'discard',
  to_user              text,
  to_tags              text[],
  to_ids               uuid[],
  to_service           text,
  to_origin            text,
  to_locale            text,
  to_key               text,
  cursor               bytea,
  recipients           bigint NOT NULL DEFAULT 0,
  first_dispatched_at  timestamptz,
  expires_at           timestamptz,
  fanned_out_at        timestamptz,
  finish_cursor        bytea,
  look_at              timestamptz,
  cancelled_at         timestamptz,
  cancelled_by         text,
  closed_at            timestamptz,
  CONSTRAINT push_message_state CHECK (state IN ('waiting', 'fanning_out', 'sending', 'cancelling', 'closed')),
  CONSTRAINT push_message_urgency CHECK (urgency IN ('very-low', 'low', 'normal', 'high')),
  CONSTRAINT push_message_ttl CHECK (ttl BETWEEN 1 AND 2419200),
  CONSTRAINT push_message_topic CHECK (char_length(topic) <= 32),
  CONSTRAINT push_message_on_ambiguous CHECK (on_ambiguous IN ('retry', 'drop')),
  CONSTRAINT push_message_on_in_doubt CHECK (on_in_doubt IN ('discard', 'resend')),
  CONSTRAINT push_message_dispatched CHECK (num_nulls(first_dispatched_at, expires_at) IN (0, 2))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX push_message_idempotency ON {schema}.push_message (idempotency_key)
  WHERE idempotency_key IS NOT NULL;
-- What still fans out, by when it may begin.
CREATE INDEX push_message_fan_out ON {schema}.push_message (coalesce(not_before, created_at), message_id)
  WHERE state IN ('waiting', 'fanning_out');
-- What is fanned out or cancelled and not closed, by when it is looked at next.
CREATE INDEX push_message_open ON {schema}.push_message (look_at, message_id)
  WHERE state IN ('sending', 'cancelling');
CREATE INDEX push_message_campaign ON {schema}.push_message (campaign_id, message_id) WHERE campaign_id IS NOT NULL;

-- A push service's host under one of our keys: what is held when we are at fault. '' stands for no key.
CREATE TABLE {schema}.push_lane (
  lane_id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  push_service     text NOT NULL,
  host             text NOT NULL,
  vapid_key_id     text NOT NULL,
  last_success_at  timestamptz,
  faults           timestamptz[] NOT NULL DEFAULT '{}',
  faults_of        bigint[] NOT NULL DEFAULT '{}',
  hold_id          uuid,
  probe_at         timestamptz,
  CONSTRAINT push_lane_host_key UNIQUE (host, vapid_key_id)
) WITH (fillfactor = 50);
CREATE INDEX push_lane_service ON {schema}.push_lane (push_service);

-- A push service's health. Whoever settles answers of it locks its row first, so that evidence and the guard's
-- decision never pass each other.
-- counted_from: what the guard counts begins here; healthy_from: what health counts. Both begin a row of push_answer.
CREATE TABLE {schema}.push_provider (
  push_service    text PRIMARY KEY,
  streak          integer NOT NULL DEFAULT 0,
  counted_from    timestamptz NOT NULL DEFAULT '-infinity',
  unhealthy_at    timestamptz,
  unhealthy_why   text,
  unhealthy_code  text,
  healthy_from    timestamptz NOT NULL DEFAULT '-infinity',
  paged_at        timestamptz,
  probe_at        timestamptz,
  guard_id        uuid,
  usual_share     double precision,
  usual_at        timestamptz
) WITH (fillfactor = 50);

-- How fast a push service may be sent to: a bucket of tokens in a row of its own, so that claiming does not wait for
-- settling. factor shrinks where the service throttles and grows back.
CREATE TABLE {schema}.push_rate (
  push_service  text PRIMARY KEY,
  tokens        double precision NOT NULL DEFAULT 0,
  refilled_at   timestamptz NOT NULL DEFAULT now(),
  factor        double precision NOT NULL DEFAULT 1,
  slowed_at     timestamptz
) WITH (fillfactor = 50);

-- What an operator paused: kind is provider, key or campaign.
CREATE TABLE {schema}.push_pause (
  kind       text NOT NULL,
  name       text NOT NULL,
  paused_at  timestamptz NOT NULL DEFAULT now(),
  paused_by  text NOT NULL,
  why        text,
  PRIMARY KEY (kind, name),
  CONSTRAINT push_pause_kind CHECK (kind IN ('provider', 'key', 'campaign'))
);

-- Answers by minute: attempts, those that had an answer, those that say that a subscription is dead (vote and revoke
-- alike), those that were accepted, throttled, and the provider's own faults, transport included. A minute in which
-- counting begins anew has two rows, each named for when it began.
CREATE TABLE {schema}.push_answer (
  push_service  text NOT NULL,
  minute        timestamptz NOT NULL,
  attempts      integer NOT NULL DEFAULT 0,
  answers       integer NOT NULL DEFAULT 0,
  terminal      integer NOT NULL DEFAULT 0,
  accepted      integer NOT NULL DEFAULT 0,
  throttled     integer NOT NULL DEFAULT 0,
  faults        integer NOT NULL DEFAULT 0,
  guarded       boolean NOT NULL DEFAULT false,
  PRIMARY KEY (push_service, minute)
) WITH (fillfactor = 70);
CREATE INDEX push_answer_purge ON {schema}.push_answer (minute, push_service);

-- One row for each time that the guard against mass death opened; only an operator closes it.
CREATE TABLE {schema}.push_guard (
  guard_id      uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  push_service  text NOT NULL,
  opened_at     timestamptz NOT NULL DEFAULT now(),
  window_from   timestamptz NOT NULL,
  why           text NOT NULL,
  detail        jsonb NOT NULL DEFAULT '{}',
  turned_back   boolean NOT NULL DEFAULT false,
  closed_at     timestamptz,
  closed_by     text,
  verdict       text,
  reason        text,
  settled_at    timestamptz,
  CONSTRAINT push_guard_verdict CHECK (verdict IN ('accepted', 'rejected')),
  CONSTRAINT push_guard_closed CHECK (num_nulls(closed_at, closed_by, verdict) IN (0, 3))
);
CREATE UNIQUE INDEX push_guard_open ON {schema}.push_guard (push_service) WHERE closed_at IS NULL;
CREATE INDEX push_guard_unsettled ON {schema}.push_guard (guard_id) WHERE settled_at IS NULL;

-- One row for a fault of ours, however many messages wait behind it.
CREATE TABLE {schema}.push_hold (
  hold_id       uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  lane_id       integer NOT NULL,
  push_service  text NOT NULL,
  host          text NOT NULL,
  vapid_key_id  text NOT NULL,
  code          text NOT NULL,
  why           text,
  opened_at     timestamptz NOT NULL DEFAULT now(),
  answers       bigint NOT NULL DEFAULT 0,
  probes        bigint NOT NULL DEFAULT 0,
  released_at   timestamptz,
  released_by   text,
  members       bigint
);
CREATE UNIQUE INDEX push_hold_open ON {schema}.push_hold (lane_id) WHERE released_at IS NULL;
CREATE INDEX push_hold_recent ON {schema}.push_hold (opened_at);

-- What push services said against subscriptions, what it did, and what stood before.
CREATE TABLE {schema}.push_evidence (
  evidence_id        uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  at                 timestamptz NOT NULL DEFAULT now(),
  push_service       text NOT NULL,
  lane_id            integer,
  subscription_id    uuid NOT NULL,
  endpoint_hash      bytea NOT NULL,
  registration_no    bigint NOT NULL,
  message_id         uuid,
  campaign_id        text,
  finding            text NOT NULL,
  status             integer,
  code               text,
  started_at         timestamptz NOT NULL,
  state              text NOT NULL,
  outcome            text,
  guard_id           uuid,
  was_state          text,
  was_votes          integer,
  was_first_vote_at  timestamptz,
  was_last_vote_at   timestamptz,
  CONSTRAINT push_evidence_finding CHECK (finding IN ('gone', 'vote', 'mismatch', 'bad_keys')),
  CONSTRAINT push_evidence_state CHECK (state IN ('applied', 'nothing', 'pending', 'discarded'))
);
CREATE INDEX push_evidence_applied ON {schema}.push_evidence (push_service, at) WHERE state = 'applied';
CREATE INDEX push_evidence_pending ON {schema}.push_evidence (push_service, evidence_id) WHERE state = 'pending';
CREATE INDEX push_evidence_pending_row ON {schema}.push_evidence (subscription_id) WHERE state = 'pending';
CREATE INDEX push_evidence_hash ON {schema}.push_evidence (endpoint_hash, at);
CREATE INDEX push_evidence_purge ON {schema}.push_evidence (at, evidence_id);

-- An endpoint that its push service asked to leave alone for a while.
CREATE TABLE {schema}.push_throttle (
  endpoint_hash  bytea PRIMARY KEY,
  until          timestamptz NOT NULL
) WITH (fillfactor = 70);

-- The ledger: one row for each recipient of a message. No foreign key to the subscription: history survives by its
-- hash. priority 0 is urgency high; wait says what a due row waited for last.
CREATE TABLE {schema}.push_dispatch (
  message_id        uuid NOT NULL,
  endpoint_hash     bytea NOT NULL,
  subscription_id   uuid NOT NULL,
  user_id           text,
  owner_no          bigint NOT NULL,
  lane_id           integer NOT NULL,
  priority          smallint NOT NULL,
  state             text NOT NULL DEFAULT 'due',
  wait              text,
  outcome           text,
  code              text,
  status            integer,
  next_attempt_at   timestamptz NOT NULL,
  expires_at        timestamptz NOT NULL,
  attempts          smallint NOT NULL DEFAULT 0,
  suspect           smallint NOT NULL DEFAULT 0,
  repeats           smallint NOT NULL DEFAULT 0,
  ambiguous         smallint NOT NULL DEFAULT 0,
  posted            boolean NOT NULL DEFAULT false,
  claim_token       uuid,
  claimed_until     timestamptz,
  registration_no   bigint,
  first_attempt_at  timestamptz,
  last_attempt_at   timestamptz,
  ended_at          timestamptz,
  granted_ttl       integer,
  snippet           text,
  PRIMARY KEY (message_id, endpoint_hash),
  CONSTRAINT push_dispatch_state CHECK (state IN ('due', 'claimed', 'paused', 'ended')),
  CONSTRAINT push_dispatch_claim CHECK ((state = 'claimed') = (claim_token IS NOT NULL)),
  CONSTRAINT push_dispatch_end CHECK ((state = 'ended') = (outcome IS NOT NULL AND ended_at IS NOT NULL))
) PARTITION BY RANGE (message_id);
CREATE INDEX push_dispatch_due ON {schema}.push_dispatch (lane_id, priority, next_attempt_at, endpoint_hash)
  WHERE state = 'due';
-- Attempts that may have been a hold's or an outage's rather than the row's own: given back when one is found.
CREATE INDEX push_dispatch_suspect ON {schema}.push_dispatch (lane_id) WHERE state = 'due' AND suspect > 0;
-- Rows of paused campaigns, by message: what is woken when a campaign goes on.
CREATE INDEX push_dispatch_paused ON {schema}.push_dispatch (message_id) WHERE state = 'paused';
CREATE INDEX push_dispatch_claimed ON {schema}.push_dispatch (claimed_until) WHERE state = 'claimed';

-- This week's partition and the next two; pushops.make_partitions goes on from here.
DO $do$
DECLARE
  week timestamptz;
BEGIN
  FOR week IN SELECT date_bin('7 days', now(), timestamptz '2000-01-03 00:00:00+00') + n * interval '168 hours'
                FROM generate_series(0, 2) AS n LOOP
    EXECUTE format(
      'CREATE TABLE IF NOT EXISTS {schema}.%I PARTITION OF {schema}.push_dispatch FOR VALUES FROM (%L) TO (%L)'
      ' WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)',
      'push_dispatch_' || to_char(week AT TIME ZONE 'UTC', 'YYYYMMDD'),
      {schema}.id_floor(week), {schema}.id_floor(week + interval '168 hours'));
  END LOOP;
END
$do$;
