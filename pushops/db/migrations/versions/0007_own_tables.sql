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
