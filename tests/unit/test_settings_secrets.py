"""A secret that was mistyped is refused without being repeated, nor any part of it."""

import json
import traceback

import pytest
from pydantic import SecretStr

from pushops.db import Database
from pushops.db.migrate import connect
from pushops.errors import SettingsError
from pushops.runtime import open_runtime
from pushops.settings import load_settings
from tests.commands import call
from tests.made import random_key

PASSWORD = "correct-horse"  # noqa: S105  (nobody's)

BAD_DATABASE_URLS = (
    f"postgresql+psycopg://app:{PASSWORD}@db/app",
    f"postgres//app:{PASSWORD}@db/app",
    f"postgresql://app:{PASSWORD} battery@db/app",
    f"postgresql://app:{PASSWORD}%zz@db/app",
    f"postgresql://app:{PASSWORD}@[db/app",
    f"postgresql://app:{PASSWORD}@db/app?{PASSWORD}=1",
    f"host=db password={PASSWORD} user",
)
MISREAD_DATABASE_URLS = (
    f"postgresql://app:{PASSWORD}/x@db/app",  # a port, to libpq
    f"postgresql://app:1/{PASSWORD}@db/app",  # a database
    f"postgresql://app:x@{PASSWORD}@db/app",  # a host
)


@pytest.mark.parametrize("url", BAD_DATABASE_URLS + MISREAD_DATABASE_URLS)
def test_a_bad_database_url_is_refused_unseen(url: str) -> None:
    done = call("check", PUSHOPS_DATABASE_URL=url)
    assert done.code == 1
    assert PASSWORD not in done.text
    assert "expected PUSHOPS_DATABASE_URL to be a libpq URL such as postgresql://user@host/db" in done.text
    assert "got a value that is not shown" in " ".join(done.text.split())


@pytest.mark.parametrize("url", BAD_DATABASE_URLS)
@pytest.mark.parametrize("opened", [Database, connect])
def test_a_bad_database_url_that_came_past_the_settings_is_not_repeated(url: str, opened: type[Database]) -> None:
    settings = load_settings().model_copy(update={"database_url": SecretStr(url)})
    with pytest.raises(SettingsError) as caught:
        opened(settings)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:p%40ss%2Fw@db,other:5433/app?target_session_attrs=read-write",
        "host=/run/postgresql dbname=app",
        "postgresql:///app?host=/run/postgresql",
        "postgresql://app:a#b@[::1]:5432/app",
    ],
)
def test_what_libpq_reads_is_taken(url: str) -> None:
    found = load_settings(database_url=SecretStr(url)).database_url
    assert found is not None
    assert found.get_secret_value() == url


BAD_REDIS_URLS = (
    f"redis://:{PASSWORD[:7]}#{PASSWORD[7:]}@cache:6379/0",
    f"redis://:{PASSWORD[:7]}/{PASSWORD[7:]}@cache:6379/0",
    f"redis://:{PASSWORD}@cache:6379a/0",
    f"rediss://:{PASSWORD}@cache:99999/0",
    f"redis://u:{PASSWORD}@[cache/0",
    f"redis://cache/0?socket_timeout={PASSWORD}",
)
BAD_BROKER_URLS = (
    *BAD_REDIS_URLS,
    f"redis://:1/{PASSWORD}@cache:6379/0",  # a port, and a database
    f"amqp://u:{PASSWORD}@queue:port//",
    f"sqs://id:{PASSWORD}/x@",
)


@pytest.mark.parametrize("name", ["PUSHOPS_BROKER_URL", "PUSHOPS_REDIS_URL"])
@pytest.mark.parametrize("url", BAD_BROKER_URLS)
def test_a_bad_broker_url_is_refused_unseen(name: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, url)
    done = call("check")
    assert done.code == 1
    assert not [part for part in (PASSWORD[:7], PASSWORD[7:]) if part in done.text]
    assert f"expected {name} to be a URL such as redis://host:6379/0" in done.text


@pytest.mark.parametrize("url", BAD_REDIS_URLS)
def test_a_bad_redis_url_that_came_past_the_settings_is_not_repeated(url: str) -> None:
    settings = load_settings(database_url=SecretStr("postgresql://db/app")).model_copy(
        update={"redis_url": SecretStr(url)}
    )
    with pytest.raises(SettingsError, match="expected PUSHOPS_REDIS_URL to be a URL") as caught:
        open_runtime(settings)
    shown = "".join(traceback.format_exception(caught.value))
    assert not [part for part in (PASSWORD[:7], PASSWORD[7:]) if part in shown]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p%40s%2Fs%23@cache:6379/2?ssl_cert_reqs=none",
        "rediss://user:x@[::1]:6379",
        "unix:///run/valkey.sock?db=1",
        "sentinel://one:26379;sentinel://two:26379",
        "amqp://u:x@queue:5672//",
        "sqs://id:x%2Fy@",
        "memory://",
        "",
    ],
)
def test_what_a_broker_may_be_called_is_taken(url: str) -> None:
    found = load_settings(broker_url=SecretStr(url)).broker_url
    assert found is not None
    assert found.get_secret_value() == url


@pytest.mark.parametrize("version", ["", "1"])
@pytest.mark.parametrize("others", [{}, {"1": random_key()}])
@pytest.mark.parametrize("name", ["PUSHOPS_SEAL_KEYS", "PUSHOPS_VAPID_KEYS"])
def test_a_key_in_the_place_of_its_id_is_not_shown(
    name: str, others: dict[str, str], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = random_key()
    monkeypatch.setenv(name, json.dumps({key: "1", **others}))
    if version:
        monkeypatch.setenv("PUSHOPS_SEAL_KEY_VERSION", version)
    for command in ("config", "check"):
        done = call(command)
        assert done.code == 1
        assert key not in done.text
        assert f"expected {name} to" in done.text
