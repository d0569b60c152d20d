"""What the door lets in, what it refuses and what it says about it. Ids name the failures they answer."""

import base64
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from pushops.subscriptions.hosts import DEFAULT_RULES, HostRule, parse_host_rules
from pushops.subscriptions.identity import endpoint_hash
from pushops.subscriptions.intake import (
    Endpoint,
    IntakeRules,
    NewSubscription,
    Reason,
    Rejected,
    parse,
    parse_application_server_key,
    parse_endpoint,
)

RULES = IntakeRules()
ENDPOINT = "https://fcm.googleapis.com/fcm/send/cp6K0U:APA91bGpuk-secret-path"
AUTH_BYTES = base64.b64decode("y22TWVKVHGRz6AFp0ybBdA==")
# P-256's field and its b (SEC 2, section 2.4.2): (0, root of b) lies on the curve.
P = 2**256 - 2**224 + 2**192 + 2**96 - 1
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
ROOT_OF_B = pow(B, (P + 1) // 4, P).to_bytes(32, "big")


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def make_point() -> bytes:
    """A point whose text holds both "-" and "_"."""
    while True:
        key = ec.generate_private_key(ec.SECP256R1()).public_key()
        raw = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        if {"-", "_"} <= set(b64(raw)):
            return raw


POINT = make_point()
P256DH = b64(POINT)
AUTH = b64(AUTH_BYTES)


def subscription(**changes: Any) -> dict[str, Any]:
    keys = {"p256dh": P256DH, "auth": AUTH} | changes.pop("keys", {})
    return {"endpoint": ENDPOINT, "expirationTime": None, "keys": keys} | changes


def accepted(payload: object, rules: IntakeRules = RULES) -> NewSubscription:
    result = parse(payload, rules)
    assert isinstance(result, NewSubscription), result
    return result


def refused(payload: object, rules: IntakeRules = RULES) -> Rejected:
    result = parse(payload, rules)
    assert isinstance(result, Rejected), result
    return result


# --- what comes through


def test_what_a_browser_sends_comes_through() -> None:
    result = accepted(json.loads(json.dumps(subscription())))
    assert asdict(result) == {
        "endpoint": ENDPOINT,
        "endpoint_hash": endpoint_hash(ENDPOINT),
        "push_service": "fcm",
        "host": "fcm.googleapis.com",
        "p256dh": P256DH,
        "auth": AUTH_BYTES,
        "content_encoding": "aes128gcm",
        "expiration_time": None,
        "expiration_ignored": False,
        "application_server_key": None,
    }


def test_unknown_members_are_ignored() -> None:
    payload = subscription(options={"userVisibleOnly": True}, keys={"future": 1})
    assert accepted(payload) == accepted(subscription())


def test_neither_names_nor_secrets_are_shown() -> None:
    shown = repr(accepted(subscription()))
    for hidden in ("secret-path", P256DH, AUTH, repr(AUTH_BYTES), repr(endpoint_hash(ENDPOINT)), "auth="):
        assert hidden not in shown


@pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param(ENDPOINT, id="plain"),
        pytest.param("https://fcm.googleapis.com:443/fcm/send/a", id="A15-port-443"),
        pytest.param("https://fcm.googleapis.com", id="no-path"),
        pytest.param("https://fcm.googleapis.com?a", id="query-without-path"),
        pytest.param("https://jmt17.google.com/fcm/send/a", id="A19-digits"),
        pytest.param("https://web.push.apple.com/QOa@b:c", id="at-sign-in-the-path"),
        pytest.param("https://updates.push.services.mozilla.com/wpush/v2/a//b/../c/.", id="A29-dots-and-slashes"),
        pytest.param("https://wns2-bl2p.notify.windows.com/w/?token=BQYAAAC%2fcpad%2b4MZ%3d", id="A29-escapes"),
        pytest.param("https://wns2-bl2p.notify.windows.com/W/?token=%2F%2f.", id="A29-upper-case-and-trailing-dot"),
        pytest.param("https://wns2-par02p.notify.windows.com/w/?token=" + "%2b%2f%3d" * 52, id="A20-wns-516"),
        pytest.param("https://fcm.googleapis.com/".ljust(2048, "a"), id="A20-2048"),
    ],
)
def test_an_endpoint_is_kept_byte_for_byte(endpoint: str) -> None:
    result = accepted(subscription(endpoint=endpoint))
    assert result.endpoint == endpoint
    assert result.endpoint_hash == endpoint_hash(endpoint)


