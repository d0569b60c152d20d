"""A Ctrl-C is never lost in the pool."""

from collections.abc import Iterator
from typing import Any, NoReturn

import psycopg
import pytest

from pushops.db import pool


@pytest.fixture
def interrupted(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection[Any]]:
    """A connection on which a Ctrl-C comes between a query and its answer."""
    with psycopg.connect(database_url) as conn:

        def execute(*_: object) -> NoReturn:
            conn.pgconn.send_query(b"SELECT pg_sleep(60)")
            raise KeyboardInterrupt

        monkeypatch.setattr(conn, "execute", execute)
        yield conn
        conn.close()


def test_an_interruption_while_a_connection_is_checked_arrives(interrupted: psycopg.Connection[Any]) -> None:
    with pytest.raises(KeyboardInterrupt):
        pool._check(interrupted)
