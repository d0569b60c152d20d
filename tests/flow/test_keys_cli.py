"""Rolling keys from the command line: lines that settings take, counts that are right, and refusals that say why."""

import json
import re
import shlex
import sys
import types
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pushops.delivery import payloads
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.subscriptions.keys import generate_vapid_key, load_vapid_key
from tests.browser import subscribe
from tests.commands import Called, call
from tests.keyrolls import KEYS, add_sealed, holding, ring_of, unreadable, versions, with_keys
from tests.made import random_key
from tests.sweeping import ROOT, publishing, quick, workers

Pg = psycopg.Connection[Any]


@pytest.fixture
def one(settings: Settings) -> Settings:
    return with_keys(settings, 1, current=1)


@pytest.fixture
def both(settings: Settings) -> Settings:
    return with_keys(settings, 1, 2, current=2, statement_timeout=timedelta(seconds=5))


def lines_of(done: Called) -> dict[str, str]:
    """The settings lines as a shell reads them."""
    assert done.code == 0, done.text
    return dict(word.split("=", 1) for word in shlex.split(done.out))


def store_payload(rt: Runtime, pg: Pg) -> None:
    """A message that is over in an hour, with a payload under the current key."""
    (message_id, made_at) = pg.execute("SELECT new_id(), now()").fetchone() or (None, None)
    ref, version = payloads.store(rt, message_id, made_at, b"hello")
    pg.execute(
        "INSERT INTO push_message (message_id, ttl, expires_at, first_dispatched_at, payload_ref, payload_key_version,"
        " payload_bytes) VALUES (%s, 3600, now() + interval '1 h', now(), %s, %s, 5)",
        [message_id, ref, version],
    )


# Seal keys


def test_a_whole_roll_from_the_lines_that_the_commands_print(one: Settings, pg: Pg) -> None:
    """Every step's settings are what the step before printed, and every row opens under each of them."""
    with holding(one, 1, current=1) as rt:
        add_sealed(pg, ring_of(rt), 25)
    first = lines_of(call("keys", "seal", "add", settings=one))
    assert first["PUSHOPS_SEAL_KEY_VERSION"] == "1", "adding a key changes nothing yet"
    assert json.loads(first["PUSHOPS_SEAL_KEYS"]).keys() == {"1", "2"}
    hint = call("keys", "seal", "roll", "--dry-run", settings=one, **first)
    assert "PUSHOPS_SEAL_KEY_VERSION=2" in hint.err
    second = first | {"PUSHOPS_SEAL_KEY_VERSION": "2"}
    refused = call("keys", "seal", "retire", "1", settings=one, **second)
    assert (refused.code, "25 row(s) sealed with it" in refused.err, refused.out) == (1, True, "")
    rolled = call("keys", "seal", "roll", "--inline", "--json", settings=one, **second)
    assert (rolled.code, rolled.json["runs"][0]["progress"]["rows_done"]) == (0, 25)
    assert versions(pg) == {2: 25}
    third = lines_of(call("keys", "seal", "retire", "1", settings=one, **second))
    assert json.loads(third["PUSHOPS_SEAL_KEYS"]).keys() == {"2"}
    listed = call("keys", "seal", "list", "--json", settings=one, **third)
    assert [(use["version"], use["current"], use["rows"]) for use in listed.json] == [(2, True, 25)]
    audited = pg.execute("SELECT verb, detail FROM audit ORDER BY audit_id").fetchall()
    assert audited == [("seal_roll", {"turns": ["1>2"]}), ("seal_retire", {"version": 1})]


def test_the_steps_of_the_page_roll_a_key(one: Settings, pg: Pg) -> None:
    """docs/keys.md, line by line: what is printed becomes the settings of the next step."""
    page = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    steps = re.findall(r"^ {7}(.+)$", page.split("## Rolling a seal key")[1].split("\n## ")[0], re.MULTILINE)
    with holding(one, 1, current=1) as rt:
        add_sealed(pg, ring_of(rt), 5)
    environment: dict[str, str] = {}
    for step in steps:
        if step.startswith("PUSHOPS_"):
            environment |= dict([step.split("=", 1)])
            continue
        done = call(*shlex.split(step)[1:], settings=one, **environment)
        assert done.code == 0, f"{step}: {done.text}"
        if step.split()[3] in ("add", "retire"):
            environment |= lines_of(done)
    assert (len(steps), versions(pg)) == (6, {2: 5})
    assert json.loads(environment["PUSHOPS_SEAL_KEYS"]).keys() == {"2"}


