"""What must never be seen again after a subscription came in: not in a table, a log, a metric or an error's text."""

import base64
import json
from typing import Any

import psycopg
import pytest

from pushops.errors import PushopsError
from pushops.runtime import Runtime
from pushops.subscriptions import service
from pushops.subscriptions.evidence import Evidence, Finding
from tests import rows
from tests.browser import new_endpoint, new_point, subscribe
from tests.rows import Pg


def forms(secret: bytes) -> list[str]:
    """How a secret may be written down."""
    return [
        secret.hex(),
        base64.b64encode(secret).decode().rstrip("="),
        base64.urlsafe_b64encode(secret).decode().rstrip("="),
        repr(secret)[2:-1],
        str(list(secret)),
    ]


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def dump(pg: Pg, *, without: tuple[str, ...] = ()) -> str:
    """Every column of every row of every table, as text."""
    tables = pg.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'pushops'").fetchall()
    lines = []
    for (table,) in tables:
        minus = "".join(f" - '{column}'" for column in without)
        lines += pg.execute(f"SELECT (to_jsonb(t){minus})::text FROM {table} AS t").fetchall()  # type: ignore[arg-type]
    return "\n".join(line for (line,) in lines)


def a_whole_life(rt: Runtime, pg: Pg) -> tuple[list[dict[str, Any]], list[PushopsError]]:
    """Each verb once; the subscriptions that went in, and the errors that came out."""
    made, errors = [subscribe() for _ in range(4)], []
    first, second, third, refused = made
    service.save_subscription(rt, first, user_id="a", user_agent="UA")
    service.save_subscription(rt, first, user_id="b")
    service.touch(rt, first["endpoint"])
    service.rotate(rt, first["endpoint"], second)
    service.detach(rt, second["endpoint"])
    known = rows.claim(pg, second["endpoint"])
    service.record_evidence(rt, Evidence(known[0], known[1], Finding.GONE, known[2], 410, "c"))
    service.undo(rt, reason="gone", dry_run=False, actor="ops")
    service.unsubscribe(rt, endpoint=second["endpoint"])
    service.save_subscription(rt, third)
    broken = {"endpoint": refused["endpoint"] + "#", "keys": refused["keys"]}
    foreign: dict[str, Any] = {"application_server_key": new_point()}
    for call in (
        lambda: service.save_subscription(rt, broken),
        lambda: service.save_subscription(rt, refused, **foreign),
        lambda: service.rotate(rt, second["endpoint"], refused),
        lambda: service.show(rt, endpoint=new_endpoint()),
    ):
        with pytest.raises(PushopsError) as caught:
            call()
        errors.append(caught.value)
    return made, errors


def test_no_auth_secret_is_found_anywhere_in_a_dump(runtime: Runtime, pg: Pg) -> None:
    made, _ = a_whole_life(runtime, pg)
    whole = dump(pg)
    assert made[2]["keys"]["p256dh"] in whole, "the dump must show what is stored"
    for subscription in made:
        found = [form for form in forms(decoded(subscription["keys"]["auth"])) if form in whole]
        assert not found


def test_endpoints_and_keys_stand_in_the_subscription_table_only(runtime: Runtime, pg: Pg) -> None:
    made, _ = a_whole_life(runtime, pg)
    elsewhere = dump(pg, without=("endpoint", "p256dh"))
    for subscription in made:
        assert subscription["endpoint"] not in elsewhere
        assert subscription["keys"]["p256dh"] not in elsewhere


def test_events_and_errors_show_neither_endpoint_nor_key(
    runtime: Runtime, pg: Pg, recorded: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    made, errors = a_whole_life(runtime, pg)
    told = json.dumps(recorded, default=str) + capfd.readouterr().err
    told += "".join(f"{error} {error!r} {error.args} {error.__context__!r} {error.__cause__!r}" for error in errors)
    assert "subscription.saved" in told
    for subscription in made:
        token = subscription["endpoint"].rpartition("/")[2]
        for text in (token, subscription["keys"]["p256dh"], *forms(decoded(subscription["keys"]["auth"]))):
            assert text not in told
    assert pg.execute("SELECT encode(endpoint_hash, 'hex') FROM push_subscription").fetchone()[0] not in told  # type: ignore[index]


def test_an_error_of_the_database_shows_no_value(runtime: Runtime, pg: Pg) -> None:
    pg.execute("ALTER TABLE push_subscription ADD CONSTRAINT no_more CHECK (false) NOT VALID")
    subscription = subscribe()
    with pytest.raises(PushopsError) as caught:
        service.save_subscription(runtime, subscription)
    text = f"{caught.value!r} {caught.value.__context__!r} {caught.value.__cause__!r}"
    assert "no_more" in text
    assert caught.value.__suppress_context__
    assert subscription["endpoint"] not in str(caught.value)


def test_a_sealed_secret_opens_in_its_own_row_only(runtime: Runtime, pg: Pg) -> None:
    """A9 of the features."""
    from pushops.subscriptions.keychain import AUTH, keychain
    from pushops.subscriptions.sealing import TamperedSealError

    one, other = subscribe(), subscribe()
    for subscription in (one, other):
        service.save_subscription(runtime, subscription)
    mine, theirs = (rows.row(pg, subscription["endpoint"]) for subscription in (one, other))
    ring = keychain(runtime.settings).ring
    opened = ring.open(AUTH, mine["endpoint_hash"], mine["auth_key_version"], mine["auth_sealed"])
    assert opened == decoded(one["keys"]["auth"])
    with pytest.raises(TamperedSealError):
        ring.open(AUTH, theirs["endpoint_hash"], mine["auth_key_version"], mine["auth_sealed"])


def test_the_tables_hold_no_foreign_key_that_a_delete_would_have_to_check(pg: Pg) -> None:
    """C18."""
    assert pg.execute("SELECT count(*) FROM pg_constraint WHERE contype = 'f'").fetchone() == (0,)


def test_psycopg_is_told_nothing_that_it_would_show(database_url: str) -> None:
    """A driver error's own text would repeat the row; ours does not, which the tests above rely on."""
    with psycopg.connect(database_url) as conn, pytest.raises(psycopg.errors.CheckViolation, match="DETAIL"):
        conn.execute(
            "INSERT INTO pushops.push_subscription (endpoint_hash, endpoint, push_service) VALUES ('x', 'y', 'z')"
        )
