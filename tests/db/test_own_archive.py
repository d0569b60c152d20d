"""Rows of one's own that are kept before they go: what is gone was written down, whatever happens between."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pushops.delivery import objects
from pushops.delivery.errors import PayloadStoreError
from pushops.delivery.objects import MARK
from pushops.retention.catalog import catalog
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.store import RunRow
from pushops.sweeps.work import work
from tests.own import KINDS, OVER, REOPEN, WEBHOOKS, Pg, deliveries, make_deliveries, with_section
from tests.sweepdb import drive, opened, receipts
from tests.sweeping import expire_leases

ROWS = 30
KEPT = KINDS.keys() - OVER
OLDEST = """
SELECT ctid::text, delivery_id, expires_at FROM public.webhook_delivery WHERE event = 'delivered'
 ORDER BY expires_at, delivery_id LIMIT 1"""
AGAIN = """
INSERT INTO public.webhook_delivery
       (delivery_id, endpoint_url, event, body, status, attempts, last_code, next_attempt_at, expires_at)
VALUES (%(id)s, 'https://shop-1.example/hooks', 'delivered', 'x', 'delivered', 1, 299, NULL, %(expires)s)"""


@pytest.fixture
def rt(settings: Settings, tmp_path: Path, pg: Pg) -> Iterator[Runtime]:
    """Six pages of ten rows to be archived into a folder."""
    make_deliveries(pg, ROWS)
    stored = settings.model_copy(update={"payload_store": f"file://{tmp_path}/store"})
    with opened(with_section(stored, WEBHOOKS, archive="deliveries", page_rows=10)) as found:
        yield found


def archived(rt: Runtime) -> list[dict[str, Any]]:
    """Every line of every object, in no order."""
    folder = objects.folder(rt.settings.payload_store)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MARK]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def rows(pg: Pg) -> dict[str, dict[str, Any]]:
    found = pg.execute("SELECT delivery_id::text, row_to_json(d.*) FROM public.webhook_delivery AS d").fetchall()
    return dict(found)


def finish(rt: Runtime) -> RunRow:
    return drive(rt, catalog(rt)[WEBHOOKS], Order("test", force=True), catalog=catalog(rt))


def begin(rt: Runtime) -> RunRow:
    run = dispatch(rt, catalog(rt)[WEBHOOKS], None, Order("test", force=True)).run
    assert run is not None
    return run


def between(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Do something once, between the first page's being written down and its deletion."""
    put = objects.put
    done: list[bool] = []

    def then(*args: Any) -> None:
        put(*args)
        if not done:
            done.append(True)
            do()

    monkeypatch.setattr(objects, "put", then)


def test_what_goes_was_written_down_as_it_was_and_what_stays_was_not(rt: Runtime, pg: Pg) -> None:
    before = rows(pg)
    assert finish(rt).state == "done"
    assert deliveries(pg) == dict.fromkeys(KEPT, ROWS)
    gone = {key: row for key, row in before.items() if row["event"] in OVER}
    assert {row["delivery_id"]: row for row in archived(rt)} == gone
    assert len(archived(rt)) == len(gone)


def test_a_row_that_changes_after_it_was_written_down_is_not_deleted_by_that_page(
    rt: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopened: list[Any] = []
    between(monkeypatch, lambda: reopened.append(pg.execute(REOPEN, [0]).fetchone()))
    assert finish(rt).state == "done"
    assert str(reopened[0][0]) in rows(pg)
    assert sum(deliveries(pg).get(kind, 0) for kind in OVER) == 1


def test_a_row_that_is_still_over_after_a_change_goes_later_as_it_then_is(
    rt: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = "UPDATE public.webhook_delivery SET last_code = 299 WHERE event = 'delivered'"
    between(monkeypatch, lambda: pg.execute(change))
    assert finish(rt).state == "done"
    assert deliveries(pg) == dict.fromkeys(KEPT, ROWS)
    codes = {row["delivery_id"] for row in archived(rt) if row["event"] == "delivered" and row["last_code"] == 299}
    assert len(codes) == ROWS


def test_a_row_that_takes_the_place_of_one_that_was_written_down_is_not_taken_for_it(
    rt: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "SELECT ctid::text FROM public.webhook_delivery WHERE last_code = 299"

    def swap() -> None:
        old = pg.execute(OLDEST).fetchone()
        assert old is not None
        pg.execute("DELETE FROM public.webhook_delivery WHERE delivery_id = %s", [old[1]])
        pg.execute("VACUUM public.webhook_delivery")
        pg.execute(AGAIN, {"id": old[1], "expires": old[2]})
        assert pg.execute(where).fetchone() == (old[0],), "expected the new row where the old one was"

    between(monkeypatch, swap)
    assert finish(rt).state == "done"
    assert deliveries(pg) == dict.fromkeys(KEPT, ROWS)
    assert [row["event"] for row in archived(rt) if row["last_code"] == 299] == ["delivered"]


def test_a_row_that_somebody_holds_is_left_to_the_runs_second_look(
    rt: Runtime, pg: Pg, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url) as other:
        between(monkeypatch, lambda: other.execute(REOPEN, [0]))
        run = begin(rt)
        work(rt, catalog(rt), run.run_id)
        assert sum(deliveries(pg).get(kind, 0) for kind in OVER) == 1
        assert receipts(pg, run.run_id) == (ROWS * len(OVER) - 1, 1), "expected the page to wait for nobody"
        other.rollback()
    assert finish(rt).state == "done"
    assert deliveries(pg) == dict.fromkeys(KEPT, ROWS)


def test_a_worker_that_dies_after_writing_has_deleted_nothing_and_its_page_is_done_again(
    rt: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    between(monkeypatch, die)
    run = begin(rt)
    with pytest.raises(KeyboardInterrupt):
        work(rt, catalog(rt), run.run_id)
    assert deliveries(pg) == dict.fromkeys(KINDS, ROWS)
    expire_leases(pg)
    assert finish(rt).state == "done"
    assert deliveries(pg) == dict.fromkeys(KEPT, ROWS)
    written = [row["delivery_id"] for row in archived(rt)]
    assert len(set(written)) == len(written) == ROWS * len(OVER), "expected the same page under the same name"


def test_nothing_goes_while_the_store_is_away(rt: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise PayloadStoreError("expected the payload store to put an object, got TimeoutError")

    with monkeypatch.context() as broken:
        broken.setattr(objects, "put", away)
        run = begin(rt)
        work(rt, catalog(rt), run.run_id)
    assert deliveries(pg) == dict.fromkeys(KINDS, ROWS)
    assert finish(rt).state == "done"
    assert deliveries(pg) == dict.fromkeys(KEPT, ROWS)
