"""A push service that others wrote, web-push-testing of npm, decrypts what we send and has its 410 believed.

It speaks plain HTTP on localhost, which we never do. A door with TLS stands before it: it has a public name, takes our
transport's requests and hands headers and body on as they came.
"""

import http.client
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import SecretStr

import pushops
from pushops.sandbox.valkey import free_port
from pushops.settings import Settings
from tests.hostile_servers import Line, Peer, authority
from tests.outgoing import Pg, rows_of, subscriptions_of
from tests.pushing import Sender
from tests.sweeping import Process, wait_until
from tests.system.conftest import ENVIRONMENT, key_of, sent

PACKAGE: Final = "web-push-testing@1.2.2"
SERVER: Final = Path("node_modules/web-push-testing/src/bin/server.js")  # what its own `start` puts in the background
NPM: Final = ("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1", PACKAGE)
HOST: Final = "push.pushops.dev"
LARGEST: Final = 3993  # octets of plaintext, which fill a record of 4,096

pytestmark = [
    pytest.mark.skipif(not (shutil.which("npm") and shutil.which("node")), reason="npm is not installed"),
    pytest.mark.timeout(300),  # npm downloads
]


class Service:
    """Its API: https://www.npmjs.com/package/web-push-testing."""

    def __init__(self, port: int) -> None:
        self.port = port

    def subscribe(self, key: str) -> dict[str, Any]:
        """A subscription at our door, its ``clientHash`` beside what ``toJSON()`` gives."""
        _, found = self.ask("/subscribe", userVisibleOnly="true", applicationServerKey=key)
        subscription: dict[str, Any] = found["data"]
        behind = f"http://localhost:{self.port}/"
        assert subscription["endpoint"].startswith(behind)
        return subscription | {"endpoint": f"https://{HOST}/" + subscription["endpoint"].removeprefix(behind)}

    def decrypted(self, subscription: dict[str, Any]) -> list[str]:
        status, found = self.ask("/get-notifications", clientHash=subscription["clientHash"])
        assert status == 200, found
        texts: list[str] = found["data"]["messages"]
        return texts

    def expire(self, subscription: dict[str, Any]) -> None:
        status, _ = self.ask(f"/expire-subscription/{subscription['clientHash']}")
        assert status == 200

    def answers(self) -> bool:
        try:
            return self.post("/status")[0] == 200
        except OSError:
            return False

    def ask(self, path: str, **fields: str) -> tuple[int, Any]:
        status, body = self.post(path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
        return status, json.loads(body) if body.startswith(b"{") else None

    def post(self, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where npm installed it, or a skip: the registry may be out of reach."""
    made = tmp_path_factory.mktemp("npm")
    try:
        done = subprocess.run(
            NPM,
            cwd=made,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm was still installing {PACKAGE} after 200 seconds")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install {PACKAGE}: {(done.stderr.splitlines() or ['it said nothing'])[0]}")
    return made


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    found, log = Service(free_port()), folder / "log"
    with log.open("wb") as sink, node(folder, found.port, sink) as process:

        def started() -> bool:
            assert process.poll() is None, f"expected {PACKAGE} to start, got\n{log.read_text()}"
            return found.answers()

        wait_until(started, expected=f"an answer of {PACKAGE}")
        yield found


@contextmanager
def node(folder: Path, port: int, sink: Any) -> "Iterator[subprocess.Popen[bytes]]":
    command = ["node", str(SERVER), str(port)]
    environment = {"PATH": os.environ["PATH"]}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=sink, stderr=sink) as process:
        try:
            yield process
        finally:
            process.kill()


def hand_on(service: Service, line: Line) -> None:
    """Each request of a connection as it came, and the answer to it as it came."""
    while (body := line.read_request()) is not None:
        first, *fields = line.peer.heads[-1].decode("latin-1").split("\r\n")
        status, said = service.post(first.split()[1], body, dict(field.split(": ", 1) for field in fields))
        line.answer(f"{status} {http.client.responses[status]}", "Content-Type: application/json\r\n", said)


@pytest.fixture
def settings(settings: Settings, service: Service, valkey_url: str) -> Iterator[Settings]:
    """A worker's way to the service's public name leads through the door."""
    with Peer(authority().context(HOST), partial(hand_on, service)) as door:
        there = {"extra_hosts": {HOST: "npm"}, "connect_to": {HOST: door.target}, "ca_file": authority().ca_file}
        yield settings.model_copy(update={"broker_url": SecretStr(valkey_url), **there})


def register(ops: pushops.Ops, service: Service, signed_for: str | None = None) -> dict[str, Any]:
    """A new subscription, saved as one of ours; made for our key unless it is ``signed_for`` another."""
    subscription = service.subscribe(signed_for or key_of(ops))
    shown = {name: value for name, value in subscription.items() if name != "clientHash"}
    ops.save_subscription(shown, user_id="ann", application_server_key=key_of(ops))
    return subscription


@pytest.mark.parametrize("text", ["gr\u00fc\u00dfe \N{SNOWMAN}", "x" * LARGEST], ids=["short", "largest"])
def test_it_accepts_and_decrypts_what_we_send(
    ops: pushops.Ops, service: Service, pg: Pg, worker: Process, text: str
) -> None:
    subscription = register(ops, service)
    message = sent(ops, pg, worker, text)
    assert rows_of(pg, message, "outcome", "status") == {("accepted", 201): 1}
    assert service.decrypted(subscription) == [text]
    assert subscriptions_of(pg, "state") == {"active": 1}


def test_its_410_revokes(ops: pushops.Ops, service: Service, pg: Pg, worker: Process) -> None:
    subscription = register(ops, service)
    service.expire(subscription)
    message = sent(ops, pg, worker, "too late")
    assert rows_of(pg, message, "outcome", "status") == {("gone", 410): 1}
    assert subscriptions_of(pg, "state", "end_reason") == {("revoked", "gone"): 1}
    assert service.decrypted(subscription) == []


def test_it_refuses_a_key_that_the_subscription_was_not_made_for(
    ops: pushops.Ops, service: Service, pg: Pg, worker: Process
) -> None:
    """Else its acceptance would say nothing about our key."""
    subscription = register(ops, service, signed_for=Sender().public)
    message = sent(ops, pg, worker, "from a stranger")
    assert set(rows_of(pg, message, "status")) == {400}
    assert service.decrypted(subscription) == []
