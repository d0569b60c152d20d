"""Setting up and looking after an installation: the doctor, migrations, the sandbox, and who refuses to start."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from pushops.sandbox import Sandbox
from pushops.sandbox.keys import FILE
from pushops.settings import Settings
from tests import servers
from tests.commands import call, run_python, spawn
from tests.keyrolls import add_sealed, holding, ring_of, with_keys
from tests.made import make_settings, random_key
from tests.migrating import SHIPPED
from tests.sweeping import as_environment, publishing

pytestmark = pytest.mark.long

Pg = psycopg.Connection[Any]
SUBJECT = "mailto:ops@push.acme.io"


@pytest.fixture
def complete(settings: Settings, valkey_url: str) -> Iterator[Settings]:
    """Settings that the doctor has nothing against."""
    found = settings.model_copy(update={"broker_url": SecretStr(valkey_url), "vapid_subject": SUBJECT})
    with publishing(found):
        yield found


def findings(settings: Settings | None = None, **environment: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """The exit code, and what was found, by name."""
    done = call("check", "--json", settings=settings, **environment)
    by_name: dict[str, list[dict[str, str]]] = {}
    for finding in done.json["findings"]:
        by_name.setdefault(finding["name"], []).append(finding)
    assert done.json["ok"] == (done.code == 0)
    return done.code, by_name


def test_a_sound_installation_has_no_problem(complete: Settings) -> None:
    code, found = findings(complete)
    assert code == 0, found
    names = {
        "settings",
        "keys",
        "VAPID subject",
        "database",
        "clock",
        "migrations",
        "indexes",
        "foreign keys",
        "rights",
    }
    names |= {"replicas", "slots", "keys in rows", "beat", "sweeps", "broker", "eviction", "visibility"}
    assert found.keys() == names
    assert {finding["level"] for name in names - {"beat"} for finding in found[name]} == {"ok"}


def test_a_database_that_does_not_answer_is_a_problem_that_names_no_password(complete: Settings) -> None:
    url = "postgresql://app:correct-horse@127.0.0.1:1/push"
    done = call("check", settings=complete.model_copy(update={"database_url": SecretStr(url)}))
    assert done.code == 1
    assert "problem  database" in done.out
    assert "Connection refused" in done.out
    assert "correct-horse" not in done.text


@pytest.mark.parametrize("words", [("sweep", "list"), ("migrate",), ("subscription", "list")])
def test_a_command_says_why_the_database_does_not_answer(words: tuple[str, ...]) -> None:
    done = call(*words, PUSHOPS_DATABASE_URL="postgresql://app:correct-horse@127.0.0.1:1/push")
    assert (done.code, done.out) == (1, "")
    assert "PUSHOPS_DATABASE_URL names to answer" in done.err
    assert "Connection refused" in done.err
    broken = call(*words, PUSHOPS_DATABASE_URL="correct-horse battery")
    assert broken.code == 1
    assert "correct-horse" not in done.text + broken.text


def test_a_database_without_our_tables_is_told_what_to_run(empty_database_url: str) -> None:
    done = call("sweep", "list", settings=make_settings(empty_database_url))
    assert done.code == 1
    assert "is the database migrated? pushops migrate" in done.err


def test_a_database_without_migrations_is_a_problem(empty_database_url: str) -> None:
    code, found = findings(make_settings(empty_database_url, vapid_subject=SUBJECT))
    assert (code, found["migrations"][0]["level"], found["migrations"][0]["advice"]) == (
        1,
        "problem",
        "pushops migrate",
    )
    assert "indexes" not in found


def test_keys_into_our_tables_are_listed_with_what_they_will_do(pg: Pg, complete: Settings) -> None:
    for table, rest in (("kept", ""), ("freed", "ON DELETE CASCADE"), ("slow", "ON DELETE SET NULL")):
        pg.execute(f"CREATE TABLE public.{table} (other int, sub uuid REFERENCES push_subscription {rest})")
    pg.execute("CREATE INDEX ON public.kept (sub)")
    pg.execute("CREATE INDEX ON public.freed (sub, other)")
    pg.execute("CREATE INDEX ON public.slow (other, sub)")
    code, found = findings(complete)
    levels = {
        finding["found"].removeprefix("public.").split(".")[0]: finding["level"] for finding in found["foreign keys"]
    }
    assert levels == {"kept": "warning", "freed": "ok", "slow": "warning"}
    assert code == 0, "a warning is no problem"


def test_an_invalid_index_is_found(pg: Pg, complete: Settings) -> None:
    pg.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'push_subscription_purge'::regclass")
    code, found = findings(complete)
    assert (code, found["indexes"][0]["level"]) == (1, "problem")
    assert "push_subscription_purge" in found["indexes"][0]["found"]


def test_a_missing_index_of_a_sweep_is_found(pg: Pg, complete: Settings) -> None:
    pg.execute("DROP INDEX push_subscription_scrub")
    code, found = findings(complete)
    assert code == 1
    assert found["indexes"][0]["found"] == "missing: push_subscription_scrub"


def test_a_slot_that_was_never_connected_is_found(pg: Pg, complete: Settings) -> None:
    pg.execute("SELECT pg_create_physical_replication_slot('forgotten')")
    try:
        _, found = findings(complete)
        assert "forgotten was never connected" in found["slots"][0]["found"]
    finally:
        pg.execute("SELECT pg_drop_replication_slot('forgotten')")


def test_replicas_that_are_expected_and_not_there_are_a_problem(complete: Settings) -> None:
    code, found = findings(complete.model_copy(update={"expected_replicas": 1}))
    assert (code, found["replicas"][0]["level"]) == (1, "problem")


def test_a_role_without_rights_is_told_what_to_grant(pg: Pg, complete: Settings, database_url: str) -> None:
    pg.execute("DROP ROLE IF EXISTS plain")
    pg.execute("CREATE ROLE plain LOGIN")
    pg.execute("GRANT USAGE ON SCHEMA pushops TO plain")
    pg.execute("GRANT SELECT ON ALL TABLES IN SCHEMA pushops TO plain")
    try:
        url = SecretStr(database_url.replace("//pushops@", "//plain@"))
        _, found = findings(complete.model_copy(update={"database_url": url}))
        assert found["rights"][0]["level"] == "warning"
        assert "GRANT pg_monitor" in found["rights"][0]["advice"]
    finally:
        pg.execute("DROP OWNED BY plain")
        pg.execute("DROP ROLE plain")


def test_a_broker_that_evicts_or_is_gone_is_a_problem(complete: Settings) -> None:
    import redis

    assert complete.broker_url is not None
    with redis.Redis.from_url(complete.broker_url.get_secret_value()) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            code, found = findings(complete)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert (code, found["eviction"][0]["found"]) == (1, "allkeys-lru")
    gone = complete.model_copy(update={"broker_url": SecretStr("redis://127.0.0.1:1/0")})
    with publishing(gone):
        code, found = findings(gone)
    assert (code, found["broker"][0]["level"]) == (1, "problem")


def test_keys_that_rows_need_and_nobody_holds_are_found(pg: Pg, complete: Settings) -> None:
    pg.execute(
        "INSERT INTO push_subscription (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version,"
        " vapid_key_id) SELECT sha256('x'), 'https://push.acme.io/x', 'fcm', repeat('B', 87), 'x', 9, 'lost'"
    )
    code, found = findings(complete)
    assert code == 1
    assert [finding["level"] for finding in found["keys in rows"]] == ["problem", "warning"]


def test_rows_under_an_old_seal_key_are_a_warning_that_says_how_to_roll(pg: Pg, complete: Settings) -> None:
    rolled = with_keys(complete, 1, 2, current=2)
    with holding(complete, 1, 2, current=2) as rt:
        add_sealed(pg, ring_of(rt), 1, version=1)
        add_sealed(pg, ring_of(rt), 3, version=2)
    code, found = findings(rolled)
    assert (code, found["keys in rows"][0]["level"]) == (0, "warning")
    assert found["keys in rows"][0]["found"] == "1 of 4 row(s) (25%) sealed with version 1"
    assert found["keys in rows"][0]["advice"] == "pushops keys seal roll"


def test_every_wrong_key_is_a_finding_that_does_not_show_it(complete: Settings) -> None:
    wrong = random_key()[:-4]
    done = call("check", settings=complete.model_copy(update={"seal_keys": {"1": SecretStr(wrong)}}))
    assert done.code == 1
    assert "PUSHOPS_SEAL_KEYS" in done.out
    assert wrong not in done.text


# Migrations


def test_migrating_is_told_by_status_and_needed_once(empty_database_url: str) -> None:
    settings = make_settings(empty_database_url)
    assert call("migrate", "--status", settings=settings).code == 1
    assert call("migrate", "--json", settings=settings).json["applied"] == SHIPPED
    assert call("migrate", "--status", "--json", settings=settings).json == {"current": SHIPPED[-1], "pending": []}
    assert call("migrate", settings=settings).out == "up to date, nothing to do\n"


def test_the_script_of_all_migrations_needs_no_database() -> None:
    done = call("migrate", "--sql")
    assert (done.code, done.err) == (0, "")
    assert 'CREATE TABLE "pushops".push_subscription' in done.out


# Sandbox


@pytest.fixture
def folder() -> Iterator[Path]:
    path = servers.new_folder("pushops-cli")
    yield path
    Sandbox(path).down()
    shutil.rmtree(path, ignore_errors=True)


def test_a_sandbox_serves_every_command_until_it_is_down(folder: Path) -> None:
    box = {"PUSHOPS_SANDBOX_DIR": str(folder)}
    assert call("sandbox", "up", "--json", **box).json["applied"] == SHIPPED
    assert call("sandbox", "up", "--json", **box).json["applied"] == []
    assert call("sandbox", "status", **box).code == 0
    listed = spawn("sweep", "list", "--json", **box)
    out, err = listed.communicate(timeout=60)
    assert (listed.returncode, out[0]) == (0, "[")
    assert f"using the sandbox in {folder}" in err
    assert call("sweep", "run", "age-stale", "--inline", **box).code == 0
    assert call("sandbox", "down", **box).code == 0
    assert not folder.exists()
    assert call("sandbox", "status", **box).code == 1
    assert call("sandbox", "env", **box).code == 1
    assert call("sweep", "list", **box).code == 1


def test_a_sandbox_keeps_its_keys_to_its_owner_and_uses_no_others(folder: Path) -> None:
    box = {"PUSHOPS_SANDBOX_DIR": str(folder)}
    call("sandbox", "up", **box)
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    exported = call("sandbox", "env", "--json", **box).json
    assert exported == call("sandbox", "env", "--json", **box).json
    assert call("check", "--json", **box).json["ok"], "its own keys load"
    assert call("check", "--json", **{**exported, **box}).json["ok"], "and so they do when exported"
    own = call("config", "--json", **box, PUSHOPS_LOG_HMAC_KEY=random_key()).json
    assert own["PUSHOPS_SEAL_KEYS"]["from"] == "default", "keys are the sandbox's or one's own, never some of each"


def test_one_url_of_ones_own_is_never_completed_by_a_sandbox(folder: Path, settings: Settings) -> None:
    box = {"PUSHOPS_SANDBOX_DIR": str(folder)}
    call("sandbox", "up", **box)
    done = call("sweep", "run", "purge-tombstones", settings=settings, **box)
    assert done.code == 1
    assert "expected PUSHOPS_BROKER_URL to be set" in done.err
    assert "--inline" in done.err


# Workers and beats

CELERY = "import sys\nfrom celery.__main__ import main\nsys.argv[0] = 'celery'\nmain()"


@pytest.mark.parametrize("what", ["worker", "beat"])
@pytest.mark.parametrize("known", ["nothing", "database", "broker"])
def test_a_worker_or_a_beat_without_both_urls_refuses_to_start(
    what: str, known: str, settings: Settings, valkey_url: str, tmp_path: Path
) -> None:
    environment = {
        "nothing": {},
        "database": as_environment(settings),
        "broker": {"PUSHOPS_BROKER_URL": valkey_url},
    }[known]
    rest = ["-c", "1"] if what == "worker" else ["-s", str(tmp_path / "schedule")]
    done = run_python(CELERY, ["-A", "pushops.tasks", what, *rest], {**os.environ, **environment})
    missing = {"nothing": "PUSHOPS_DATABASE_URL and PUSHOPS_BROKER_URL", "database": "PUSHOPS_BROKER_URL"}
    assert done.code == 1
    assert f"expected {missing.get(known, 'PUSHOPS_DATABASE_URL')} to be set for a {what}" in done.err
