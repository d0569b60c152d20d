-- What could not be delivered and is not resolved, every attempt at it, and what runs that act keep of themselves.

-- Refuses a change of what is fixed for ever: the columns that its trigger names.
CREATE FUNCTION {schema}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $fn$
BEGIN
  RAISE EXCEPTION 'expected % of % to stay as they are', TG_ARGV[0], TG_TABLE_NAME USING ERRCODE = 'check_violation';
END
$fn$;

-- Every letter's own key for ever, even where its row was lost and comes back from a spool or a backup.
CREATE FUNCTION {schema}.replay_key(message_id uuid, subscription_id uuid) RETURNS uuid
  LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
  RETURN encode(substring(sha256(uuid_send(message_id) || uuid_send(subscription_id)) FROM 1 FOR 16), 'hex')::uuid;

-- The attempts that failed, oldest first, as far back as is kept: what a letter's history begins with.
ALTER TABLE {schema}.push_dispatch ADD COLUMN history jsonb;

-- Ledger rows that ended and whose letter is not written yet: inserted where they end, deleted where it is written.
CREATE TABLE {schema}.push_unparked (
  message_id     uuid NOT NULL,
  endpoint_hash  bytea NOT NULL,
  error_class    text NOT NULL,
  ended_at       timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (message_id, endpoint_hash),
  CONSTRAINT push_unparked_class CHECK (error_class IN ('poison', 'retry_exhausted'))
);
CREATE INDEX push_unparked_age ON {schema}.push_unparked (ended_at);

-- One row for each recipient of a message that nobody could deliver to. No foreign key: it outlives what it names.
-- in_doubt: the last live attempt may have been taken. replay_count: replays that failed. run_id: who had it last.
CREATE TABLE {schema}.push_dlq (
  dlq_id            uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  message_id        uuid NOT NULL,
  subscription_id   uuid NOT NULL,
  endpoint_hash     bytea NOT NULL,
  endpoint_host     text NOT NULL,
  push_service      text NOT NULL,
  owner             text,
  owner_no          bigint NOT NULL,
  campaign_id       text,
  payload_ref       text,
  attempt_count     integer NOT NULL,
  first_attempt_at  timestamptz,
  last_attempt_at   timestamptz,
  terminal_status   integer,
  error_class       text NOT NULL,
  error_code        text NOT NULL,
  error_snippet     text NOT NULL DEFAULT '',
  original_ttl      integer NOT NULL,
  expires_at        timestamptz NOT NULL,
  replayable        boolean NOT NULL,
  on_in_doubt       text NOT NULL,
  in_doubt          boolean NOT NULL DEFAULT false,
  replay_state      text NOT NULL DEFAULT 'parked',
  close_reason      text,
  closed_by         text,
  close_note        text,
  closed_at         timestamptz,
  claimed_until     timestamptz,
  claim_token       uuid,
  replay_key        uuid NOT NULL,
  replay_count      integer NOT NULL DEFAULT 0,
  next_replay_at    timestamptz NOT NULL DEFAULT now(),
  run_id            uuid,
  parked_at         timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT push_dlq_recipient UNIQUE (message_id, subscription_id),
  CONSTRAINT push_dlq_class CHECK (error_class IN ('poison', 'retry_exhausted')),
  CONSTRAINT push_dlq_unresolved CHECK (terminal_status NOT IN (404, 410, 429)),
  CONSTRAINT push_dlq_snippet CHECK (octet_length(error_snippet) <= 512),
  CONSTRAINT push_dlq_on_in_doubt CHECK (on_in_doubt IN ('discard', 'resend')),
  CONSTRAINT push_dlq_state CHECK (replay_state IN ('parked', 'claimed', 'replayed', 'discarded')),
  CONSTRAINT push_dlq_claim CHECK (
    num_nonnulls(claim_token, claimed_until) = CASE WHEN replay_state = 'claimed' THEN 2 ELSE 0 END),
  CONSTRAINT push_dlq_closed CHECK (
    num_nonnulls(close_reason, closed_by, closed_at)
    = CASE WHEN replay_state IN ('replayed', 'discarded') THEN 3 ELSE 0 END)
) WITH (
  fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.02,
  autovacuum_analyze_scale_factor = 0.02);
