"""Which recipients leave a dead letter when they end, and what it says from then on."""

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg.rows import dict_row

from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.outgoing import Outgoing, Pg, Recorded, ends, outgoing


@pytest.fixture
def out(settings: Settings, pushed_to: PushService, recorded: Recorded) -> Iterator[Outgoing]:
    sinks = (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    with outgoing(settings, pushed_to, sinks) as made:
        yield made


def letters(pg: Pg) -> list[dict[str, Any]]:
    with pg.cursor(row_factory=dict_row) as cursor:
        return cursor.execute("SELECT * FROM pushops.push_dlq ORDER BY dlq_id").fetchall()


def test_what_a_push_service_will_never_take_is_a_letter_at_once(
    out: Outgoing, pg: Pg, recorded: Recorded, pushed_to: PushService
) -> None:
    out.subscribe("fcm", 2)
    pushed_to.script("bad", answer={"status": 400, "body": "Bad \u00fc"})
    message = out.send("hello")
    out.pump_all()
    assert ends(pg, message) == {"poison": 2}
    assert len(letters(pg)) == 2
    print(letters(pg)[0], recorded)
