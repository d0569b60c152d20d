"""One transaction: a connection, PostgreSQL's ``now`` and the schema that statements name."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, LiteralString, TypeVar

from psycopg import Connection, Cursor
from psycopg.rows import class_row, scalar_row

Params = Mapping[str, Any]
Row = TypeVar("Row")


@lru_cache(maxsize=1024)
def render(query: str, schema: str) -> bytes:
    """The statement with our schema's name in it; the name was checked to be a plain identifier by Settings."""
    return query.replace("{schema}", f'"{schema}"').encode()


@dataclass(frozen=True)
class Tx:
    """An open transaction. ``now`` is PostgreSQL's, timezone aware: nothing below reads another clock."""

    conn: Connection[Any]
    now: datetime
    schema: str

    def rows(self, query: LiteralString, params: Params, row: type[Row]) -> list[Row]:
        return self._execute(query, params, class_row(row)).fetchall()

    def maybe(self, query: LiteralString, params: Params, row: type[Row]) -> Row | None:
        return self._execute(query, params, class_row(row)).fetchone()

    def one(self, query: LiteralString, params: Params, row: type[Row]) -> Row:
        found = self.maybe(query, params, row)
        if found is None:
            raise LookupError("expected one row, got none")
        return found

    def scalar(self, query: LiteralString, params: Params, *, prepare: bool | None = None) -> Any:  # noqa: ANN401
        """The first column of the first row, or None. ``prepare=False`` asks for a plan made for these values."""
        cursor = self.conn.cursor(row_factory=scalar_row)
        return cursor.execute(render(query, self.schema), params, prepare=prepare).fetchone()

    def scalars(self, query: LiteralString, params: Params) -> list[Any]:
        return self._execute(query, params, scalar_row).fetchall()

    def run(self, query: LiteralString, params: Params) -> int:
        """Execute and say how many rows were touched."""
        return self.conn.execute(render(query, self.schema), params).rowcount

    def _execute(self, query: LiteralString, params: Params, factory: Any) -> Cursor[Any]:  # noqa: ANN401
        return self.conn.cursor(row_factory=factory).execute(render(query, self.schema), params)
