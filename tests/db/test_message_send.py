"""``send``: one message for one key, the payload before the row, nothing at all where anything is wrong."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pushops.delivery import payloads, sending
from pushops.delivery.errors import ConflictError, MessageRefused, PayloadMissingError, PayloadStoreError
from pushops.delivery.objects import MARK
from pushops.delivery.preflight import Draft
from pushops.delivery.sending import Sent
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions.sealing import TamperedSealError
from tests.conftest import Recorded
from tests.sending import Pg, ledger, make_live, message, send_to, sent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "payloads"


@pytest.fixture
def settings(settings: Settings, folder: Path) -> Settings:
    return settings.model_copy(update={"payload_store": folder.as_uri()})


def objects(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != MARK]


def messages(pg: Pg) -> int:
    row = pg.execute("SELECT count(*) FROM push_message").fetchone()
    assert row is not None
    return int(row[0])


def payload_of(rt: Runtime, pg: Pg, message_id: UUID) -> bytes:
    row = message(pg, message_id)
    return payloads.fetch(rt, message_id, row["payload_ref"], row["payload_key_version"])


def test_the_same_key_and_request_make_one_message(runtime: Runtime, pg: Pg, folder: Path) -> None:
    make_live(pg, 2, user="ann")
    request = {"user": "ann", "ttl": 60, "idempotency_key": "order-17"}
    first = send_to(runtime, {"a": 1}, **request)
    again = send_to(runtime, {"a": 1}, **request)
    assert first.created
    assert again == Sent(first.message_id, created=False, state=first.state)
    assert (messages(pg), len(ledger(pg, first.message_id)), len(objects(folder))) == (1, 2, 1)


@pytest.mark.parametrize(
    "other", [{"payload": b"other"}, {"ttl": 61}, {"user": "bob"}, {"urgency": "high"}, {"campaign": "x"}]
)
def test_the_same_key_with_another_request_is_a_conflict(runtime: Runtime, pg: Pg, other: dict[str, Any]) -> None:
    request: dict[str, Any] = {"payload": b"secret", "user": "ann", "ttl": 60, "idempotency_key": "order-17"}
    first = send_to(runtime, **request)
    with pytest.raises(ConflictError) as caught:
        send_to(runtime, **request | other)
    assert caught.value.message_id == first.message_id
    assert str(first.message_id) in str(caught.value)
    assert "secret" not in str(caught.value)
    assert messages(pg) == 1


def test_two_at_once_with_one_key_make_one_message(runtime: Runtime, pg: Pg, folder: Path) -> None:
    make_live(pg, 3, user="ann")
    together = Barrier(4)

    def ask(_: int) -> Sent:
        together.wait()
        return send_to(runtime, b"x", user="ann", idempotency_key="k")

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, range(4)))
    assert len({each.message_id for each in found}) == 1
    assert sorted(each.created for each in found) == [False, False, False, True]
    assert (messages(pg), len(ledger(pg, found[0].message_id)), len(objects(folder))) == (1, 3, 1)


def test_what_pre_flight_refuses_leaves_nothing(
    runtime: Runtime, pg: Pg, folder: Path, recorded: list[Recorded]
) -> None:
    with pytest.raises(MessageRefused) as caught:
        send_to(runtime, b"x" * 3994, ttl=0, urgency="now")
    assert [each.reason for each in caught.value.findings] == ["payload_too_large", "bad_ttl", "unknown_urgency"]
    assert messages(pg) == 0
    assert not folder.exists()
    assert [fields for _, name, fields in recorded if name == "message.refused"] == [
        {"reasons": ["payload_too_large", "bad_ttl", "unknown_urgency"]}
    ]


def test_the_largest_payload_passes(runtime: Runtime, pg: Pg) -> None:
    made = send_to(runtime, b"x" * 3993)
    assert [each.reason for each in made.warnings] == ["payload_over_bridge"]
    assert payload_of(runtime, pg, made.message_id) == b"x" * 3993


def test_a_payload_lies_sealed_and_for_nobody_else_to_read(runtime: Runtime, pg: Pg, folder: Path) -> None:
    made = send_to(runtime, {"title": "hello"})
    body = json.dumps({"title": "hello", "pushops": {"id": str(made.message_id)}}, separators=(",", ":")).encode()
    assert payload_of(runtime, pg, made.message_id) == body
    (path,) = objects(folder)
    assert b"hello" not in path.read_bytes()
    assert folder.stat().st_mode & 0o077 == 0
    assert message(pg, made.message_id)["payload_bytes"] == len(body)


def test_a_payload_in_the_place_of_another_does_not_open(runtime: Runtime, pg: Pg, folder: Path) -> None:
    first, second = send_to(runtime, b"one").message_id, send_to(runtime, b"two").message_id
    (there,) = [path for path in objects(folder) if path.name == str(second)]
    (here,) = [path for path in objects(folder) if path.name == str(first)]
    here.write_bytes(there.read_bytes())
    with pytest.raises(TamperedSealError):
        payload_of(runtime, pg, first)


def test_a_payload_that_is_gone_has_a_name_and_one_that_was_read_is_remembered(
    runtime: Runtime, pg: Pg, folder: Path
) -> None:
    read, unread = send_to(runtime, b"one").message_id, send_to(runtime, b"two").message_id
    payload_of(runtime, pg, read)
    for path in objects(folder):
        path.unlink()
    assert payload_of(runtime, pg, read) == b"one"
    with pytest.raises(PayloadMissingError) as caught:
        payload_of(runtime, pg, unread)
    assert str(unread) not in str(caught.value)


def test_where_the_store_refuses_no_row_is_written(runtime: Runtime, pg: Pg, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("no folder")
    with pytest.raises(PayloadStoreError):
        send_to(runtime)
    assert messages(pg) == 0


def test_a_callers_transaction_takes_the_message_with_it(
    runtime: Runtime, pg: Pg, database_url: str, folder: Path
) -> None:
    make_live(pg, 2, user="ann")
    with psycopg.connect(database_url) as mine:
        made = send_to(runtime, user="ann", conn=mine)
        assert (made.state, messages(pg)) == ("sending", 0)
        mine.rollback()
        assert messages(pg) == 0
        kept = send_to(runtime, user="ann", conn=mine)
        mine.commit()
    assert len(ledger(pg, kept.message_id)) == 2
    assert len(objects(folder)) == 2  # what nobody names does no harm


def test_a_missing_week_of_the_ledger_is_made_on_the_way(runtime: Runtime, pg: Pg, database_url: str) -> None:
    make_live(pg, 3, user="ann")
    drop_partitions(pg)
    made = send_to(runtime, user="ann")
    assert (made.state, len(ledger(pg, made.message_id))) == ("sending", 3)
    drop_partitions(pg)
    with psycopg.connect(database_url) as mine:
        joined = send_to(runtime, user="ann", conn=mine)
        mine.commit()
    assert len(ledger(pg, joined.message_id)) == 3
    drop_partitions(pg)
    assert len(ledger(pg, sent(runtime))) == 3


def drop_partitions(pg: Pg) -> None:
    names = pg.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'push_dispatch'::regclass")
    for (name,) in names.fetchall():
        pg.execute(f"DROP TABLE {name}".encode())


def test_a_dry_run_counts_and_writes_nothing(runtime: Runtime, pg: Pg, folder: Path) -> None:
    make_live(pg, 9)
    found = sending.preview(runtime, Draft(payload=b"x" * 2800, everyone=True))
    assert found.recipients == {"fcm": 3, "mozilla": 2, "apple": 2, "wns": 2}
    assert ([each.reason for each in found.warnings], found.faults) == (["payload_over_bridge"], ())
    assert messages(pg) == 0
    assert not folder.exists()
    assert sending.preview(runtime, Draft(payload=b"x", ttl=0)).recipients == {}


def test_what_was_asked_for_stands_in_the_message(runtime: Runtime, pg: Pg) -> None:
    now = pg.execute("SELECT now()").fetchone()
    assert now is not None
    later = now[0] + timedelta(days=1)
    made = send_to(
        runtime, tags=iter(["b", "a"]), ttl=timedelta(minutes=2), urgency="low", topic="t", campaign="c",
        not_before=later, replayable=False, on_ambiguous="drop", on_in_doubt="resend",
    )  # fmt: skip
    row = message(pg, made.message_id)
    expected = {
        "to_tags": ["a", "b"], "ttl": 120, "urgency": "low", "campaign_id": "c", "not_before": later,
        "replayable": False, "on_ambiguous": "drop", "on_in_doubt": "resend", "created_by": "test", "rendered": False,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert len(row["topic"]) == 32


@pytest.mark.parametrize("key", ["\ud800", "\x00", "", "x" * 10_000, 5])
def test_a_key_that_cannot_be_stored_is_refused_before_it_is_looked_up(runtime: Runtime, pg: Pg, key: Any) -> None:
    with pytest.raises(MessageRefused):
        send_to(runtime, idempotency_key=key)
    assert messages(pg) == 0
