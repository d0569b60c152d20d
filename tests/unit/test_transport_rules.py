"""The transport's rules, as the settings give them."""

from datetime import timedelta
from pathlib import Path

import pytest

from pushops.delivery.transport import rules, transport_rules
from pushops.errors import SettingsError
from pushops.settings import Settings, load_settings


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    path.write_text("certificates")
    return path


def test_every_setting_of_the_way_out_arrives(monkeypatch: pytest.MonkeyPatch, ca_file: Path) -> None:
    monkeypatch.setenv("PUSHOPS_CA_FILE", str(ca_file))
    monkeypatch.setenv("PUSHOPS_CONNECT_TIMEOUT", "1s")
    monkeypatch.setenv("PUSHOPS_READ_TIMEOUT", "2s")
    monkeypatch.setenv("PUSHOPS_PROXY", "http://user:word@proxy.example.org:3128")
    monkeypatch.setenv("PUSHOPS_CONNECT_TO", '{"*.notify.windows.com": "127.0.0.1:8443"}')
    monkeypatch.setenv("PUSHOPS_ALLOW_PRIVATE_HOSTS", '["push.example.org"]')
    found = transport_rules(load_settings())
    assert (found.ca_file, found.connect_timeout, found.deadline) == (
        str(ca_file),
        timedelta(seconds=1),
        timedelta(seconds=2),
    )
    assert found.proxy == "http://user:word@proxy.example.org:3128"
    assert "word" not in repr(found)
    assert dict(found.connect_to) == {"*.notify.windows.com": "127.0.0.1:8443"}
    assert found.private_hosts == ("push.example.org",)


@pytest.mark.parametrize(
    ("setting", "value", "fault"),
    [
        ("connect_to", {"https://x.example.org": "127.0.0.1:1"}, "PUSHOPS_CONNECT_TO: host pattern"),
        ("connect_to", {"x.example.org": "127.0.0.1:99999"}, "PUSHOPS_CONNECT_TO: expected host:port"),
        ("allow_private_hosts", ["10.0.0.1"], "PUSHOPS_ALLOW_PRIVATE_HOSTS: host pattern"),
        ("ca_file", Path("/nonexistent/ca.pem"), "expected PUSHOPS_CA_FILE to name a PEM file"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(setting: str, value: object, fault: str) -> None:
    with pytest.raises(SettingsError, match=fault):
        transport_rules(Settings(**{setting: value}))


@pytest.mark.parametrize(
    "value",
    [
        "mine:1",
        "socks5://mine:1080",
        "http:///",
        "http://mine/path",
        "http://u:p/w@mine:1",
        "http://mine:0",
        "http://mine:x",
    ],
)
def test_a_proxy_that_is_none_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PUSHOPS_PROXY", value)
    with pytest.raises(SettingsError, match="PUSHOPS_PROXY") as refused:
        load_settings()
    assert value not in str(refused.value)


def test_a_system_without_certificates_is_told_which_setting_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CA_FILES", ("/nonexistent",))
    with pytest.raises(SettingsError, match="PUSHOPS_CA_FILE"):
        transport_rules(Settings())


def test_the_first_file_of_the_system_is_trusted(monkeypatch: pytest.MonkeyPatch, ca_file: Path) -> None:
    monkeypatch.setattr(rules, "CA_FILES", ("/nonexistent", str(ca_file), "/etc/hosts"))
    assert transport_rules(Settings()).ca_file == str(ca_file)
