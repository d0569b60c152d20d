-- Where imported subscriptions wait before they are stored: checked, with their auth sealed, and for minutes only.

-- Imports that run. The row goes with the import's partition; past its lease, whoever comes next removes both.
CREATE TABLE {schema}.subscription_import (
  import_id    uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  actor        text NOT NULL,
  began_at     timestamptz NOT NULL DEFAULT now(),
  alive_until  timestamptz NOT NULL
);

-- Each import makes an UNLOGGED partition of its own, so that its end is one DROP; what reads or erases here reaches
-- all of them. No partition is kept, and none is the default.
CREATE TABLE {schema}.import_staging (
  import_id         uuid NOT NULL,
  ordinal           bigint NOT NULL,
  endpoint_hash     bytea NOT NULL,
  endpoint          text NOT NULL,
  push_service      text NOT NULL,
  p256dh            text NOT NULL,
  auth_sealed       bytea NOT NULL,
  auth_key_version  integer NOT NULL,
  content_encoding  text NOT NULL,
  vapid_key_id      text,
  expiration_time   timestamptz,
  user_id           text,
  tags              text[],
  user_agent        text,
  locale            text,
  origin            text,
  created_at        timestamptz,
  recency           timestamptz
) PARTITION BY LIST (import_id);
COMMENT ON TABLE {schema}.import_staging IS 'Rows of imports that run; ordinal is the line they came from';
