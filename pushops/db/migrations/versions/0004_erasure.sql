-- Erasure requests, their receipts, and endpoints that may not come back on their own.

-- One row for each person or endpoint that is to be forgotten. Who it is stands in it until that is done; what is left
-- then is the receipt: a keyed HMAC of the user, when, and how many rows of which store. A round looks through every
-- store once: cursor is the last message that it looked at, found what it met so far, and the request is done after a
-- round that found nothing. settled: when the round began
-- every transaction was over that may not have known of the request, begun_xid being the first one that did. held_at:
-- somebody holds one of the rows for a court or a dispute.
CREATE TABLE {schema}.erasure_request (
  request_id     uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  user_hmac      bytea,
  user_id        text,
  endpoint_hash  bytea,
  asked_at       timestamptz NOT NULL DEFAULT now(),
  asked_by       text NOT NULL,
  held_at        timestamptz,
  rounds         integer NOT NULL DEFAULT 0,
  begun_xid      xid8,
  settled        boolean NOT NULL DEFAULT false,
  found          bigint NOT NULL DEFAULT 0,
  cursor         uuid,
  waits          text,
  told           text,
  receipt        jsonb NOT NULL DEFAULT '{}',
  done_at        timestamptz,
  CONSTRAINT erasure_request_subject CHECK (
    num_nonnulls(user_id, endpoint_hash) = CASE WHEN done_at IS NULL THEN 1 ELSE 0 END),
  CONSTRAINT erasure_request_hmac CHECK (user_id IS NULL OR user_hmac IS NOT NULL),
  CONSTRAINT erasure_request_told CHECK (told IN ('ticket', 'page'))
);
CREATE UNIQUE INDEX erasure_request_open_user ON {schema}.erasure_request (user_hmac)
  WHERE done_at IS NULL AND user_hmac IS NOT NULL;
CREATE UNIQUE INDEX erasure_request_open_endpoint ON {schema}.erasure_request (endpoint_hash)
  WHERE done_at IS NULL AND endpoint_hash IS NOT NULL;
CREATE INDEX erasure_request_open ON {schema}.erasure_request (asked_at, request_id) WHERE done_at IS NULL;
CREATE INDEX erasure_request_user ON {schema}.erasure_request (user_hmac, asked_at) WHERE user_hmac IS NOT NULL;

-- What an open request is about. Of those that are not its own only what bears the user's name goes: the endpoint was
-- theirs once, and is another's by now.
CREATE TABLE {schema}.erasure_endpoint (
  request_id       uuid NOT NULL,
  endpoint_hash    bytea NOT NULL,
  subscription_id  uuid,
  own              boolean NOT NULL,
  PRIMARY KEY (request_id, endpoint_hash)
);
CREATE INDEX erasure_endpoint_hash ON {schema}.erasure_endpoint (endpoint_hash) WHERE own;

-- The only thing that is kept of an endpoint: its browser is told to unsubscribe, and nothing is stored for it, until
-- it has (lifted_at, where the request is still open) or its person opts in anew.
CREATE TABLE {schema}.suppression (
  endpoint_hash  bytea PRIMARY KEY,
  since          timestamptz NOT NULL DEFAULT now(),
  request_id     uuid,
  lifted_at      timestamptz,
  CONSTRAINT suppression_endpoint_hash_length CHECK (octet_length(endpoint_hash) = 32)
);
CREATE INDEX suppression_request ON {schema}.suppression (request_id);

-- Ways to the rows of one endpoint or one user.
CREATE INDEX CONCURRENTLY IF NOT EXISTS push_dlq_hash ON {schema}.push_dlq (endpoint_hash);
CREATE INDEX CONCURRENTLY IF NOT EXISTS push_dlq_owner ON {schema}.push_dlq (owner) WHERE owner IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS push_message_user ON {schema}.push_message (to_user) WHERE to_user IS NOT NULL;
