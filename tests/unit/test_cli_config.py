"""Settings as they are shown, and keys as they are made."""

import shlex
from pathlib import Path

import pytest
from pydantic import SecretStr

from pushops.settings import load_settings
from pushops.settings.origin import MASKED, masked
from pushops.subscriptions.keychain import keychain
from tests.commands import call
from tests.made import make_settings, random_key
from tests.sweeping import as_environment

PASSWORD = "correct-horse"  # noqa: S105  (nobody's)


def test_generated_keys_are_settings_that_load(monkeypatch: pytest.MonkeyPatch) -> None:
    done = call("keys", "generate", "--vapid-id", "2026", "--seal-version", "3")
    for line in done.out.splitlines():
        name, _, value = shlex.split(line)[0].partition("=")
        monkeypatch.setenv(name, value)
    chain = keychain(load_settings())
    assert (chain.ring.versions, chain.vapid_id) == ((3,), "2026")
    assert chain.vapid["2026"].public_text in done.err


def test_generated_keys_are_new_each_time() -> None:
    assert call("keys", "generate", "--json").json != call("keys", "generate", "--json").json


def test_secrets_are_masked_in_every_form() -> None:
    keys = [random_key() for _ in range(3)]
    environment = {
        "PUSHOPS_DATABASE_URL": f"postgresql://app:{PASSWORD}@db.internal:5433/push?sslpassword={PASSWORD}",
        "PUSHOPS_BROKER_URL": f"redis://:{PASSWORD}@cache.internal:6379/2",
        "PUSHOPS_LOG_HMAC_KEY": keys[0],
        "PUSHOPS_SEAL_KEYS": f'{{"7": "{keys[1]}"}}',
        "PUSHOPS_VAPID_KEYS": f'{{"main": "{keys[2]}"}}',
        "PUSHOPS_SENTRY_DSN": f"https://{PASSWORD}@sentry.internal/1",
    }
    for extra in ([], ["--json"]):
        done = call("config", *extra, **environment)
        assert done.code == 0
        assert not [secret for secret in (PASSWORD, *keys) if secret in done.text]
    assert "db.internal:5433/push" in done.out
    assert done.json["PUSHOPS_SEAL_KEYS"]["value"] == {"7": MASKED}


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{PASSWORD}/x@db/push",  # a slash that should have been escaped
        f"redis://:12/{PASSWORD}@cache:6379/0",
        f"host=db password={PASSWORD}",
        f"postgresql://app@db:{PASSWORD}/push",
        f"{PASSWORD}",
    ],
)
def test_what_does_not_read_as_a_plain_url_is_masked_whole(url: str) -> None:
    assert masked("database_url", SecretStr(url)) == MASKED


def test_it_says_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "pushops.toml"
    file.write_text('pool_size = 7\nqueue = "other"\n')
    found = call("config", "--json", PUSHOPS_CONFIG=str(file), PUSHOPS_QUEUE="mine").json
    assert found["PUSHOPS_POOL_SIZE"] == {"value": 7, "in_force": 7, "from": "file"}
    assert found["PUSHOPS_QUEUE"] == {"value": "mine", "in_force": "mine", "from": "environment"}
    assert found["PUSHOPS_SWEEP_PAUSE_MS"]["from"] == "default"


def test_windows_that_follow_the_cadence_are_shown_as_they_are_in_force() -> None:
    found = call("config", "--json", PUSHOPS_CADENCE="monthly").json
    assert found["PUSHOPS_STALE_AFTER"] == {"value": "30d", "in_force": "60d", "from": "default"}


def test_every_wrong_setting_is_named_in_one_go() -> None:
    done = call("config", PUSHOPS_POOL_SIZE="0", PUSHOPS_SWEEP_BACH_ROWS="1")
    assert (done.code, done.out) == (1, "")
    assert "expected PUSHOPS_POOL_SIZE to be an integer between 2 and 200" in done.err
    assert "did you mean PUSHOPS_SWEEP_BATCH_ROWS?" in done.err


def test_an_environment_made_of_settings_reads_back_as_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings("postgresql://db/push")
    for name, value in as_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings


def test_a_section_is_shown_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "pushops.toml"
    file.write_text('[sweeps.links]\ntable = "public.links"\nexpires = "expires_at"\nretention = "90d"\n')
    done = call("config", PUSHOPS_CONFIG=str(file))
    assert "links: table='public.links' expires='expires_at' retention='90d'" in " ".join(done.out.split())