-- Drains walk what is parked in the order of ids, which is that of parking.
CREATE INDEX push_dlq_parked ON {schema}.push_dlq (dlq_id) WHERE replay_state = 'parked';
CREATE INDEX push_dlq_campaign ON {schema}.push_dlq (campaign_id, dlq_id) WHERE replay_state = 'parked';
-- Triage reads nothing but this index.
CREATE INDEX push_dlq_triage ON {schema}.push_dlq
  (error_class, error_code, endpoint_host, campaign_id, parked_at, expires_at, original_ttl, replayable)
  WHERE replay_state IN ('parked', 'claimed');
CREATE INDEX push_dlq_close ON {schema}.push_dlq (expires_at, dlq_id) WHERE replay_state = 'parked';
CREATE INDEX push_dlq_claimed ON {schema}.push_dlq (claimed_until) WHERE replay_state = 'claimed';
-- What came lately; and the walk of the purge, since what is old is closed.
CREATE INDEX push_dlq_inflow ON {schema}.push_dlq (parked_at, dlq_id);

-- What a letter is may change, what it is about never does: whatever is done to it, it is not a minute younger.
CREATE TRIGGER push_dlq_fixed
  BEFORE UPDATE OF dlq_id, message_id, subscription_id, endpoint_hash, first_attempt_at, original_ttl, expires_at,
                   replay_key, parked_at ON {schema}.push_dlq
  FOR EACH ROW WHEN ((OLD.dlq_id, OLD.message_id, OLD.subscription_id, OLD.endpoint_hash, OLD.first_attempt_at,
                      OLD.original_ttl, OLD.expires_at, OLD.replay_key, OLD.parked_at)
       IS DISTINCT FROM (NEW.dlq_id, NEW.message_id, NEW.subscription_id, NEW.endpoint_hash, NEW.first_attempt_at,
                         NEW.original_ttl, NEW.expires_at, NEW.replay_key, NEW.parked_at))
  EXECUTE FUNCTION {schema}.refuse_change('ids, first attempt, TTL and expiry');
CREATE TRIGGER push_message_expiry BEFORE UPDATE OF expires_at ON {schema}.push_message
  FOR EACH ROW WHEN (OLD.expires_at IS NOT NULL AND NEW.expires_at IS DISTINCT FROM OLD.expires_at)
  EXECUTE FUNCTION {schema}.refuse_change('the expiry');

-- Every attempt at what became a letter, live ones first. A replay's row is there before its request goes out, and
-- says what came of it: without settled_at nobody knows. forced: an operator's reason for sending once more.
CREATE TABLE {schema}.push_dlq_attempt (
  replay_key  uuid NOT NULL,
  attempt     integer NOT NULL,
  kind        text NOT NULL,
  run_id      uuid,
  at          timestamptz NOT NULL DEFAULT now(),
  settled_at  timestamptz,
  outcome     text,
  status      integer,
  code        text,
  snippet     text,
  forced      text,
  PRIMARY KEY (replay_key, attempt),
  CONSTRAINT push_dlq_attempt_kind CHECK (kind IN ('live', 'replay')),
  CONSTRAINT push_dlq_attempt_settled CHECK ((settled_at IS NULL) = (outcome IS NULL))
) WITH (fillfactor = 90);

-- Alarms that were told of and are not over, so that none is told twice; and every code that was ever parked.
CREATE TABLE {schema}.push_dlq_alarm (
  signal   text NOT NULL,
  subject  text NOT NULL DEFAULT '',
  level    text NOT NULL,
  since    timestamptz NOT NULL DEFAULT now(),
  seen_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (signal, subject),
  CONSTRAINT push_dlq_alarm_level CHECK (level IN ('warning', 'page'))
);

-- What a run is asked beside its filter, what came of its rows by name, and how many failures came in a row.
ALTER TABLE {schema}.sweep_run ADD COLUMN options jsonb NOT NULL DEFAULT '{}';
ALTER TABLE {schema}.sweep_run ADD COLUMN outcomes jsonb NOT NULL DEFAULT '{}';
ALTER TABLE {schema}.sweep_run ADD COLUMN failures_in_row integer NOT NULL DEFAULT 0;
-- Rows that a batch did before it was put back with the rest.
ALTER TABLE {schema}.sweep_batch ADD COLUMN rows_before integer NOT NULL DEFAULT 0;

-- Payloads that are over, by when: purge-payloads walks it.
CREATE INDEX CONCURRENTLY IF NOT EXISTS push_message_payload
  ON {schema}.push_message (coalesce(expires_at, closed_at), message_id) WHERE payload_ref IS NOT NULL;
