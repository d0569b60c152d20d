"""Where the transport goes and whom it believes: addresses, certificates, proxies, and none of the environment."""

import os
import selectors
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pushops.delivery.answer import Fault
from pushops.delivery.transport import resolving
from pushops.subscriptions.endpoint import IntakeRules
from pushops.subscriptions.hosts import DEFAULT_RULES, HostRule
from tests.hostile_servers import HOST, OTHER_HOST, Line, Peer, authority
from tests.posting import answer_of, posted, request, requests, transport

H1 = authority().context()
LOCAL = IntakeRules((HostRule("localhost", "own"), *DEFAULT_RULES))


def welcome(line: Line) -> None:
    while line.read_request() is not None:
        line.answer()


@pytest.mark.parametrize(
    "url",
    [
        f"http://{HOST}/x",
        f"https://user@{HOST}/x",
        f"https://{HOST}:8443/x",
        f"https://{HOST}.evil.example/x",
        f"https://{HOST}\\@evil.example/x",
        f"https://{HOST}/x#y",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://2130706433/x",
        "https://localhost/x",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/x",
        f"https://{OTHER_HOST}/x",  # is allowed, but is not the host that the row was claimed for
    ],
)
def test_an_endpoint_that_intake_would_refuse_is_refused_before_any_io(url: str) -> None:
    with Peer(H1, welcome) as peer, transport(peer) as over:
        (answer,) = posted(over, [request(url)])
    assert (answer.status, answer.fault) == (None, Fault.ADDRESS)
    assert peer.connections == 0


def test_a_name_that_turns_out_to_be_private_is_refused_at_connect() -> None:
    with transport(intake=LOCAL) as over:
        (answer,) = posted(over, requests(1, host="localhost"))
    assert (answer.status, answer.fault) == (None, Fault.ADDRESS)


def test_a_host_that_the_operator_allows_may_be_private() -> None:
    with transport(intake=LOCAL, private_hosts=("localhost",)) as over:
        (answer,) = posted(over, requests(1, host="localhost"))
    assert answer.fault in {Fault.CONNECT, Fault.TLS}  # tried: nobody listens there, or not with our authority


def test_a_target_that_is_an_address_allows_that_address_and_no_other() -> None:
    with Peer(H1, welcome) as peer, transport(peer) as over:
        route = over._resolver.route(HOST)
        assert not isinstance(route, Fault)
        assert [answer.status for answer in posted(over, requests(1))] == [201]
    allowed = [("127.0.0.1", peer.port), ("127.0.0.2", peer.port), ("127.0.0.1", 443), ("142.250.1.1", peer.port)]
    assert [route.allows(*place) for place in allowed] == [True, False, False, False]


def test_a_target_that_is_a_name_is_the_operators_word() -> None:
    with Peer(H1, welcome) as peer:
        assert answer_of(peer, connect_to={HOST: f"localhost:{peer.port}"}).status == 201


def test_a_pattern_of_targets_keeps_the_name_of_each_host() -> None:
    context = authority().context("*.notify.windows.com")
    with Peer(context, welcome) as peer, transport(connect_to={"*.notify.windows.com": peer.target}) as over:
        for host in ("par02p.notify.windows.com", "wns2-db5p.notify.windows.com"):
            assert [answer.status for answer in posted(over, requests(1, host=host))] == [201]
    assert [f"Host: {host}" in head.decode() for head, host in zip(peer.heads, ("par02p.", "wns2-"), strict=True)]
    assert peer.connections == 2


@pytest.mark.parametrize(
    "context",
    [
        authority().context("evil.example"),
        authority().context(days=-1),
        authority().context(newest=ssl.TLSVersion.TLSv1_1),
    ],
    ids=["another_name", "expired", "tls_1.1"],
)
def test_a_server_that_cannot_be_trusted_gets_nothing(context: ssl.SSLContext) -> None:
    with Peer(context, welcome) as peer:
        answer = answer_of(peer)
    assert (answer.status, answer.fault, peer.bodies) == (None, Fault.TLS, [])


def test_an_authority_that_is_not_the_configured_one_is_not_trusted(tmp_path: Path) -> None:
    other = type(authority())(tmp_path)
    with Peer(other.context(), welcome) as peer:
        assert (answer_of(peer).fault, peer.bodies) == (Fault.TLS, [])
        assert answer_of(peer, ca_file=str(other.ca_file)).status == 201


def test_a_peer_that_speaks_no_tls_is_a_tls_fault() -> None:
    def script(plain: socket.socket) -> None:
        plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        plain.recv(65536)

    with Peer(None, script) as peer:
        assert answer_of(peer).fault is Fault.TLS


def test_a_peer_that_hangs_up_in_the_handshake_is_a_connect_fault() -> None:
    def script(plain: socket.socket) -> None:
        plain.recv(65536)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with Peer(None, script) as peer:
        assert answer_of(peer).fault is Fault.CONNECT


def test_a_peer_that_never_shakes_hands_is_given_up_at_the_connect_timeout() -> None:
    def script(plain: socket.socket) -> None:
        while plain.recv(65536):
            pass

    with Peer(None, script) as peer:
        assert answer_of(peer, connect_timeout=timedelta(seconds=0.5)).fault is Fault.CONNECT


def test_nobody_there_is_a_connect_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with transport(connect_to={HOST: f"127.0.0.1:{port}"}) as over:
        assert posted(over, requests(1))[0].fault is Fault.CONNECT