@settings(deadline=None)
@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="#\\"), max_size=500))
def test_whatever_stands_after_the_host_is_kept_byte_for_byte(rest: str) -> None:
    assert accepted(subscription(endpoint=f"https://fcm.googleapis.com/{rest}")).endpoint.endswith(f".com/{rest}")


@pytest.mark.parametrize(
    ("endpoint", "service"),
    [
        pytest.param("https://up.conversations.im/push/v2.local.a", "unifiedpush", id="A19-exact"),
        pytest.param("https://ntfy.example.org/upAbC?up=1", "ntfy", id="A19-special-use-that-a-rule-names"),
        pytest.param("https://a.push.test/x", "sandbox", id="A19-suffix"),
        pytest.param("https://updates.push.services.mozilla.com/x", "mozilla", id="A31-label-of-the-rule"),
        pytest.param("https://web.push.apple.com/x", "apple", id="A31-label-of-this-host"),
    ],
)
def test_the_service_is_the_label_of_the_rule_that_allowed_the_host(endpoint: str, service: str) -> None:
    extra = {"up.conversations.im": "unifiedpush", "ntfy.example.org": "ntfy", "*.push.test": "sandbox"}
    rules = IntakeRules(hosts=(*parse_host_rules(extra), *DEFAULT_RULES))
    assert accepted(subscription(endpoint=endpoint), rules).push_service == service


@pytest.mark.parametrize("padding", ["", "="], ids=["A02-unpadded", "A02-padded"])
@pytest.mark.parametrize("alphabet", ["-_", "+/"], ids=["A02-url", "A02-standard"])
def test_either_alphabet_padded_or_not_is_stored_in_one_form(alphabet: str, padding: str) -> None:
    other = str.maketrans("-_", alphabet)
    keys = {"p256dh": P256DH.translate(other) + padding, "auth": AUTH.translate(other) + 2 * padding}
    result = accepted(subscription(keys=keys))
    assert (result.p256dh, result.auth) == (P256DH, AUTH_BYTES)
    assert len(result.p256dh) == 87


@settings(deadline=None)
@given(st.binary(min_size=16, max_size=16), st.booleans(), st.booleans())
def test_every_auth_secret_comes_through_in_every_form(raw: bytes, standard: bool, padded: bool) -> None:
    text = (base64.b64encode if standard else base64.urlsafe_b64encode)(raw).decode()
    assert accepted(subscription(keys={"auth": text if padded else text.rstrip("=")})).auth == raw


def test_a_point_at_the_edge_of_the_field_is_a_point() -> None:
    edge = b64(b"\x04" + bytes(32) + ROOT_OF_B)
    assert accepted(subscription(keys={"p256dh": edge})).p256dh == edge


@pytest.mark.parametrize("encoding", [{}, {"contentEncoding": None}, {"contentEncoding": "aes128gcm"}])
def test_the_content_encoding_may_be_left_out(encoding: dict[str, Any]) -> None:
    assert accepted(subscription(**encoding)).content_encoding == "aes128gcm"


# --- refusals

LONG_KEY = 10**6 * "A"
COMPRESSED = bytes([2 + POINT[-1] % 2]) + POINT[1:33]