@pytest.mark.long
def test_workers_roll_and_the_command_follows_them(both: Settings, pg: Pg, valkey_url: str) -> None:
    hurried = quick(both, valkey_url)
    with holding(both, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 50)
    with publishing(hurried), workers(hurried, 1):
        done = call("keys", "seal", "roll", "--wait", "--timeout", "60s", "--json", settings=hurried)
    assert (done.code, done.json["exit_code"], versions(pg)) == (0, 0, {2: 50})
    assert [(use["version"], use["rows"]) for use in done.json["versions"]] == [(1, 0), (2, 50)]


def test_a_sweep_of_that_name_alone_says_which_command_rolls(both: Settings) -> None:
    for verb in (("run", "--inline"), ("preview",)):
        done = call("sweep", verb[0], "reseal-auth", *verb[1:], settings=both)
        assert (done.code, "pushops keys seal roll" in done.err) == (1, True)
    assert "reseal-auth" in call("sweep", "list", settings=both).out


def test_a_dry_run_counts_and_changes_nothing(both: Settings, pg: Pg) -> None:
    with holding(both, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 4)
        add_sealed(pg, ring_of(rt), 3, version=2)
    done = call("keys", "seal", "roll", "--dry-run", "--json", settings=both)
    assert [(use["version"], use["rows"]) for use in done.json["versions"]] == [(1, 4), (2, 3)]
    assert [(run["filter"], run["preview"]["eligible"]) for run in done.json["runs"]] == [("1>2", 4)]
    shown = call("keys", "seal", "roll", "--dry-run", settings=both)
    assert "1>2: 4 rows in 1 batches" in shown.out
    assert versions(pg) == {1: 4, 2: 3}
    assert pg.execute("SELECT count(*) FROM sweep_run").fetchone() == (0,)


def test_rolling_where_all_is_done_says_so(both: Settings) -> None:
    done = call("keys", "seal", "roll", "--inline", settings=both)
    assert (done.code, "every row is sealed with the current version" in done.out) == (0, True)


def test_rolling_without_a_broker_says_what_to_do(both: Settings, pg: Pg) -> None:
    with holding(both, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 1)
    done = call("keys", "seal", "roll", settings=both)
    assert (done.code, "--inline runs it in this process instead" in done.err) == (1, True)


def test_a_version_that_payloads_are_sealed_with_is_not_retired(both: Settings, pg: Pg) -> None:
    """They are not sealed anew: they are over soon enough, and the refusal says when."""
    with holding(both, 1, 2, current=1) as rt:
        store_payload(rt, pg)
    done = call("keys", "seal", "retire", "1", settings=both)
    assert done.code == 1
    assert "the payloads of 1 message(s) (they are kept until " in done.err
    pg.execute("UPDATE push_message SET payload_ref = NULL, payload_key_version = NULL")
    assert call("keys", "seal", "retire", "1", settings=both).code == 0


def test_a_version_that_an_import_in_hand_uses_is_not_retired(both: Settings, pg: Pg) -> None:
    pg.execute("CREATE TABLE staged PARTITION OF import_staging FOR VALUES IN ('00000000-0000-0000-0000-000000000001')")
    pg.execute(
        "INSERT INTO import_staging (import_id, ordinal, endpoint_hash, endpoint, push_service, p256dh, auth_sealed,"
        " auth_key_version, content_encoding) VALUES ('00000000-0000-0000-0000-000000000001', 1, sha256('x'), 'x',"
        " 'fcm', 'x', 'x', 1, 'aes128gcm')"
    )
    done = call("keys", "seal", "retire", "1", settings=both)
    assert (done.code, "1 row(s) of an import that runs" in done.err) == (1, True)


@pytest.mark.parametrize(("version", "said"), [("2", "it is the current one"), ("7", "held or in use (1, 2), got 7")])
def test_what_cannot_be_retired_is_refused_with_the_reason(both: Settings, version: str, said: str) -> None:
    done = call("keys", "seal", "retire", version, settings=both)
    assert (done.code, done.out) == (1, "")
    assert said in done.err


