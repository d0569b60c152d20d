"""Who sends rings at once; where the broker is away, sending goes on and beat finds the rows."""

from collections.abc import Iterator

import psycopg
import pytest
import redis

import pushops
from pushops.errors import RefusedError
from pushops.settings import Settings
from tests.sending import Pg, ledger, make_live, message
from tests.sweeping import DEADLINE, queue_length, quick, wait_until, workers

NOBODY = "redis://127.0.0.1:1/0"


@pytest.fixture
def ops(settings: Settings, valkey_url: str) -> Iterator[pushops.Ops]:
    with pushops.open(quick(settings, valkey_url)) as opened:
        yield opened


def test_a_send_is_rung_for_once_and_a_repeat_is_not(ops: pushops.Ops, pg: Pg, valkey_url: str) -> None:
    make_live(pg, 2, user="ann")
    with redis.Redis.from_url(valkey_url) as broker:
        ops.send(b"x", everyone=True, idempotency_key="k")
        assert queue_length(broker) == 1
        ops.send(b"x", everyone=True, idempotency_key="k")
        assert queue_length(broker) == 1
        ops.send(b"x", user="ann")
        assert queue_length(broker) == 2


def test_a_callers_transaction_rings_for_nothing(ops: pushops.Ops, valkey_url: str, database_url: str) -> None:
    with redis.Redis.from_url(valkey_url) as broker, psycopg.connect(database_url) as mine:
        ops.send(b"x", everyone=True, conn=mine)
        mine.commit()
        assert queue_length(broker) == 0


def test_a_broker_that_is_away_stops_no_send(settings: Settings, pg: Pg) -> None:
    with pushops.open(quick(settings, NOBODY)) as ops:
        made = ops.send(b"x", everyone=True)
    assert message(pg, made.message_id)["state"] == "waiting"


def test_a_worker_fans_out_what_it_is_rung_for(ops: pushops.Ops, pg: Pg) -> None:
    make_live(pg, 60)
    with workers(ops.runtime.settings, 1) as worker:
        made = ops.send({"title": "hello"}, everyone=True)
        wait_until(lambda: message(pg, made.message_id)["fanned_out_at"], expected=worker.tail)
    assert len(ledger(pg, made.message_id)) == 60
    found = ops.message(made.message_id)
    assert (found.message.recipients, sum(share.rows for share in found.shares)) == (60, 60)


def test_results_go_by_pages_and_name_no_endpoint(ops: pushops.Ops, pg: Pg) -> None:
    ids = make_live(pg, 5, user="ann")
    made = ops.send(b"x", user="ann")
    pg.execute(
        "UPDATE push_dispatch SET state = 'ended', outcome = 'accepted', ended_at = now() WHERE subscription_id = %s",
        [ids[0]],
    )
    first = ops.results(made.message_id, limit=3)
    assert first.next is not None
    rest = ops.results(made.message_id, limit=3, after=first.next)
    assert rest.next is None
    assert {row.subscription_id for row in (*first.rows, *rest.rows)} == set(ids)
    (accepted,) = ops.results(made.message_id, outcome="accepted").rows
    assert (accepted.subscription_id, accepted.next_attempt_at, len(accepted.endpoint)) == (ids[0], None, 32)
    assert len(ops.results(made.message_id, outcome="due").rows) == 4
    assert "push/" not in repr(first)


def test_results_are_refused_for_an_outcome_that_there_is_not(ops: pushops.Ops) -> None:
    with pytest.raises(RefusedError, match=r"expected an outcome of accepted, .* got 'acepted'"):
        ops.results(ops.send(b"x", user="ann").message_id, outcome="acepted")


def test_a_preview_says_whom_a_send_would_reach_and_writes_nothing(ops: pushops.Ops, pg: Pg) -> None:
    make_live(pg, 4, tags=("news",))
    found = ops.preview({"title": "hello"}, tags=iter(["news"]), ttl=60)
    assert (sum(found.recipients.values()), found.faults) == (4, ())
    assert [fault.reason for fault in ops.preview(b"x", everyone=True, ttl=0).faults] == ["bad_ttl"]
    assert ops.messages() == []


def test_a_worker_whose_renderer_cannot_be_called_does_not_start(settings: Settings, valkey_url: str) -> None:
    broken = quick(settings, valkey_url, renderer="json:no_such_function")
    with workers(broken, 1, ready=False) as worker:
        assert worker.popen.wait(DEADLINE) != 0
        assert "expected PUSHOPS_RENDERER to name a function" in worker.text()