ENDPOINTS = {
    "A10-null": (None, "missing_endpoint"),
    "A10-empty": ("", "missing_endpoint"),
    "A10-number": (7, "not_a_string"),
    "A10-object": ({"href": ENDPOINT}, "not_a_string"),
    "A10-bytes": (ENDPOINT.encode(), "not_a_string"),
    "A03-ellipsis": ("https://fcm.googleapis.com/fcm/send/cp6K0U:APA91bGpuk\u2026A-aX1OJL", "endpoint_not_ascii"),
    "A03-ellipsis-in-the-host": ("https://fcm\u2026.googleapis.com/x", "endpoint_not_ascii"),
    "A03-no-break-space": (ENDPOINT + "\xa0", "endpoint_not_ascii"),
    "A03-full-width-dot": ("https://fcm\uff0egoogleapis.com/x", "endpoint_not_ascii"),
    "A03-zero-width": (ENDPOINT + "\u200b", "endpoint_not_ascii"),
    "A03-lone-surrogate": (ENDPOINT + "\ud800", "endpoint_not_ascii"),
    "A03-byte-order-mark": ("\ufeff" + ENDPOINT, "endpoint_not_ascii"),
    "A03-space-before": (" " + ENDPOINT, "endpoint_white_space"),
    "A03-line-end-after": (ENDPOINT + "\n", "endpoint_white_space"),
    "A03-tab-in-the-scheme": ("ht\ttps://fcm.googleapis.com/x", "endpoint_white_space"),
    "A03-header-injection": (ENDPOINT + "\r\nHost: x", "endpoint_white_space"),
    "A03-nul": (ENDPOINT + "\0", "endpoint_control_character"),
    "A03-delete": (ENDPOINT + "\x7f", "endpoint_control_character"),
    "A15-backslash": ("https://fcm.googleapis.com\\@10.0.0.5/x", "endpoint_backslash"),
    "A15-fragment": (ENDPOINT + "#x", "endpoint_fragment"),
    "A15-http": ("http://fcm.googleapis.com/x", "not_https"),
    "A11-http-and-nothing": ("http://", "not_https"),
    "A15-upper-case-scheme": ("HTTPS://fcm.googleapis.com/x", "not_https"),
    "A15-one-slash": ("https:/fcm.googleapis.com/x", "not_https"),
    "A15-scheme-relative": ("//fcm.googleapis.com/x", "not_https"),
    "A15-file": ("file:///etc/passwd", "not_https"),
    "A15-gopher": ("gopher://fcm.googleapis.com/x", "not_https"),
    "A15-port-8443": ("https://fcm.googleapis.com:8443/x", "bad_port"),
    "A15-port-80": ("https://fcm.googleapis.com:80/x", "bad_port"),
    "A15-port-0443": ("https://fcm.googleapis.com:0443/x", "bad_port"),
    "A15-port-empty": ("https://fcm.googleapis.com:/x", "bad_port"),
    "A15-two-ports": ("https://fcm.googleapis.com:443:443/x", "bad_port"),
    "A15-user": ("https://fcm.googleapis.com@10.0.0.5/x", "user_info"),
    "A15-user-and-password": ("https://a:b@fcm.googleapis.com/x", "user_info"),
    "A15-empty-user": ("https://@fcm.googleapis.com/x", "user_info"),
    "A15-private": ("https://10.0.0.5/admin", "ip_literal"),
    "A15-private-with-port": ("https://10.0.0.5:8443/admin", "ip_literal"),
    "A17-loopback": ("https://127.0.0.1:9200/_search", "ip_literal"),
    "A15-metadata-address": ("https://169.254.169.254/latest/meta-data", "ip_literal"),
    "A15-decimal": ("https://2130706433/", "ip_literal"),
    "A15-hex": ("https://0x7f000001/", "ip_literal"),
    "A15-upper-case-hex": ("https://0X7F000001/", "ip_literal"),
    "A15-octal": ("https://0177.0.0.1/", "ip_literal"),
    "A15-mixed-parts": ("https://127.0x1/", "ip_literal"),
    "A15-short": ("https://127.1/", "ip_literal"),
    "A15-zero": ("https://0/", "ip_literal"),
    "A15-address-with-a-dot": ("https://127.0.0.1./", "ip_literal"),
    "A15-ipv6": ("https://[::1]/", "ip_literal"),
    "A15-ipv6-mapped": ("https://[::ffff:10.0.0.5]:443/", "ip_literal"),
    "A15-ipv6-zone": ("https://[fe80::1%25eth0]/", "ip_literal"),
    "A15-localhost": ("https://localhost/x", "special_use_host"),
    "A15-localhost-bare": ("https://localhost", "special_use_host"),
    "A15-under-localhost": ("https://a.localhost/x", "special_use_host"),
    "A15-metadata-name": ("https://metadata.google.internal/x", "special_use_host"),
    "A15-local": ("https://printer.local/x", "special_use_host"),
    "A15-test": ("https://a.test/x", "special_use_host"),
    "A15-example": ("https://push.example.com/x", "special_use_host"),
    "A15-onion": ("https://abc.onion/x", "special_use_host"),
    "A14-removed": ("https://permanently-removed.invalid/fcm/send/abc", "dead_host"),
    "A14-other-name": ("https://fcm.googleapis.com.invalid/x", "dead_host"),
    "A14-port": ("https://a.invalid:443/x", "dead_host"),
    "A28-gcm": ("https://android.googleapis.com/gcm/send/eDD5G1tIe9", "dead_service"),
    "A19-unknown": ("https://up.conversations.im/push/v2.local.a", "unknown_push_service"),
    "A15-suffix-of-ours": ("https://fcm.googleapis.com.evil.net/x", "unknown_push_service"),
    "A15-prefix-of-ours": ("https://evilfcm.googleapis.com/x", "unknown_push_service"),
    "A15-not-on-a-dot": ("https://evilpush.apple.com/x", "unknown_push_service"),
    "A15-host-in-the-query": ("https://evil.net?.push.apple.com", "unknown_push_service"),
    "A15-punycode": ("https://xn--fcm-1na.googleapis.com/x", "unknown_push_service"),
    "A15-single-label": ("https://redis/x", "unknown_push_service"),
    "A15-upper-case-host": ("https://FCM.googleapis.com/x", "host_not_lower_case"),
    "A15-trailing-dot": ("https://fcm.googleapis.com./x", "trailing_dot_host"),
    "A15-no-host": ("https:///x", "no_host"),
    "A15-nothing": ("https://", "no_host"),
    "A15-port-only": ("https://:443/x", "no_host"),
    "A15-escaped-host": ("https://fcm%2egoogleapis.com/x", "bad_host"),
    "A15-comma": ("https://fcm.googleapis.com,evil.net/x", "bad_host"),
    "A15-semicolon": ("https://fcm.googleapis.com;evil.net/x", "bad_host"),
    "A15-empty-label": ("https://a..push.apple.com/x", "bad_host"),
    "A15-leading-dot": ("https://.push.apple.com/x", "bad_host"),
    "A15-underscore": ("https://a_b.push.apple.com/x", "bad_host"),
    "A15-long-host": ("https://" + "a." * 200 + "push.apple.com/x", "bad_host"),
    "A20-2049": ("https://fcm.googleapis.com/".ljust(2049, "a"), "endpoint_too_long"),
    "A20-8192": ("https://fcm.googleapis.com/".ljust(8192, "a"), "endpoint_too_long"),
    "A20-characters-of-many-bytes": ("https://fcm.googleapis.com/".ljust(2048, "\u2026"), "endpoint_not_ascii"),
}

