"""The two sweeps of an adoption: hashes for rows that have none, and one row for each endpoint."""

from pushops.adopting.words import SUPERSEDED, Adoption, Losers, quoted, text_of
from pushops.sweeps.sql import literal
from pushops.sweeps.sweep import Column, Sweep


def backfill(one: Adoption) -> Sweep:
    return _sweep(
        one,
        "backfill-endpoint-hash",
        meaning=f"rows of {one.plain} without a hash of their endpoint get it",
        predicate=unhashed(one),
        effect=f"WITH done AS (UPDATE {one.relation} SET {quoted(one.column)} = {one.hashed('')} WHERE {{batch}}"
        " RETURNING 1) SELECT count(*)::int FROM done",
    )


def settle(one: Adoption) -> Sweep:
    return _sweep(
        one,
        "settle-duplicates",
        meaning=f"of the rows of {one.plain} with one endpoint the latest stays",
        predicate=losing(one),
        effect=f"WITH lost AS ({_lost(one)}), noted AS ("
        "INSERT INTO {schema}.adoption_loser (relation, loser, winner, did)"
        f" SELECT {text_of(one.plain)}, loser, winner, {text_of(one.losers.value)} FROM lost RETURNING 1)"
        " SELECT count(*)::int FROM noted",
    )


def unhashed(one: Adoption) -> str:
    marked = f" AND {SUPERSEDED} IS NULL" if one.losers is Losers.MARK else ""
    return f"{quoted(one.endpoint)} IS NOT NULL AND {quoted(one.column)} IS NULL{marked}"


def losing(one: Adoption) -> str:
    """Another row of the endpoint ranks higher. Within the sub-query the table's own name means the row outside."""
    own, column = quoted(one.table), quoted(one.column)
    return (
        f"EXISTS (SELECT FROM {one.relation} AS other WHERE other.{column} = {own}.{column}"
        f" AND {_rank(one, 'other')} > {_rank(one, own)})"
    )


def _rank(one: Adoption, row: str) -> str:
    if one.latest is None:
        return f"{row}.{quoted(one.key)}"
    return f"(coalesce({row}.{quoted(one.latest)}, '-infinity'), {row}.{quoted(one.key)})"


def _lost(one: Adoption) -> str:
    key, own = quoted(one.key), quoted(one.table)
    if one.losers is Losers.REMOVE:
        taken = f"{key}::text AS loser, ({_winner(one, own)}) AS winner"
        return f"DELETE FROM {one.relation} WHERE {{batch}} RETURNING {taken}"
    return (
        f"UPDATE {one.relation} SET {quoted(one.column)} = NULL, {SUPERSEDED} = ({_winner(one, own)})"
        f" WHERE {{batch}} RETURNING {key}::text AS loser, {SUPERSEDED} AS winner"
    )


def _winner(one: Adoption, row: str) -> str:
    """The key of the highest of a row's endpoint."""
    column, key = quoted(one.column), f"best.{quoted(one.key)}"
    latest = f"coalesce(best.{quoted(one.latest)}, '-infinity') DESC, " if one.latest else ""
    return (
        f"SELECT {key}::text FROM {one.relation} AS best WHERE best.{column} = {row}.{column}"
        f" ORDER BY {latest}{key} DESC LIMIT 1"
    )


def _sweep(one: Adoption, what: str, *, meaning: str, predicate: str, effect: str) -> Sweep:
    """One run of each is open for a table's column: the name says which."""
    key = Column(literal(quoted(one.key)), literal(one.key_type))
    return Sweep(
        name=f"{what}:{one.plain}.{one.column}",
        meaning=meaning,
        table=literal(one.relation),
        index="",
        key=(key,),
        identity=key,
        predicate=literal(predicate),
        windows=(),
        effect=literal(effect),
    )