def test_rows_under_a_key_that_is_not_held_are_shown_and_keep_the_roll_of_others_from_nothing(
    settings: Settings, pg: Pg
) -> None:
    with holding(settings, 1, 2, 3, current=3) as rt:
        add_sealed(pg, ring_of(rt), 2, version=1)
        add_sealed(pg, ring_of(rt), 3, version=2)
    without = with_keys(settings, 2, 3, current=3)
    done = call("keys", "seal", "roll", "--inline", settings=without)
    assert (done.code, versions(pg)) == (0, {1: 2, 3: 3})
    assert "NOT HELD: put it back into PUSHOPS_SEAL_KEYS" in done.out


def test_a_roll_of_two_old_versions_is_two_runs(settings: Settings, pg: Pg) -> None:
    all_ = with_keys(settings, 1, 2, 3, current=3)
    with holding(settings, 1, 2, 3, current=3) as rt:
        add_sealed(pg, ring_of(rt), 2, version=1)
        add_sealed(pg, ring_of(rt), 3, version=2)
        done = call("keys", "seal", "roll", "--inline", "--json", settings=all_)
        assert sorted(run["filter"] for run in done.json["runs"]) == ["1>3", "2>3"]
        assert (versions(pg), unreadable(pg, ring_of(rt))) == ({3: 5}, 0)


def test_no_key_reaches_a_command_that_does_not_print_settings(both: Settings, pg: Pg) -> None:
    with holding(both, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 3)
    for words in (("seal", "list"), ("seal", "roll", "--inline"), ("vapid", "plan"), ("seal", "retire", "2")):
        done = call("keys", *words, settings=both)
        assert not [key for key in KEYS.values() if key in done.text]