P256DHS = {
    "A01-padding-inside": ("BAAA=x", "bad_base64"),
    "A01-three-paddings": (P256DH + "===", "bad_base64_padding"),
    "A01-two-paddings": (P256DH + "==", "bad_base64_padding"),
    "A01-padding-before": ("=" + P256DH, "bad_base64"),
    "A01-padding-only": ("====", "bad_base64_padding"),
    "A01-one-character": ("A", "bad_base64"),
    "A01-empty": ("", "bad_p256dh_length"),
    "A01-null": (None, "missing_p256dh"),
    "A01-bytes": (POINT, "not_a_string"),
    "A01-array": (list(POINT), "not_a_string"),
    "A02-mix": (P256DH.replace("-", "+"), "mixed_base64_alphabet"),
    "A02-other-mix": (P256DH.replace("_", "/"), "mixed_base64_alphabet"),
    "A02-space-inside": (P256DH[:40] + " " + P256DH[40:], "bad_base64"),
    "A02-space-for-a-plus": (P256DH.replace("-", " ").replace("_", "/"), "bad_base64"),
    "A02-line-end": (P256DH + "\n", "bad_base64"),
    "A02-ellipsis": (P256DH[:40] + "\u2026" + P256DH[40:], "bad_base64"),
    "A02-nul": (P256DH + "\0", "bad_base64"),
    "A02-lone-surrogate": (P256DH + "\ud800", "bad_base64"),
    "A02-other-digits": (P256DH[:-1] + "\u0661", "bad_base64"),
    "A02-percent": (P256DH + "%3D", "bad_base64"),
    "A02-escaped-padding": (P256DH + "\\u003d", "bad_base64"),
    "A02-spare-bits": (P256DH[:-1] + chr(ord(P256DH[-1]) + 1), "bad_base64"),
    "A02-url-encoded": (P256DH.replace("-", "%2B"), "bad_base64"),
    "A02-quotes": (f'"{P256DH}"', "bad_base64"),
    "A06-truncated": ("BGzoP5QD6aKTKGhmQ9pwIl0pLYNdxMHP3MmWaukujsXtweN9BQuIPVihjpf-", "bad_p256dh_length"),
    "A06-64-bytes": (b64(POINT[:64]), "bad_p256dh_length"),
    "A06-66-bytes": (b64(POINT + b"\0"), "bad_p256dh_length"),
    "A06-without-prefix": (b64(POINT[1:]), "bad_p256dh_length"),
    "A06-twice": (P256DH + P256DH[:-3], "bad_p256dh_length"),
    "A06-hex": (POINT.hex(), "bad_p256dh_length"),
    "A06-million": (LONG_KEY, "bad_p256dh_length"),
    "A06-der": (b64(bytes(26) + POINT), "bad_p256dh_length"),
    "A07-ones": (b64(b"\x04" + b"\x01" * 64), "bad_p256dh_point"),
    "A07-zeros": (b64(bytes(65)), "bad_p256dh_point"),
    "A07-zero-coordinates": (b64(b"\x04" + bytes(64)), "bad_p256dh_point"),
    "A07-full": (b64(b"\x04" + b"\xff" * 64), "bad_p256dh_point"),
    "A07-compressed": (b64(COMPRESSED), "bad_p256dh_length"),
    "A07-compressed-and-filled": (b64(COMPRESSED + bytes(32)), "bad_p256dh_point"),
    "A07-hybrid": (b64(bytes([6 + POINT[-1] % 2]) + POINT[1:]), "bad_p256dh_point"),
    "A07-wrong-prefix": (b64(b"\x05" + POINT[1:]), "bad_p256dh_point"),
    "A07-swapped-coordinates": (b64(b"\x04" + POINT[33:] + POINT[1:33]), "bad_p256dh_point"),
    "A07-coordinate-beyond-the-field": (b64(b"\x04" + P.to_bytes(32, "big") + ROOT_OF_B), "bad_p256dh_point"),
}

