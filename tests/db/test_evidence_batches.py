"""Evidence in batches: what five hundred answers do in a few statements, and under which doubts they do nothing."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pushops.delivery.observing import Kind
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome, Finding, apply_batch
from tests import ledger, rows
from tests.answering import evidence_states, observe, settle, states, subscribers, table
from tests.browser import new_endpoint, subscribe
from tests.rows import Pg

A, G, V, N = Finding.ACCEPTED, Finding.GONE, Finding.VOTE, Finding.NONE
HOUR = timedelta(hours=1)


@pytest.fixture
def lane(pg: Pg) -> int:
    return ledger.lane(pg)


def test_one_batch_of_everything_does_to_each_row_what_alone_would(runtime: Runtime, pg: Pg, lane: int) -> None:
    ids = subscribers(pg, 9)
    pg.execute(
        "UPDATE push_subscription SET votes = 2, first_vote_at = now() - interval '25 h',"
        " last_vote_at = now() - interval '12 h' WHERE id = ANY(%s)",
        [[ids[2], ids[3]]],
    )
    pg.execute("UPDATE push_subscription SET registration_no = 2 WHERE id = %s", [ids[4]])
    pg.execute("DELETE FROM push_subscription WHERE id = %s", [ids[5]])
    found = [A, G, V, A, G, A, N, V, Finding.DEVICE_LIMIT]
    done = settle(runtime, lane, list(zip(ids, found, strict=True)), max_payload=2744)
    assert done.outcomes == [
        EvidenceOutcome.ACTIVATED,
        EvidenceOutcome.REVOKED,
        EvidenceOutcome.VOTED_OUT,
        EvidenceOutcome.ACTIVATED,
        EvidenceOutcome.SUPERSEDED,
        EvidenceOutcome.UNKNOWN,
        EvidenceOutcome.NOTHING,
        EvidenceOutcome.VOTED,
        EvidenceOutcome.LEARNT,
    ]
    after = table(pg)
    assert [after[row][0] for row in (ids[0], ids[1], ids[2], ids[4])] == ["active", "revoked", "revoked", "active"]
    assert [after[row][1] for row in (ids[2], ids[3], ids[7])] == [3, 0, 1]
    tried = dict(pg.execute("SELECT id, last_tried_at IS NOT NULL FROM push_subscription").fetchall())
    assert {row for row, was in tried.items() if not was} == {ids[4]}
    limits = dict(pg.execute("SELECT id, max_payload FROM push_subscription WHERE max_payload IS NOT NULL").fetchall())
    assert limits == {ids[8]: 2744}


def test_what_evidence_did_is_kept_with_what_stood_before(runtime: Runtime, pg: Pg, lane: int) -> None:
    """B18 of the features, and what turning back needs."""
    first, second = subscribers(pg, 2)
    pg.execute(
        "UPDATE push_subscription SET votes = 1, first_vote_at = now() - interval '8 h', last_vote_at ="
        " now() - interval '7 h'"
    )
    settle(runtime, lane, [(first, V), (second, G)], campaign_id="spring", status=410, code="gone")
    kept = pg.execute(
        "SELECT finding, e.state, outcome, was_state, was_votes, campaign_id, status, code, lane_id,"
        " e.at = s.state_since OR e.at = s.last_vote_at"
        " FROM push_evidence AS e JOIN push_subscription AS s ON s.id = e.subscription_id ORDER BY finding"
    ).fetchall()
    assert kept == [
        ("gone", "applied", "revoked", "active", 1, "spring", 410, "gone", lane, True),
        ("vote", "applied", "voted", "active", 1, "spring", 410, "gone", lane, True),
    ]


def test_two_answers_about_one_row_count_in_their_order(runtime: Runtime, pg: Pg, lane: int) -> None:
    one, two, three = subscribers(pg, 3)
    done = settle(runtime, lane, [(one, V), (one, V), (two, G), (two, V), (three, G), (three, A)])
    assert [str(outcome) for outcome in done.outcomes] == [
        "voted",
        "too_soon",
        "revoked",
        "already_ended",
        "superseded",  # a success in the same batch: it lives
        "activated",
    ]
    assert states(pg) == {"active": 2, "revoked": 1}


def test_revoking_closes_the_period_and_names_the_campaign(runtime: Runtime, pg: Pg, lane: int) -> None:
    """B04: a campaign's 410s revoke at once, each counted once, with its campaign."""
    ids = subscribers(pg, 4)
    settle(runtime, lane, [(row, G) for row in ids[:2]], campaign_id="spring")
    again = settle(runtime, lane, [(row, G) for row in ids[:2]], campaign_id="summer")
    assert again.outcomes == [EvidenceOutcome.ALREADY_ENDED] * 2
    ended = pg.execute("SELECT end_reason, campaign_id FROM subscription_period WHERE ended_at IS NOT NULL").fetchall()
    assert ended == [("gone", "spring")] * 2
    assert pg.execute("SELECT count(*) FROM audit WHERE verb = 'evidence'").fetchone() == (2,)


