"""The push service as a part of the sandbox: found without being configured, and told what to do from a shell."""

import json
from collections.abc import Iterator

import pytest

from pushops.cli.exits import Exit
from pushops.runtime import settings_or_sandbox
from pushops.sandbox import Sandbox
from pushops.settings import load_settings
from tests import servers
from tests.commands import call
from tests.pushing import Sender, push


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    found = Sandbox(servers.new_folder("pushops-sbx"))
    found.up()
    yield found
    found.down()


@pytest.fixture(autouse=True)
def chosen(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHOPS_SANDBOX_DIR", str(sandbox.folder))


def test_a_sender_without_settings_is_led_to_the_sandbox(sandbox: Sandbox) -> None:
    found = settings_or_sandbox()
    assert found.ca_file == sandbox.push.ca_file
    assert found.connect_to == sandbox.push.connect_to()
    assert found.vapid_subject == "mailto:sandbox@pushops.dev"


def test_a_subject_of_ones_own_stays(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox.info() is not None
    monkeypatch.setenv("PUSHOPS_VAPID_SUBJECT", "mailto:ops@pushops.dev")
    assert settings_or_sandbox().vapid_subject == "mailto:ops@pushops.dev"


def test_what_env_prints_are_settings(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in call("sandbox", "env", "--json").json.items():
        monkeypatch.setenv(name, value)
    assert load_settings().connect_to == sandbox.push.connect_to()


def test_status_names_its_process_and_wants_it_to_run(sandbox: Sandbox) -> None:
    assert call("sandbox", "status", "--json").json["push"] == sandbox.push.pid()
    sandbox.push.kill()
    done = call("sandbox", "status", "--json")
    assert (done.code, done.json["push"], done.json["up"]) == (Exit.FAILED, None, False)
    assert call("sandbox", "counts").code == Exit.FAILED
    sandbox.up()
    assert call("sandbox", "status").code == Exit.DONE


def test_an_outage_is_staged_listed_and_ended(sandbox: Sandbox) -> None:
    subscription = json.loads(call("sandbox", "issue", "apple").out)
    assert "fcm-2019" in call("sandbox", "outage").out
    assert "all-404" in call("sandbox", "outage", "list", "--json").json
    assert call("sandbox", "outage", "all-404", "--json").json == {"outage": "all-404"}
    assert push(sandbox.push, subscription).status == 404
    assert call("sandbox", "outage", "--clear").code == Exit.DONE
    assert push(sandbox.push, subscription).status == 201
    shown = call("sandbox", "counts").out
    assert "web.push.apple.com" in shown
    assert call("sandbox", "counts", "--json").json["by_host"]["web.push.apple.com"] == {"201": 1, "404": 1}


def test_an_unknown_outage_is_refused_with_the_known_ones() -> None:
    done = call("sandbox", "outage", "fcm-1999")
    assert done.code == Exit.FAILED
    assert "expected an outage, one of" in done.err


def test_a_dns_outage_is_the_senders_to_stage(sandbox: Sandbox) -> None:
    value = json.loads(call("sandbox", "outage", "dns", "--json").json["PUSHOPS_CONNECT_TO"])
    assert value.keys() == sandbox.push.connect_to().keys()
    assert set(value.values()) == {"nowhere.invalid:443"}


def test_issued_subscriptions_are_bound_to_a_key(sandbox: Sandbox) -> None:
    sender = Sender()
    lines = call("sandbox", "issue", "mozilla", "--count", "2", "--key", sender.public).out.splitlines()
    assert len(lines) == 2
    assert push(sandbox.push, json.loads(lines[0]), sender=sender).status == 201
    assert push(sandbox.push, json.loads(lines[1])).status == 401