AUTHS = {
    "A01-one-character": ("A", "bad_base64"),
    "A01-null": (None, "missing_auth"),
    "A01-empty": ("", "bad_auth_length"),
    "A01-number": (16, "not_a_string"),
    "A01-bytes": (AUTH_BYTES, "not_a_string"),
    "A02-one-padding": (AUTH + "=", "bad_base64_padding"),
    "A02-mix": ("-" + AUTH[1:-2] + "/A", "mixed_base64_alphabet"),
    "A02-spare-bits": (AUTH[:-1] + "B", "bad_base64"),
    "A02-space": (AUTH + " ", "bad_base64"),
    "A09-15-bytes": (b64(bytes(15)), "bad_auth_length"),
    "A09-17-bytes": (b64(bytes(17)), "bad_auth_length"),
    "A09-8-bytes": (b64(bytes(8)), "bad_auth_length"),
    "A09-32-bytes": (b64(bytes(32)), "bad_auth_length"),
    "A09-placeholder": ("AUTH", "bad_auth_length"),
    "A09-hex": (AUTH_BYTES.hex(), "bad_auth_length"),
    "A09-million": (LONG_KEY, "bad_auth_length"),
}

SHAPES = {
    "A10-no-keys": ({"endpoint": ENDPOINT, "expirationTime": None}, "keys", "missing_keys"),
    "A10-null-keys": (subscription() | {"keys": None}, "keys", "missing_keys"),
    "A10-array-for-keys": (subscription() | {"keys": []}, "keys", "not_an_object"),
    "A10-text-for-keys": (subscription() | {"keys": "{}"}, "keys", "not_an_object"),
    "A10-empty-keys": (subscription() | {"keys": {}}, "keys.p256dh", "missing_p256dh"),
    "A10-no-auth": (subscription() | {"keys": {"p256dh": P256DH}}, "keys.auth", "missing_auth"),
    "A10-no-endpoint": ({"keys": subscription()["keys"]}, "endpoint", "missing_endpoint"),
    "A10-array": ([subscription()], "subscription", "not_an_object"),
    "A10-json-in-a-string": (json.dumps(subscription()), "subscription", "not_an_object"),
    "A10-null": (None, "subscription", "not_an_object"),
    "A10-number": (1, "subscription", "not_an_object"),
    "A10-bytes": (json.dumps(subscription()).encode(), "subscription", "not_an_object"),
    "A10-wrapped": ({"subscription": subscription()}, "endpoint", "missing_endpoint"),
    "A10-empty": ({}, "endpoint", "missing_endpoint"),
}

ENCODINGS = {
    "B41-aesgcm": ("aesgcm", "aesgcm_encoding"),
    "B41-aesgcm128": ("aesgcm128", "unsupported_content_encoding"),
    "B41-upper-case": ("AES128GCM", "unsupported_content_encoding"),
    "B41-empty": ("", "unsupported_content_encoding"),
    "B41-unknown": ("rot13", "unsupported_content_encoding"),
    "B41-space": ("aes128gcm ", "unsupported_content_encoding"),
    "B41-array": (["aes128gcm", "aesgcm"], "unsupported_content_encoding"),
    "B41-number": (1, "unsupported_content_encoding"),
    "B41-false": (False, "unsupported_content_encoding"),
}

REFUSALS = [
    *(pytest.param(subscription(endpoint=e), "endpoint", r, id=i) for i, (e, r) in ENDPOINTS.items()),
    *(
        pytest.param(subscription(keys={"p256dh": k}), "keys.p256dh", r, id=f"{i}-p256dh")
        for i, (k, r) in P256DHS.items()
    ),
    *(pytest.param(subscription(keys={"auth": k}), "keys.auth", r, id=f"{i}-auth") for i, (k, r) in AUTHS.items()),
    *(pytest.param(payload, field, r, id=f"{i}-shape") for i, (payload, field, r) in SHAPES.items()),
    *(pytest.param(subscription(contentEncoding=c), "contentEncoding", r, id=i) for i, (c, r) in ENCODINGS.items()),
]


