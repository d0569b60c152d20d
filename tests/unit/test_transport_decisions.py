"""What the transport decides without a network: addresses, routes, faults, headers."""

import pycurl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.delivery.answer import Fault
from pushops.delivery.transport.addresses import is_public
from pushops.delivery.transport.faults import ADDRESS, BAD_RESPONSE, DNS, TLS, fault_of
from pushops.delivery.transport.headers import COUNT_MAX, VALUE_MAX, parse_headers
from pushops.delivery.transport.routes import Route, parse_target, route

PUBLIC = [
    "8.8.8.8",
    "142.250.184.10",
    "17.188.143.34",
    "2607:f8b0:4005:80a::200a",
    "2a00:1450:4001:81b::200a",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]
PRIVATE = [
    "0.0.0.0",  # noqa: S104  (an address to refuse)
    "10.1.2.3",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.8.9.10",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "203.0.113.7",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::10.0.0.1",
    "::8.8.8.8",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::808:808",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2002:7f00:1::1",
    "2002:c0a8:101::1",
    "2607:f8b0::5efe:10.0.0.1",
    "3fff::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "localhost",
    "",
    "1.2.3",
    "0x7f.1",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_every_other_address_is_refused_in_every_form(address: str) -> None:
    assert not is_public(address)


@given(st.ip_addresses())
def test_no_address_is_public_that_the_standard_library_says_is_not(address: object) -> None:
    allowed_beyond_it = str(address).startswith(("64:ff9b::", "::ffff:"))
    assert allowed_beyond_it or not is_public(str(address)) or address.is_global  # type: ignore[attr-defined]


@given(st.text())
def test_no_text_is_too_odd_for_an_address(text: str) -> None:
    assert is_public(text) in {True, False}


CODES = sorted({value for name, value in vars(pycurl).items() if name.startswith("E_") and isinstance(value, int)})
NOT_REWOUND = "necessary data rewind was not possible"


@pytest.mark.parametrize("code", [*CODES, 200, -7])
@pytest.mark.parametrize("began", [True, False])
def test_every_code_has_a_fault_that_fits_what_was_sent(code: int, began: bool) -> None:
    fault = fault_of(code, "", began=began)
    if began:
        assert fault is (Fault.BAD_RESPONSE if code in BAD_RESPONSE else Fault.AMBIGUOUS)
    else:
        named = {Fault.DNS: DNS, Fault.TLS: TLS, Fault.ADDRESS: ADDRESS}
        assert fault is next((each for each, codes in named.items() if code in codes), Fault.CONNECT)


@pytest.mark.parametrize(
    ("code", "message", "fault"),
    [
        (pycurl.E_SSL_CONNECT_ERROR, "Recv failure: Connection reset by peer", Fault.CONNECT),
        (pycurl.E_SSL_CONNECT_ERROR, "TLS connect error: error:0A000126:SSL routines::unexpected eof", Fault.CONNECT),
        (pycurl.E_SSL_CONNECT_ERROR, "TLS connect error: wrong version number", Fault.TLS),
        (pycurl.E_PEER_FAILED_VERIFICATION, "SSL certificate problem: certificate has expired", Fault.TLS),
        (pycurl.E_OPERATION_TIMEDOUT, "Resolving timed out after 3050 milliseconds", Fault.DNS),
        (pycurl.E_OPERATION_TIMEDOUT, "Connection timed out after 3050 milliseconds", Fault.CONNECT),
        (pycurl.E_COULDNT_RESOLVE_HOST, "Could not resolve host: x", Fault.DNS),
        (pycurl.E_COULDNT_CONNECT, "Connection refused", Fault.CONNECT),
    ],
)
def test_what_happens_before_the_body_is_told_apart(code: int, message: str, fault: Fault) -> None:
    assert fault_of(code, message, began=False) is fault


def test_a_refused_stream_is_only_believed_on_a_connection_that_spoke_http2() -> None:
    """On HTTP/1.1 the same words come where the peer took the body and closed."""
    code = pycurl.E_SEND_FAIL_REWIND
    assert fault_of(code, NOT_REWOUND, began=True, multiplexed=True) is Fault.CONNECT
    assert fault_of(code, NOT_REWOUND, began=True, multiplexed=False) is Fault.AMBIGUOUS
    assert fault_of(code, "Send failure: Broken pipe", began=True, multiplexed=True) is Fault.AMBIGUOUS


@given(st.lists(st.binary(max_size=700), max_size=100))
def test_no_header_line_is_too_odd(lines: list[bytes]) -> None:
    found = parse_headers(lines)
    assert len(found) <= COUNT_MAX
    assert all(name == name.lower() and len(value) <= VALUE_MAX for name, value in found.items())


def test_repeated_headers_are_joined() -> None:
    assert parse_headers([b"A: 1\r\n", b"b:  2 \r\n", b"a: 3\r\n"]) == {"a": "1, 3", "b": "2"}


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("127.0.0.1:8443", "127.0.0.1", 8443), ("[::1]:443", "::1", 443), ("push.test:65535", "push.test", 65535)],
)
def test_a_target_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    target = parse_target(text)
    assert (target.host, target.port, str(target)) == (host, port, text)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":443", "host:0", "host:65536", "::1:443", "[host]:443", "a b:1", "a/b:1", "h:\uff11"]
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_target(text)


def test_a_route_without_a_target_goes_to_public_addresses_on_443() -> None:
    direct = route("fcm.googleapis.com", connect_to={}, private_hosts=("*.push.example.org",))
    assert direct == Route("fcm.googleapis.com")
    assert direct.connect_to == []
    assert direct.allows("142.250.1.1", 443)
    assert not direct.allows("142.250.1.1", 8443)
    assert not direct.allows("10.0.0.1", 443)


def test_a_private_host_may_have_any_address_on_443() -> None:
    own = route("one.push.example.org", connect_to={}, private_hosts=("*.push.example.org",))
    assert own.allows("10.0.0.1", 443)
    assert not own.allows("10.0.0.1", 6379)


def test_a_target_keeps_the_name() -> None:
    mapped = route("a.notify.windows.com", connect_to={"*.notify.windows.com": "[::1]:8443"}, private_hosts=())
    assert mapped.connect_to == ["a.notify.windows.com:443:[::1]:8443"]
    assert mapped.allows("::1", 8443)
    assert mapped.allows("0:0:0:0:0:0:0:1", 8443)
    assert not mapped.allows("::2", 8443)
