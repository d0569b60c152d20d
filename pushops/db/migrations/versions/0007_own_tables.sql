-- What sweeps over tables of yours, their archives and partitions need.

-- A partition of a configured table on its way in (made, not attached yet) or out (detached, not dropped yet): written
-- with or before its first step, gone with its last. A table that is not written down here is never attached or dropped.
CREATE TABLE {schema}.partition_step (
  child_schema   text NOT NULL,
  child          text NOT NULL,
  parent_schema  text NOT NULL,
  parent         text NOT NULL,
  bound          text NOT NULL,
  goes           text NOT NULL CONSTRAINT partition_step_goes CHECK (goes IN ('in', 'out')),
  since          timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (child_schema, child)
);

-- Rows of adopted tables that lost their endpoint to another row: keys only, and what was done.
CREATE TABLE {schema}.adoption_loser (
  loser_id  uuid PRIMARY KEY DEFAULT {schema}.new_id(),
  at        timestamptz NOT NULL DEFAULT now(),
  relation  text NOT NULL,
  loser     text NOT NULL,
  winner    text,
  did       text NOT NULL CONSTRAINT adoption_loser_did CHECK (did IN ('mark', 'remove'))
);
CREATE INDEX adoption_loser_relation ON {schema}.adoption_loser (relation, at);