@pytest.mark.parametrize(("payload", "field", "reason"), REFUSALS)
def test_a_refusal_names_the_field_and_the_reason_and_nothing_secret(payload: object, field: str, reason: str) -> None:
    result = refused(payload)
    assert (result.field, result.reason) == (field, reason)
    assert result.reason in set(Reason)
    assert result.expected
    shown = f"{result} {result!r}"
    for secret in (P256DH, AUTH, "secret-path", "_search", "APA91", "BGzoP5QD6", "/x", "admin"):
        assert secret not in shown
    assert shown.isascii()
    assert shown.isprintable()
    assert len(str(result)) < 400


@pytest.mark.parametrize(
    ("payload", "advice"),
    [
        pytest.param(subscription(endpoint="https://android.googleapis.com/gcm/send/a"), "resubscribe", id="A28"),
        pytest.param(subscription(endpoint=ENDPOINT + "\u2026"), "resubscribe", id="A03"),
        pytest.param(subscription(keys={"auth": "AUTH"}), "resubscribe", id="A09"),
        pytest.param(subscription(keys={"p256dh": b64(bytes(65))}), "resubscribe", id="A07"),
        pytest.param(subscription(endpoint="https://permanently-removed.invalid/x"), "unsubscribe", id="A14"),
        pytest.param(subscription(endpoint="https://up.conversations.im/x"), "keep", id="A19"),
        pytest.param(subscription(endpoint="https://10.0.0.5/x"), "keep", id="A15"),
        pytest.param(subscription(contentEncoding="aesgcm"), "keep", id="B41"),
        pytest.param([], "keep", id="A10"),
    ],
)
def test_a_refusal_says_what_the_client_should_do(payload: object, advice: str) -> None:
    assert refused(payload).advice == advice


def test_an_unknown_service_is_refused_with_its_host_so_that_it_is_noticed() -> None:
    assert refused(subscription(endpoint="https://up.conversations.im/push/token")).got == "up.conversations.im"


def test_no_rule_can_allow_a_name_that_never_resolves() -> None:
    rules = IntakeRules(hosts=(HostRule("permanently-removed.invalid", "mine"),))
    assert refused(subscription(endpoint="https://permanently-removed.invalid/x"), rules).reason == "dead_host"


def test_the_cap_on_the_endpoint_is_the_operators() -> None:
    rules = IntakeRules(max_endpoint=4096)
    accepted(subscription(endpoint="https://fcm.googleapis.com/".ljust(4096, "a")), rules)
    assert refused(subscription(endpoint=ENDPOINT), IntakeRules(max_endpoint=20)).reason == "endpoint_too_long"


# --- expirationTime


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        pytest.param(1767225600000, datetime(2026, 1, 1, tzinfo=UTC), id="A13-int"),
        pytest.param(1767225600000.5, datetime(2026, 1, 1, 0, 0, 0, 500, tzinfo=UTC), id="A13-double"),
        pytest.param(1e12, datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC), id="A13-first"),
        pytest.param(4.1e12, datetime(2099, 12, 3, 16, 53, 20, tzinfo=UTC), id="A13-last"),
    ],
)
def test_a_plausible_expiration_time_is_read_as_milliseconds(value: float, moment: datetime) -> None:
    result = accepted(subscription(expirationTime=value))
    assert (result.expiration_time, result.expiration_ignored) == (moment, False)


@pytest.mark.parametrize(
    "value",
    [0, -1, -0.0, 1767225600, 1767225600.5, 1e12 - 1, 4.1e12 + 1, 9e15, 1e18, 1e308, 5e-324, 10**400, -(10**400)],
    ids=lambda value: f"A13-{value:.3g}" if isinstance(value, float) else f"A13-{str(value)[:12]}",
)
def test_any_other_number_is_ignored_and_counted(value: float) -> None:
    result = accepted(subscription(expirationTime=value))
    assert (result.expiration_time, result.expiration_ignored) == (None, True)


@pytest.mark.parametrize("present", [True, False], ids=["A13-null", "A13-absent"])
def test_no_expiration_time_is_none(present: bool) -> None:
    payload = subscription()
    if not present:
        del payload["expirationTime"]
    result = accepted(payload)
    assert (result.expiration_time, result.expiration_ignored) == (None, False)


