"""Rows of a PostgreSQL table: read in the order of its primary key through a cursor, and nothing written there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import Connection
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Composed, Identifier

from pushops.errors import RefusedError
from pushops.importing.sources import Columns, Names, Numbered, Source, columns_of

_FETCHED: Final = 2_000  # rows at a time
_OPTIONS: Final = "-c default_transaction_read_only=on -c default_transaction_isolation=repeatable\\ read"

_KEY: Final = """
SELECT a.attname, a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
  FROM pg_index AS i, unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
  JOIN pg_attribute AS a ON a.attnum = k.attnum
 WHERE i.indrelid = %s::regclass AND a.attrelid = i.indrelid AND i.indisprimary
 ORDER BY k.place"""
_COUNT: Final = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = %s::regclass"


@contextmanager
def read_table(url: str, table: str, names: Names) -> Iterator[Source]:
    """A table, as ``name`` or ``schema.name``, under one snapshot until its last row is read.

    Raises RefusedError, which never repeats the URL. Rows are numbered by their primary key where that is one integer,
    else by their place in its order. Names that ``names`` does not map are known by what libraries call their columns.
    """
    try:
        info = make_conninfo(url, application_name="pushops import", connect_timeout=5, client_encoding="utf8")
        with psycopg.connect(info, options=_OPTIONS) as conn:
            yield _source(conn, table, names)
    except psycopg.Error as error:  # the driver's text may repeat the URL
        state = f", SQLSTATE {error.sqlstate}" if error.sqlstate else ""
        raise RefusedError(f"expected to read table {table}, got {type(error).__name__}{state}") from None


def _source(conn: Connection[Any], table: str, names: Names) -> Source:
    where = SQL(".").join(map(Identifier, table.split(".")))
    quoted = where.as_string(conn)
    header = [column.name for column in conn.execute(SQL("SELECT * FROM {} LIMIT 0").format(where)).description or ()]
    found = columns_of(header, names, f"table {table}")
    keys = conn.execute(_KEY, [quoted]).fetchall()
    numbered = len(keys) == 1 and keys[0][1]
    wanted = {name: header[place] for name, place in found.places.items()}
    query = _query(where, [*wanted.values()], [name for name, _ in keys], numbered=numbered)
    total = conn.execute(_COUNT, [quoted]).fetchone()
    form = Columns({name: place for place, name in enumerate(wanted)}, len(wanted))
    return Source(form, _rows(conn, query, numbered=numbered), total[0] or None if total else None)


def _query(where: Composed, columns: Sequence[str], keys: Sequence[str], *, numbered: bool) -> Composed:
    number = Identifier(keys[0]) if numbered else SQL("0")
    order = SQL(" ORDER BY {}").format(SQL(", ").join(map(Identifier, keys))) if keys else SQL("")
    return SQL("SELECT {}, {} FROM {}{}").format(number, SQL(", ").join(map(Identifier, columns)), where, order)


def _rows(conn: Connection[Any], query: Composed, *, numbered: bool) -> Iterator[Numbered]:
    with conn.cursor(name="pushops_import") as cursor:
        cursor.itersize = _FETCHED
        for place, (key, *values) in enumerate(cursor.execute(query), 1):
            yield (key if numbered else place), values
    conn.commit()  # the snapshot goes with the last row: storing takes long, and no vacuum gets past an old snapshot