def test_keys_that_a_provider_gives_are_not_printed(both: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    vapid = both.vapid_keys["test"].get_secret_value()
    module = types.ModuleType("kms")
    module.keys = lambda: {"seal_keys": KEYS, "seal_key_version": 3, "vapid_keys": {"a": vapid}}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kms", module)
    given = both.model_copy(update={"seal_keys": {}, "vapid_keys": {}, "vapid_key_id": "a", "key_provider": "kms:keys"})
    added = call("keys", "seal", "add", settings=given)
    assert json.loads(lines_of(added)["PUSHOPS_SEAL_KEYS"]).keys() == {"4"}
    retired = call("keys", "seal", "retire", "1", settings=given)
    beside = call("keys", "vapid", "add", settings=given)
    assert (retired.code, retired.out, json.loads(lines_of(beside)["PUSHOPS_VAPID_KEYS"]).keys()) == (0, "", {"2"})
    for done in (added, retired, beside):
        assert "keys that kms:keys gives are not shown" in done.err
        assert not [key for key in (*KEYS.values(), vapid) if key in done.text]


# VAPID keys


def test_a_generated_pair_is_one_that_settings_take() -> None:
    done = call("keys", "vapid", "generate", "--id", "2026", "--json")
    key = load_vapid_key(json.loads(done.json["PUSHOPS_VAPID_KEYS"])["2026"])
    assert (done.json["PUSHOPS_VAPID_KEY_ID"], done.json["vapid_public_key"]) == ("2026", key.public_text)


def test_a_key_is_added_beside_those_in_use(one: Settings) -> None:
    lines = lines_of(call("keys", "vapid", "add", "--id", "k2", settings=one))
    assert json.loads(lines["PUSHOPS_VAPID_KEYS"]).keys() == {"test", "k2"}
    assert lines["PUSHOPS_VAPID_KEY_ID"] == "test", "adding a key changes nothing yet"
    planned = call("keys", "vapid", "plan", "--to", "k2", "--json", settings=one, **lines)
    assert (planned.json["target"], planned.json["must_resubscribe"]) == ("k2", 0)


@pytest.mark.parametrize("form", ["pem", "web-push"])
def test_a_key_of_ones_own_is_added_from_stdin_and_never_repeated(one: Settings, form: str) -> None:
    key = generate_vapid_key()
    given = json.dumps({"publicKey": key.public_text, "privateKey": key.private_text})
    if form == "pem":
        from tests.unit.test_keyforms import FORMS

        given = str(FORMS["SEC1"](key.private))
    lines = lines_of(call("keys", "vapid", "add", "--file", "-", settings=one, stdin=given))
    assert load_vapid_key(json.loads(lines["PUSHOPS_VAPID_KEYS"])["2"]).public == key.public
    wrong = call("keys", "vapid", "add", "--file", "-", settings=one, stdin=given.replace(given[40:60], "!" * 20))
    assert (wrong.code, wrong.out) == (1, "")
    assert given[70:90] not in wrong.text


def test_a_key_that_is_there_already_is_not_added_again(one: Settings) -> None:
    held = one.vapid_keys["test"].get_secret_value()
    done = call("keys", "vapid", "add", "--id", "k2", "--file", "-", settings=one, stdin=held)
    assert (done.code, "the one that has the id 'test' already" in done.err, held in done.text) == (1, True, False)
    assert "got 'test'" in call("keys", "vapid", "add", "--id", "test", settings=one).err


def test_an_id_that_looks_like_a_key_is_refused_and_not_shown(one: Settings) -> None:
    slip = random_key()
    done = call("keys", "vapid", "add", "--id", slip, settings=one)
    assert (done.code, slip in done.text) == (2, False)


def test_a_plan_counts_who_must_subscribe_again(one: Settings, runtime: Runtime, pg: Pg) -> None:
    """A33, H7: known and assumed, seen lately or not; ended rows do not count, since nobody sends to them."""
    for key_id, count in (("test", 2), ("old", 5)):
        for _ in range(count):
            saved = service.save_subscription(runtime, subscribe())
            pg.execute("UPDATE push_subscription SET vapid_key_id = %s WHERE id = %s", [key_id, saved.id])
    query = "UPDATE push_subscription SET {} WHERE id = (SELECT max(id::text)::uuid FROM push_subscription)"
    pg.execute(query.format("state = 'revoked', revoked_at = now(), deleted_at = now(), end_reason = 'gone'").encode())
    pg.execute(
        "UPDATE push_subscription SET last_seen_at = now() - interval '31 days', vapid_key_assumed = false,"
        " send_block = 'bad_keys' WHERE id = (SELECT min(id::text)::uuid FROM push_subscription"
        " WHERE vapid_key_id = 'old')"
    )
    plan = call("keys", "vapid", "plan", "--json", settings=one).json
    assert (plan["target"], plan["must_resubscribe"], plan["seen"]) == ("test", 4, 3)
    counts = {use["id"]: (use["held"], use["rows"], use["live"], use["assumed"], use["seen"]) for use in plan["keys"]}
    assert counts == {"test": (True, 2, 2, 2, 2), "old": (False, 4, 3, 3, 3)}
    assert "4 browser(s) must subscribe again; 3 of them" in call("keys", "vapid", "plan", settings=one).out


def test_a_vapid_key_in_use_is_retired_only_by_force_and_says_what_that_costs(one: Settings, pg: Pg) -> None:
    two = one.model_copy(
        update={"vapid_keys": {**one.vapid_keys, "k2": one.vapid_keys["test"].__class__(random_key())}}
    ).model_copy(update={"vapid_key_id": "k2"})
    with holding(one, 1, current=1) as rt:
        service.save_subscription(rt, subscribe())
        pg.execute("UPDATE push_subscription SET vapid_key_id = 'test'")
    refused = call("keys", "vapid", "retire", "test", settings=two)
    assert (refused.code, "got 1 (1 seen within 30 days)" in refused.err, refused.out) == (1, True, "")
    forced = call("keys", "vapid", "retire", "test", "--force", settings=two)
    assert json.loads(lines_of(forced)["PUSHOPS_VAPID_KEYS"]).keys() == {"k2"}
    assert "1 browser(s) must subscribe again" in forced.err
    assert pg.execute("SELECT verb, detail FROM audit WHERE verb = 'vapid_retire'").fetchall() == [
        ("vapid_retire", {"key": "test", "rows": 1, "force": True})
    ]
    assert pg.execute("SELECT state FROM push_subscription").fetchone() == ("pending",)


def test_the_current_vapid_key_is_never_retired(one: Settings) -> None:
    done = call("keys", "vapid", "retire", "test", "--force", settings=one)
    assert (done.code, "set PUSHOPS_VAPID_KEY_ID to another first" in done.err) == (1, True)
    assert "held or in use" in call("keys", "vapid", "retire", "nobody", settings=one).err