def test_a_name_that_does_not_resolve_is_a_dns_fault() -> None:
    with transport(connect_to={HOST: "nowhere.invalid:443"}) as over:
        assert posted(over, requests(1))[0].fault is Fault.DNS


HOSTILE = {
    "REQUESTS_CA_BUNDLE": "/nonexistent/ca.pem",
    "CURL_CA_BUNDLE": "/nonexistent/ca.pem",
    "SSL_CERT_FILE": "/nonexistent/ca.pem",
    "SSL_CERT_DIR": "/nonexistent",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "NO_PROXY": "*",
    "no_proxy": "*",
}
CHILD = """
import sys
from pushops.delivery.transport import Request, Transport, TransportRules
from pushops.subscriptions.endpoint import IntakeRules
host, target, ca_file, proxy = sys.argv[1:]
rules = TransportRules(ca_file=ca_file, connect_to={host: target} if target else {}, proxy=proxy or None)
request = Request(f"https://{host}/x", host, {}, b"body", None)
with Transport(rules, IntakeRules()) as transport:
    for _, answer in transport.exchange(iter([request]), in_flight=1):
        print(answer.status, answer.fault)
"""


def _in_a_child(home: Path, variables: dict[str, str], *arguments: str) -> str:
    """The answer to one request in a process that was started with these variables."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= variables | {"HOME": str(home), "CURL_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    command = [sys.executable, "-c", CHILD, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


def test_variables_and_dotfiles_change_nothing(tmp_path: Path) -> None:
    (tmp_path / ".curlrc").write_text("insecure\nproxy = http://127.0.0.1:9\nheader = X-Traced: yes\n")
    (tmp_path / ".netrc").write_text(f"machine {HOST} login someone password secret\n")
    hostile = HOSTILE | {"NETRC": str(tmp_path / ".netrc")}
    with Peer(H1, welcome) as peer:
        said = _in_a_child(tmp_path, hostile, HOST, peer.target, str(authority().ca_file), "")
    assert said == "201 None\n"
    assert not {b"authorization", b"x-traced"} & {
        line.partition(b":")[0].lower() for line in peer.heads[0].split(b"\n")
    }


def test_a_variable_cannot_make_a_stranger_trusted(tmp_path: Path) -> None:
    other = type(authority())(tmp_path)
    trusting = dict.fromkeys(("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"), str(other.ca_file))
    with Peer(other.context(), welcome) as peer:
        said = _in_a_child(tmp_path, trusting, HOST, peer.target, str(authority().ca_file), "")
    assert said == "None tls\n"


@contextmanager
def _proxy(upstream: Peer, asked: list[str]) -> Iterator[str]:
    """A proxy that takes any CONNECT to ``upstream``; ``asked`` holds the first line of each."""

    def script(client: socket.socket) -> None:
        asked.append(client.recv(65536).split(b"\r\n", 1)[0].decode())
        client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with socket.create_connection(("127.0.0.1", upstream.port)) as server:
            _relay(client, server)

    with Peer(None, script) as peer:
        yield f"http://{peer.target}"


def _relay(one: socket.socket, other: socket.socket) -> None:
    with selectors.DefaultSelector() as selector, suppress(OSError):
        selector.register(one, selectors.EVENT_READ, other)
        selector.register(other, selectors.EVENT_READ, one)
        while True:
            for key, _ in selector.select(10):
                data = key.fileobj.recv(65536)  # type: ignore[union-attr]  # a socket, as registered
                if not data:
                    return
                key.data.sendall(data)


def _resolving_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *rest: Any, **named: Any) -> list[tuple[Any, ...]]:
        if host != HOST:
            return list(real(host, *rest, **named))
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in addresses]

    monkeypatch.setattr(resolving.socket, "getaddrinfo", getaddrinfo)


def test_a_proxy_is_given_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving_to(monkeypatch, "10.0.0.1", "142.250.1.1")
    asked: list[str] = []
    with Peer(H1, welcome) as peer, _proxy(peer, asked) as proxy, transport(proxy=proxy) as over:
        (answer,) = posted(over, requests(1))
    assert (answer.status, asked) == (201, ["CONNECT 142.250.1.1:443 HTTP/1.1"])
    assert f"Host: {HOST}".encode() in peer.heads[0]


def test_a_proxy_is_not_asked_for_a_private_address(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving_to(monkeypatch, "169.254.169.254")
    asked: list[str] = []
    with Peer(H1, welcome) as peer, _proxy(peer, asked) as proxy, transport(proxy=proxy) as over:
        (answer,) = posted(over, requests(1))
    assert (answer.fault, asked) == (Fault.ADDRESS, [])


def test_a_proxy_that_refuses_is_a_connect_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolving_to(monkeypatch, "142.250.1.1")

    def script(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with Peer(None, script) as peer, transport(proxy=f"http://{peer.target}") as over:
        (answer,) = posted(over, requests(1))
    assert (answer.status, answer.fault) == (None, Fault.CONNECT)


def test_a_name_that_changes_its_address_is_checked_at_each_connect() -> None:
    """Rebinding: the check is libcurl's at the moment of connecting, so that no earlier look-up is believed."""
    with transport() as over:
        route = over._resolver.route(HOST)
        assert not isinstance(route, Fault)
    assert [route.allows(address, 443) for address in ("142.250.1.1", "127.0.0.1", "142.250.1.1")] == [
        True,
        False,
        True,
    ]
