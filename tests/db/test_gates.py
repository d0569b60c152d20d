"""The gates, one at a time and in their order: the same text judges previews, claims and openings."""

from typing import Any

import pytest

from pushops.db import Tx
from pushops.deadletters.filters import Filter, parse
from pushops.deadletters.store import gates
from pushops.runtime import Runtime
from tests.letters import park_letter
from tests.replaying import Pg, park
from tests.sending import make_live, sent

KEYS = ("test",)
REPLAYED = (
    "INSERT INTO push_dlq_attempt (replay_key, attempt, kind, settled_at, outcome)"
    " SELECT replay_key, 11, 'replay', now(), 'accepted' FROM push_dlq"
)
UNSETTLED = "INSERT INTO push_dlq_attempt (replay_key, attempt, kind) SELECT replay_key, 11, 'replay' FROM push_dlq"
UNHEALTHY = (
    "INSERT INTO push_provider (push_service, unhealthy_at) VALUES ('fcm', now())"
    " ON CONFLICT (push_service) DO UPDATE SET unhealthy_at = now()"
)
GUARDED = (
    "INSERT INTO push_provider (push_service, guard_id) VALUES ('fcm', gen_random_uuid())"
    " ON CONFLICT (push_service) DO UPDATE SET guard_id = gen_random_uuid()"
)
GONE = "UPDATE push_subscription SET state = 'revoked', deleted_at = now(), revoked_at = now(), end_reason = 'gone'"

# What is changed, and which verdict it brings: None where the letter may still be sent.
CASES: dict[str, tuple[list[str], str | None]] = {
    "nothing": ([], None),
    "not replayable": (["UPDATE push_dlq SET replayable = false"], "not_replayable"),
    "cancelled": (["UPDATE push_message SET cancelled_at = now()"], "message_cancelled"),
    "59 seconds": (["UPDATE push_dlq SET expires_at = now() + interval '59 seconds'"], "ttl_expired"),
    "90 seconds": (["UPDATE push_dlq SET expires_at = now() + interval '90 seconds'"], None),
    "gone": ([GONE], "subscription_gone"),
    "erased": (["DELETE FROM push_subscription"], "subscription_gone"),
    "stale": (["UPDATE push_subscription SET state = 'stale'"], "subscription_gone"),
    "blocked": (["UPDATE push_subscription SET send_block = 'dead_service'"], "subscription_gone"),
    "taken over": (["UPDATE push_subscription SET user_id = 'somebody'"], "subscription_gone"),
    "message gone": (["DELETE FROM push_message"], "payload_missing"),
    "payload gone": (["UPDATE push_message SET payload_ref = NULL"], "payload_missing"),
    "sent live": (["UPDATE push_dispatch SET outcome = 'accepted'"], "already_replayed"),
    "replayed": ([REPLAYED], "already_replayed"),
    "live in doubt": (["UPDATE push_dlq SET in_doubt = true"], "in_doubt"),
    "attempt open": ([UNSETTLED], "in_doubt"),
    "doubt is fine": (["UPDATE push_dlq SET in_doubt = true, on_in_doubt = 'resend'", UNSETTLED], None),
    "replayed, doubt is fine": (["UPDATE push_dlq SET on_in_doubt = 'resend'", REPLAYED], "already_replayed"),
    "unhealthy": ([UNHEALTHY], "held"),
    "lane held": (["UPDATE push_lane SET hold_id = gen_random_uuid()"], "held"),
    "guarded": ([GUARDED], "held"),
    "guarded and gone": ([GUARDED, GONE], "held"),
    "guarded and stale": ([GUARDED, "UPDATE push_dlq SET replayable = false"], "not_replayable"),
    "no such key": (["UPDATE push_subscription SET vapid_key_id = 'lost'"], "held"),
    "no key": (["UPDATE push_subscription SET vapid_key_id = NULL"], "held"),
    "asked for time": (
        ["INSERT INTO push_throttle SELECT endpoint_hash, now() + interval '1 minute' FROM push_dlq"],
        "held",
    ),
    "asked for time before": (
        ["INSERT INTO push_throttle SELECT endpoint_hash, now() - interval '1 minute' FROM push_dlq"],
        None,
    ),
    "service paused": (["INSERT INTO push_pause (kind, name, paused_by) VALUES ('provider', 'fcm', 'x')"], "held"),
    "key paused": (["INSERT INTO push_pause (kind, name, paused_by) VALUES ('key', 'test', 'x')"], "held"),
    "campaign paused": (["INSERT INTO push_pause (kind, name, paused_by) VALUES ('campaign', 'c', 'x')"], "held"),
    "other campaign paused": (["INSERT INTO push_pause (kind, name, paused_by) VALUES ('campaign', 'd', 'x')"], None),
    "still with live senders": (["UPDATE push_dispatch SET state = 'due', outcome = NULL, ended_at = NULL"], "held"),
    "stale and gone": (["UPDATE push_dlq SET replayable = false", GONE], "not_replayable"),
    "gone and replayed": ([GONE, REPLAYED], "subscription_gone"),
    "replayed and unhealthy": ([REPLAYED, UNHEALTHY], "already_replayed"),
}