@pytest.mark.parametrize(
    "value",
    ["1767225600000", "2026-01-01T00:00:00Z", "", True, False, math.nan, math.inf, -math.inf, {}, [], [1767225600000]],
    ids=lambda value: f"A13-{value!r}",
)
def test_what_is_no_finite_number_is_refused(value: object) -> None:
    result = refused(subscription(expirationTime=value))
    assert (result.field, result.reason) == ("expirationTime", "bad_expiration_time")


# --- applicationServerKey


@pytest.mark.parametrize(
    "value",
    [P256DH, P256DH + "=", P256DH.replace("-", "+").replace("_", "/"), POINT, bytearray(POINT)],
    ids=["base64url", "padded", "standard", "bytes", "bytearray"],
)
def test_an_application_server_key_is_understood_in_every_form(value: object) -> None:
    assert parse_application_server_key(value) == POINT
    result = parse(subscription(), RULES, value)
    assert isinstance(result, NewSubscription)
    assert result.application_server_key == POINT


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "bad_application_server_key_length"),
        (b64(POINT[:64]), "bad_application_server_key_length"),
        (POINT[1:], "bad_application_server_key_length"),
        (b"\x04" + b"\x01" * 64, "bad_application_server_key_point"),
        (P256DH.replace("-", "+"), "mixed_base64_alphabet"),
        ("?", "bad_base64"),
        (7, "not_a_string"),
        (list(POINT), "not_a_string"),
    ],
    ids=["empty", "short text", "short bytes", "off the curve", "mixed", "no base64", "number", "list"],
)
def test_what_is_no_application_server_key_is_refused(value: object, reason: str) -> None:
    result = parse_application_server_key(value)
    assert isinstance(result, Rejected)
    assert (result.field, result.reason) == ("applicationServerKey", reason)
    assert parse(subscription(), RULES, value) == result


def test_no_application_server_key_is_none_to_a_subscription_and_a_refusal_alone() -> None:
    assert accepted(subscription()).application_server_key is None
    assert isinstance(parse_application_server_key(None), Rejected)


# --- the endpoint alone, as the send path asks again


def test_an_endpoint_can_be_judged_alone() -> None:
    assert parse_endpoint(ENDPOINT, RULES) == Endpoint(ENDPOINT, "fcm.googleapis.com", "fcm")
    result = parse_endpoint("http://", RULES)
    assert isinstance(result, Rejected)
    assert result.reason == "not_https"


# --- nothing raises


class Lying(str):
    """A string that lies in everything it can."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def startswith(self, *_: object) -> bool:
        return True


class LyingMapping(dict[str, object]):
    def get(self, *_: object) -> object:
        raise RuntimeError

    def items(self) -> Any:
        raise RuntimeError


class Refuser:
    """Refuses every question, its own class included."""

    @property
    def __class__(self) -> type:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class HostileType(type):
    def __hash__(cls) -> int:
        raise RuntimeError

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError


class HostilelyTyped(metaclass=HostileType):
    pass


class ClashingKey:
    """Falls into the slot of a member's name and raises when compared."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError


def recursive() -> dict[str, Any]:
    payload = subscription()
    payload["keys"] = payload["endpoint"] = payload
    return payload