def test_votes_are_not_counted_while_the_push_service_fails(runtime: Runtime, pg: Pg, lane: int) -> None:
    """B02: a 404 of a router that is down says nothing; a 410 still does."""
    voted, gone, later = subscribers(pg, 3)
    assert observe(runtime, lane, Kind.FAULTY, 20).waits
    done = settle(runtime, lane, [(voted, V), (gone, G)])
    assert done.outcomes == [EvidenceOutcome.DOUBTED, EvidenceOutcome.REVOKED]
    assert table(pg)[voted][1] == 0
    assert observe(runtime, lane, Kind.ACCEPTED).recovered
    assert settle(runtime, lane, [(later, V)]).outcomes == [EvidenceOutcome.VOTED]


@pytest.mark.parametrize("ago", ["59 minutes", "61 minutes"])
def test_a_mismatch_blocks_its_row_only_beside_a_siblings_success(
    ago: str, runtime: Runtime, pg: Pg, lane: int
) -> None:
    """B17, B19, B21: the row's own fault where our key is good for others, ours where nobody can tell."""
    sibling, foreign = subscribers(pg, 2)
    settle(runtime, lane, [(sibling, A)])
    pg.execute(f"UPDATE push_lane SET last_success_at = now() - interval '{ago}'".encode())
    (outcome,) = settle(runtime, lane, [(foreign, Finding.MISMATCH)]).outcomes
    blocked = ago == "59 minutes"
    assert outcome is (EvidenceOutcome.BLOCKED if blocked else EvidenceOutcome.COUNTED)
    assert table(pg)[foreign][:1] == ("active",)
    assert table(pg)[foreign][7] == ("key_mismatch" if blocked else None)
    assert table(pg)[sibling][7] is None


def test_a_rows_own_success_is_no_siblings(runtime: Runtime, pg: Pg, lane: int) -> None:
    """B19: the same subscription answers 201 and mismatch in turns; nothing else proves the key."""
    (alone,) = subscribers(pg, 1)
    settle(runtime, lane, [(alone, A)])
    assert settle(runtime, lane, [(alone, Finding.MISMATCH)]).outcomes == [EvidenceOutcome.COUNTED]
    assert table(pg)[alone][7] is None


def test_a_second_mismatch_of_a_blocked_row_ends_its_message_too(runtime: Runtime, pg: Pg, lane: int) -> None:
    sibling, foreign = subscribers(pg, 2)
    settle(runtime, lane, [(sibling, A)])
    twice = settle(runtime, lane, [(foreign, Finding.MISMATCH), (foreign, Finding.MISMATCH)])
    assert twice.outcomes == [EvidenceOutcome.BLOCKED] * 2


def test_a_mismatch_without_a_lane_blocks_nothing(runtime: Runtime, pg: Pg, lane: int) -> None:
    sibling, foreign = subscribers(pg, 2)
    settle(runtime, lane, [(sibling, A)])
    known = pg.execute("SELECT clock_timestamp()").fetchone()
    assert known is not None
    evidence = Evidence(foreign, 1, Finding.MISMATCH, known[0])
    assert service.record_evidence(runtime, evidence) is EvidenceOutcome.COUNTED


def test_a_blocked_row_comes_back_with_another_key_and_not_with_the_same(runtime: Runtime, pg: Pg) -> None:
    endpoint = new_endpoint()
    service.save_subscription(runtime, subscribe(endpoint))
    lane = ledger.lane(pg)
    (sibling,) = subscribers(pg, 1)
    settle(runtime, lane, [(sibling, A)])
    settle(runtime, lane, [(rows.claim(pg, endpoint)[0], Finding.MISMATCH)])
    saved = service.save_subscription(runtime, subscribe(endpoint))
    assert (saved.advice, rows.row(pg, endpoint)["send_block"]) == ("resubscribe", "key_mismatch")
    pg.execute("UPDATE push_subscription SET vapid_key_id = 'old'")
    service.save_subscription(runtime, subscribe(endpoint))
    pg.execute("UPDATE push_subscription SET vapid_key_id = 'test'")
    assert rows.row(pg, endpoint)["registration_no"] == 3


def test_keys_that_cannot_encrypt_block_their_row_once(runtime: Runtime, pg: Pg, lane: int) -> None:
    (broken,) = subscribers(pg, 1)
    for _ in range(2):
        assert settle(runtime, lane, [(broken, Finding.BAD_KEYS)]).outcomes == [EvidenceOutcome.BLOCKED]
    assert table(pg)[broken][7] == "bad_keys"
    assert states(pg) == {"active": 1}


def test_a_device_limit_only_ever_shrinks(runtime: Runtime, pg: Pg, lane: int) -> None:
    (row,) = subscribers(pg, 1)
    for limit in (3000, 2744, 2900):
        settle(runtime, lane, [(row, Finding.DEVICE_LIMIT)], max_payload=limit)
    assert pg.execute("SELECT max_payload FROM push_subscription").fetchone() == (2744,)


def test_a_batch_is_few_statements(runtime: Runtime, pg: Pg, lane: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = subscribers(pg, 300)
    found = [A] * 280 + [G] * 5 + [V] * 5 + [N] * 10
    statements: list[Any] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *args: Any, **kwargs: Any) -> Any:
        statements.append(query)
        return execute(self, query, *args, **kwargs)

    with runtime.db.transaction() as tx:
        evidence = [Evidence(row, 1, what, tx.now, lane_id=lane) for row, what in zip(ids, found, strict=True)]
        monkeypatch.setattr(psycopg.Cursor, "execute", counted)
        apply_batch(tx, runtime.settings, "fcm", evidence, None)
    assert len(statements) <= 14
    assert evidence_states(pg) == {"applied": 10}
