"""The statements of each step, as text: they are run, and ``pushops adopt plan --sql`` prints them.

What stands here in place of ``{schema}`` is filled in when it is run or printed.
"""

from pushops.adopting.words import SUPERSEDED, Adoption, Losers, quoted, text_of

BRIDGING = "-- and what it supersedes loses its hash"


def columns(one: Adoption) -> list[str]:
    """Nullable and without a default: no row is written."""
    wanted = [f"ADD COLUMN IF NOT EXISTS {quoted(one.column)} bytea"]
    if one.losers is Losers.MARK:
        wanted.append(f"ADD COLUMN IF NOT EXISTS {SUPERSEDED} text")
    return [f"ALTER TABLE {one.relation} {', '.join(wanted)}"]


def trigger(one: Adoption) -> list[str]:
    """Waits for who is writing, and then every write brings its hash."""
    return [
        function(one, bridge=False),
        (
            f"CREATE OR REPLACE TRIGGER {quoted(one.trigger)} BEFORE INSERT OR UPDATE OF {quoted(one.endpoint)}"
            f" ON {one.relation} FOR EACH ROW EXECUTE FUNCTION {{schema}}.{quoted(one.trigger)}()"
        ),
    ]


def function(one: Adoption, *, bridge: bool) -> str:
    """What a write does. With the bridge, an older row of its endpoint makes way, so that the write never fails.

    As its owner: the application's role need not see our schema.
    """
    lines = [_unmarked(one), f"  NEW.{quoted(one.column)} := {one.hashed('NEW.')};"]
    if bridge:
        lines.append(_bridge(one))
    body = "\n".join(line for line in lines if line)
    return (
        f"CREATE OR REPLACE FUNCTION {{schema}}.{quoted(one.trigger)}() RETURNS trigger LANGUAGE plpgsql"
        " SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pushops$\n"
        f"BEGIN\n{body}\n  RETURN NEW;\nEND $pushops$"
    )


def _unmarked(one: Adoption) -> str:
    """A superseded row stays one while its endpoint is the same; many applications write all columns always."""
    if one.losers is not Losers.MARK:
        return ""
    endpoint = quoted(one.endpoint)
    return (
        f"  IF TG_OP = 'UPDATE' AND NEW.{endpoint} IS NOT DISTINCT FROM OLD.{endpoint}"
        f" AND OLD.{SUPERSEDED} IS NOT NULL THEN\n"
        f"    NEW.{quoted(one.column)} := NULL;\n    RETURN NEW;\n  END IF;\n"
        f"  NEW.{SUPERSEDED} := NULL;"
    )


def _bridge(one: Adoption) -> str:
    """Two writers of one endpoint wait for each other, as they would at the unique index.

    An insert of a key that exists is an upsert on the key: its update, if there is one, comes here again.
    """
    key, column = quoted(one.key), quoted(one.column)
    others = f"{column} = NEW.{column} AND {key} <> NEW.{key}"
    if one.losers is Losers.MARK:
        lost = f"UPDATE {one.relation} SET {column} = NULL, {SUPERSEDED} = NEW.{key}::text WHERE {others}"
    else:
        lost = f"DELETE FROM {one.relation} WHERE {others}"
    return (
        f"  {BRIDGING}\n"
        f"  IF NEW.{column} IS NULL OR (TG_OP = 'INSERT' AND"
        f" EXISTS (SELECT FROM {one.relation} WHERE {key} = NEW.{key})) THEN\n    RETURN NEW;\n  END IF;\n"
        f"  PERFORM pg_advisory_xact_lock(hashtextextended({text_of(one.plain)} || encode(NEW.{column}, 'hex'), 0));\n"
        f"  WITH lost AS ({lost} RETURNING {key}::text AS loser)\n"
        f"  INSERT INTO {{schema}}.adoption_loser (relation, loser, winner, did)\n"
        f"  SELECT {text_of(one.plain)}, loser, NEW.{key}::text, {text_of(one.losers.value)} FROM lost;"
    )


def helper(one: Adoption) -> list[str]:
    """What finds duplicates; the unique index takes its place."""
    return [f"CREATE INDEX CONCURRENTLY {quoted(one.helper)} ON {one.relation} ({quoted(one.column)})"]


def present(one: Adoption) -> list[str]:
    """New rows only: nothing is read. Of no hash no length is known, and what is not known passes a CHECK."""
    marked = f" OR {SUPERSEDED} IS NOT NULL" if one.losers is Losers.MARK else ""
    there = f"coalesce(octet_length({quoted(one.column)}), 0) = {one.hash.length}"
    condition = f"{there} OR {quoted(one.endpoint)} IS NULL{marked}"
    return [f"ALTER TABLE {one.relation} ADD CONSTRAINT {quoted(one.check)} CHECK ({condition}) NOT VALID"]


def validated(one: Adoption) -> list[str]:
    """Reads the table, and stops nobody."""
    return [f"ALTER TABLE {one.relation} VALIDATE CONSTRAINT {quoted(one.check)}"]


def unique(one: Adoption) -> list[str]:
    return [f"CREATE UNIQUE INDEX CONCURRENTLY {quoted(one.unique)} ON {one.relation} ({quoted(one.column)})"]


def dropped(one: Adoption, index: str) -> list[str]:
    name = f"{quoted(one.schema)}.{quoted(index)}"
    return [f"DROP INDEX CONCURRENTLY IF EXISTS {name}"]