def one_letter(rt: Runtime, pg: Pg) -> None:
    make_live(pg, 1, hosts=("fcm.googleapis.com",), services=("fcm",))
    park(pg, sent(rt, campaign="c"))


def judged(rt: Runtime, wanted: Filter | None = None) -> list[tuple[str | None, int]]:
    with rt.db.transaction() as tx:
        return [(row.verdict, row.letters) for row in gates.preview(tx, wanted or Filter(), KEYS)]


@pytest.mark.parametrize(("changes", "verdict"), CASES.values(), ids=CASES)
def test_the_first_gate_that_is_closed_says_why(
    runtime: Runtime, pg: Pg, changes: list[str], verdict: str | None
) -> None:
    one_letter(runtime, pg)
    with pg.transaction():
        pg.execute("SET LOCAL session_replication_role = replica")  # also what no statement of ours may change
        for change in changes:
            _allow_owner_change(pg, change)
            pg.execute(change.encode())
    assert judged(runtime) == [(verdict, 1)]


def _allow_owner_change(pg: Pg, change: str) -> None:
    if "user_id" in change:  # owner_no is raised by a trigger
        pg.execute("SET LOCAL session_replication_role = DEFAULT")


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [
        ({"error_class": "'poison'"}, (1, 1, 0)),
        ({"next_replay_at": "now() + interval '1 minute'"}, (1, 0, 1)),
        ({"replay_state": "'claimed'", "claim_token": "new_id()", "claimed_until": "now()"}, (0, 0, 0)),
    ],
)
def test_what_a_replay_does_not_look_at_is_counted_apart(
    runtime: Runtime, pg: Pg, columns: dict[str, str], left_out: tuple[int, int, int]
) -> None:
    park_letter(pg, **columns)
    with runtime.db.transaction() as tx:
        found = gates.left_out(tx, Filter())
    assert judged(runtime) == []
    assert (found.total, found.poison, found.waiting) == left_out


def test_poison_is_looked_at_where_it_is_asked_for(runtime: Runtime, pg: Pg) -> None:
    park_letter(pg, error_class="'poison'")
    park_letter(pg)
    assert judged(runtime, parse({"class": "poison"})) == [("subscription_gone", 1)]
    assert judged(runtime, parse({"campaign": "spring"})) == [("subscription_gone", 1)]


def test_force_lifts_the_third_gate_only(runtime: Runtime, pg: Pg) -> None:
    one_letter(runtime, pg)
    pg.execute(REPLAYED)
    pg.execute(UNSETTLED.replace("11", "12"))
    assert verdict(runtime, forced=True) is None
    assert verdict(runtime, forced=False) == "already_replayed"
    pg.execute(UNHEALTHY)
    assert verdict(runtime, forced=True) == "held"
    pg.execute(GONE)
    assert verdict(runtime, forced=True) == "subscription_gone"
    pg.execute("UPDATE push_dlq SET replayable = false")
    assert verdict(runtime, forced=True) == "not_replayable"


def verdict(rt: Runtime, *, forced: bool) -> Any:
    def judge(tx: Tx) -> Any:
        query = gates.PREVIEW
        return tx.rows(query, Filter().params() | dict(gates.params(KEYS, forced=forced)), gates.Counted)[0].verdict

    with rt.db.transaction() as tx:
        return judge(tx)
