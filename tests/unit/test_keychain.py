"""Key material is checked once, at open; every fault is named and no value is shown."""

import base64
import subprocess
import sys
import types
from typing import Any

import pytest
from pydantic import SecretStr

import pushops
from pushops.errors import SettingsError
from pushops.settings import Settings
from pushops.subscriptions import base64url
from pushops.subscriptions.keychain import keychain
from tests.made import make_settings, random_key

URL = "postgresql://nobody@localhost/nothing"


def changed(**changes: Any) -> Settings:
    return make_settings(URL, **changes)


def test_good_keys_make_one_keychain() -> None:
    settings = changed()
    chain = keychain(settings)
    assert keychain(settings) is chain
    assert (chain.ring.current, chain.vapid_id) == (1, "test")
    assert chain.vapid_id_of(chain.vapid["test"].public) == "test"
    assert chain.vapid_id_of(b"\x04" + bytes(64)) is None


def test_seal_and_log_keys_may_be_hex_or_in_quotes() -> None:
    raw = b"\x01\x23" * 16
    forms = (raw.hex(), f'"{raw.hex().upper()}"', base64.b64encode(raw).decode(), f" {base64url.encode(raw)}\n")
    tags = {keychain(changed(log_hmac_key=SecretStr(form))).tag("https://a.example/x") for form in forms}
    blob = keychain(changed(seal_keys={"1": forms[0]})).ring.seal("auth", b"x", b"secret").blob
    opened = {keychain(changed(seal_keys={"1": form})).ring.open("auth", b"x", 1, blob) for form in forms}
    assert (len(tags), opened) == (1, {b"secret"})


def test_a_tag_depends_on_the_log_key() -> None:
    one, other = keychain(changed()), keychain(changed())
    assert one.tag("https://a.example/x") != other.tag("https://a.example/x")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seal_keys": {}}, "PUSHOPS_SEAL_KEYS"),
        ({"seal_keys": {"1": "c2hvcnQ"}}, "PUSHOPS_SEAL_KEYS"),
        ({"seal_keys": {"1": "not base64!"}}, "PUSHOPS_SEAL_KEYS"),
        ({"seal_keys": {"one": random_key()}, "seal_key_version": None}, "PUSHOPS_SEAL_KEY"),
        ({"log_hmac_key": None}, "PUSHOPS_LOG_HMAC_KEY"),
        ({"log_hmac_key": SecretStr("c2hvcnQ")}, "PUSHOPS_LOG_HMAC_KEY"),
        ({"vapid_keys": {"a": "c2hvcnQ"}, "vapid_key_id": "a"}, "PUSHOPS_VAPID_KEYS, id 'a'"),
        ({"vapid_keys": {"a": random_key(), "b": random_key()}, "vapid_key_id": None}, "PUSHOPS_VAPID_KEY_ID"),
        ({"vapid_key_id": "other"}, "PUSHOPS_VAPID_KEY_ID"),
        ({"extra_hosts": {"*.invalid": "x"}}, "PUSHOPS_EXTRA_HOSTS"),
        ({"key_provider": "no.such.module:function"}, "PUSHOPS_KEY_PROVIDER"),
    ],
)
def test_unusable_keys_are_refused_at_open_without_their_value(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingsError, match=named) as caught:
        pushops.open(changed(**changes))
    assert "c2hvcnQ" not in str(caught.value)
    assert "not base64!" not in str(caught.value)


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        keychain(changed(seal_keys={}, log_hmac_key=None, vapid_key_id="other"))
    assert len(str(caught.value).splitlines()) == 3


def test_a_provider_gives_keys_that_the_settings_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("kms_of_ours")
    module.keys = lambda: {"seal_keys": {3: b"k" * 32}, "seal_key_version": 3, "log_hmac_key": random_key()}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kms_of_ours", module)
    chain = keychain(changed(seal_keys={}, log_hmac_key=None, key_provider="kms_of_ours:keys"))
    assert chain.ring.versions == (3,)


def test_a_provider_that_fails_is_named_and_its_words_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("kms_that_fails")

    def keys() -> None:
        raise RuntimeError("hunter2")

    module.keys = keys  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kms_that_fails", module)
    with pytest.raises(SettingsError, match="kms_that_fails:keys to return keys, it raised RuntimeError") as caught:
        keychain(changed(key_provider="kms_that_fails:keys"))
    assert "hunter2" not in str(caught.value)


def test_importing_pushops_reads_nothing_and_loads_next_to_nothing() -> None:
    code = (
        "import sys; import pushops; "
        "heavy = {'celery', 'psycopg', 'pydantic', 'redis', 'cryptography'} & sys.modules.keys(); "
        "assert not heavy, heavy; import threading; assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PUSHOPS_NONSENSE": "1"}, timeout=30)


@pytest.mark.parametrize("name", pushops.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(pushops, name) is not None


def test_no_other_name_is() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        pushops.nonsense  # noqa: B018