# Made inside the test, since pytest asks its parameters what they are.
HOSTILE: dict[str, Callable[[], object]] = {
    "refuser": Refuser,
    "hostile-class": HostilelyTyped,
    "recursive": recursive,
    "huge-int": lambda: 10**5000,
    "nan": lambda: math.nan,
    "infinity": lambda: math.inf,
    "complex": lambda: 1j,
    "bytes": lambda: b"\xff",
    "lone-surrogate": lambda: "\ud800",
    "nul": lambda: "\0",
    "class": lambda: object,
    "ellipsis": lambda: ...,
    "iterator": lambda: iter(()),
    "memoryview": lambda: memoryview(b"x"),
    "set": lambda: {1, 2},
    "tuple": lambda: (1, 2),
    "clashing-key": lambda: {ClashingKey("endpoint"): ENDPOINT, ClashingKey("p256dh"): P256DH},
    "foreign-keys": lambda: {1: 2, None: 3},
    "lying-mapping": LyingMapping,
    "lying-text": lambda: Lying("x"),
    "long": lambda: "x" * 10**6,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("place", ["payload", "endpoint", "keys", "p256dh", "auth", "encoding", "expiration", "asked"])
def test_no_value_in_any_place_raises(place: str, name: str) -> None:
    value = HOSTILE[name]()
    payloads: dict[str, tuple[object, object]] = {
        "payload": (value, None),
        "endpoint": (subscription(endpoint=value), None),
        "keys": (subscription() | {"keys": value}, None),
        "p256dh": (subscription(keys={"p256dh": value}), None),
        "auth": (subscription(keys={"auth": value}), None),
        "encoding": (subscription(contentEncoding=value), None),
        "expiration": (subscription(expirationTime=value), None),
        "asked": (subscription(), value),
    }
    result = parse(payloads[place][0], RULES, payloads[place][1])
    if (place, name) == ("expiration", "huge-int"):
        assert isinstance(result, NewSubscription)
    else:
        assert isinstance(result, Rejected)
        assert len(str(result)) < 400


def test_subclasses_are_read_as_what_they_hold_and_never_asked() -> None:
    keys = LyingMapping({"p256dh": Lying(P256DH), "auth": Lying(AUTH)})
    result = accepted(LyingMapping(OrderedDict(endpoint=Lying(ENDPOINT), keys=keys)))
    assert result == accepted(subscription())
    assert type(result.endpoint) is type(result.p256dh) is str


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "endpoint": JSON | st.just(ENDPOINT),
        "keys": JSON | st.fixed_dictionaries({"p256dh": JSON | st.just(P256DH), "auth": JSON | st.just(AUTH)}),
        "contentEncoding": JSON,
        "expirationTime": JSON | st.floats() | st.integers(),
    },
)


@settings(deadline=None, max_examples=300)
@given(JSON | MEMBERS)
def test_anything_is_either_taken_or_refused(payload: object) -> None:
    result = parse(payload, RULES)
    assert isinstance(result, NewSubscription | Rejected)
    assert isinstance(parse_application_server_key(payload), bytes | Rejected)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_one_damaged_character_of_a_point_never_gives_another_point(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(P256DH) - 1))
    instead = data.draw(st.sampled_from(["", "A", "=", " ", "\n", "+", "\u2026"]) | st.characters())
    damaged = P256DH[:at] + instead + P256DH[at + 1 :]
    result = parse(subscription(keys={"p256dh": damaged}), RULES)
    assert isinstance(result, Rejected) or result.p256dh == P256DH == damaged


# What URLs are made of where two readings of one can differ.
PIECES = (
    "fcm.googleapis.com",
    ".push.apple.com",
    "evil.net",
    "a",
    ".",
    ":",
    ":443",
    "@",
    "/",
    "?",
    "#",
    "\\",
    "%2e",
    "[",
)


@settings(deadline=None, max_examples=1000)
@given(st.lists(st.sampled_from(PIECES), max_size=5).map("".join))
def test_what_is_let_in_goes_to_the_same_host_in_another_reading(rest: str) -> None:
    """Where a URL library reads another host than we do, a request would go somewhere that nobody checked."""
    result = parse_endpoint(f"https://{rest}", RULES)
    if isinstance(result, Endpoint):
        parts = urlsplit(f"https://{rest}")
        assert (parts.hostname, parts.username, parts.fragment) == (result.host, None, "")
        assert parts.port in {None, 443}
        assert result.host == "fcm.googleapis.com" or result.host.endswith(".push.apple.com")


def library_says_bad(raw: bytes) -> bool:
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
    except ValueError:
        return True
    return False


@settings(deadline=None)
@given(st.integers(1, 2**255), st.integers(0, 63), st.booleans(), st.sampled_from([2, 3, 4, 6, 7]))
def test_a_point_is_one_where_the_library_builds_a_key_of_it(scalar: int, byte: int, damaged: bool, form: int) -> None:
    """Our own arithmetic stands in for it, since an import asks a million times."""
    point = ec.derive_private_key(scalar, ec.SECP256R1()).public_key()
    raw = bytearray(point.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))
    raw[0] = form
    raw[1 + byte] ^= damaged
    found = parse(subscription(keys={"p256dh": b64(bytes(raw))}), RULES)
    assert isinstance(found, Rejected) == library_says_bad(bytes(raw))


def test_a_point_written_with_a_coordinate_beyond_the_field_is_refused() -> None:
    """The x of 5 is a point's: written as 5 + p it would be that point again, had nobody looked."""
    root = pow(5**3 - 3 * 5 + B, (P + 1) // 4, P)
    inside, beyond = (b"\x04" + x.to_bytes(32) + root.to_bytes(32) for x in (5, 5 + P))
    accepted(subscription(keys={"p256dh": b64(inside)}))
    assert refused(subscription(keys={"p256dh": b64(beyond)})).reason == Reason.BAD_P256DH_POINT
    assert library_says_bad(beyond)
