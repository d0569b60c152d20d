"""One answer for each row of the table, and what it must come to: taken from the vendors' words, not from the table."""

import json
from dataclasses import dataclass
from typing import Any

from pushops.delivery.answer import Answer, Fault

HTML = b"<!DOCTYPE html>\n<html><head><title>Error</title></head><body><h1>Error</h1></body></html>"


@dataclass(frozen=True)
class Case:
    """An answer and its verdict in four words: outcome, lifecycle, retry, dead letter; and its code."""

    service: str
    answer: Answer
    verdict: tuple[str, str, str, str]
    code: str
    host: str = "push.example.net"


ACCEPTED = ("accepted", "success", "no", "no")
POISON = ("refused", "none", "no", "poison")
VOTE = ("not_found", "vote", "no", "no")
GONE = ("gone", "revoke", "no", "no")
MISMATCH = ("mismatch", "mismatch", "hold", "no")
RESIGN = ("denied", "none", "resign", "hold_row")
HOLD = ("denied", "none", "hold", "hold_row")
THROTTLED = ("throttled", "none", "after", "no")
BACKOFF = ("unavailable", "none", "backoff", "exhausted")
AFTER = ("unavailable", "none", "after", "exhausted")
UNREACHABLE = ("unreachable", "none", "backoff", "exhausted")


def text(status: int, body: bytes | str = b"", **headers: str) -> Answer:
    raw = body.encode() if isinstance(body, str) else body
    return Answer(status, headers={name.replace("_", "-"): value for name, value in headers.items()}, body=raw)


def titled(status: int, title: str) -> Answer:
    """A page as FCM's older front end sends it."""
    page = (
        f'<HTML>\n<HEAD>\n<TITLE>{title}</TITLE>\n</HEAD>\n<BODY BGCOLOR="#FFFFFF">\n<H1>{title}</H1>\n</BODY></HTML>\n'
    )
    return text(status, page)


def mozilla(status: int, errno: Any, message: str = "", **headers: str) -> Answer:
    body = {"code": status, "errno": errno, "error": "Something", "message": message, "more_info": "http://docs"}
    return text(status, json.dumps(body), **headers)


def apple(status: int, reason: str) -> Answer:
    return text(status, json.dumps({"reason": reason}))


CONSTRAINED = (
    "This message is intended for a constrained device and is limited to 3070 bytes."
    " Converted buffer too long by 1366 bytes"
)
FCM_UNKNOWN = (
    "A valid push subscription endpoint should be specified in the URL as such: https://fcm.googleapis.com/wp/abc"
)
FCM_MISMATCH = (
    "the VAPID credentials in the authorization header do not correspond to the credentials used to create the"
    " subscriptions.\n"
)

CASES = {
    "1": Case("fcm", text(201), ACCEPTED, "accepted"),
    "2": Case("fcm", text(200), ACCEPTED, "accepted"),
    "3": Case("mozilla", text(202), ACCEPTED, "accepted"),
    "4": Case("apple", text(204), ACCEPTED, "accepted"),
    "5": Case("fcm", text(301, location="https://evil.example/"), POISON, "redirect"),
    "6": Case("fcm", text(404, FCM_UNKNOWN), VOTE, "not_found"),
    "7": Case("fcm", text(404, HTML), ("not_found", "vote", "backoff", "no"), "routing_404"),
    "8": Case("fcm", text(410, "push subscription has unsubscribed or expired.\n"), GONE, "gone"),
    "9": Case("fcm", titled(400, "UnauthorizedRegistration"), MISMATCH, "key_mismatch"),
    "10": Case("fcm", titled(400, "InvalidRegistration"), VOTE, "invalid_registration"),
    "11": Case("fcm", titled(400, "InvalidTtlParameter"), POISON, "http_400"),
    "12": Case("fcm", text(403, "invalid JWT provided\n"), RESIGN, "vapid_auth"),
    "12b": Case("fcm", text(401), RESIGN, "vapid_auth"),
    "13": Case("fcm", text(403, FCM_MISMATCH), MISMATCH, "key_mismatch"),
    "13b": Case("fcm", text(403, "invalid push subscription endpoint"), MISMATCH, "key_mismatch"),
    "14": Case("fcm", text(413), POISON, "payload_too_large"),
    "15": Case("fcm", text(429, retry_after="117"), THROTTLED, "throttled"),
    "16": Case("fcm", text(502), BACKOFF, "http_502"),
    "17": Case("fcm", text(503, retry_after="30"), AFTER, "http_503"),
    "18": Case("mozilla", text(201, ttl="86400", location="https://m/x"), ACCEPTED, "accepted"),
    "19": Case("mozilla", text(201, ttl="0"), ACCEPTED, "accepted_or_dropped"),
    "20": Case("mozilla", mozilla(400, 110), POISON, "errno_110"),
    "21": Case("mozilla", mozilla(400, 111), POISON, "errno_111"),
    "22": Case("mozilla", mozilla(400, 114), POISON, "errno_114"),
    "23": Case("mozilla", mozilla(400, 113), POISON, "errno_113"),
    "24": Case("mozilla", mozilla(400, 108), VOTE, "errno_108"),
    "25": Case("mozilla", mozilla(400, None), POISON, "http_400"),
    "26": Case("mozilla", mozilla(401, 109, "Invalid bearer token: Auth expired"), RESIGN, "vapid_auth"),
    "26b": Case("mozilla", mozilla(401, 109, "VAPID public key mismatch"), MISMATCH, "key_mismatch"),
    "26c": Case("mozilla", text(401, "VAPID public key mismatch"), MISMATCH, "key_mismatch"),
    "27": Case("mozilla", mozilla(404, 102), VOTE, "errno_102"),
    "28": Case("mozilla", mozilla(410, 106, "No such subscription"), GONE, "errno_106"),
    "29": Case("mozilla", mozilla(413, 104, "Data payload must be smaller than 4096"), POISON, "payload_too_large"),
    "30": Case(
        "mozilla", mozilla(413, 104, CONSTRAINED), ("refused", "device_limit", "no", "poison"), "payload_device_limit"
    ),
    "31": Case("mozilla", text(429), THROTTLED, "throttled"),
    "32": Case("mozilla", mozilla(500, 201), BACKOFF, "http_500"),
    "33": Case("mozilla", mozilla(502, 901), BACKOFF, "http_502"),
    "34": Case("mozilla", mozilla(503, 201, retry_after="120"), AFTER, "http_503"),
    "34b": Case("mozilla", mozilla(503, 202), ("unavailable", "none", "at_once", "exhausted"), "errno_202"),
    "35": Case("apple", text(201, apns_id="6B29FC40-CA47-1067-B31D-00DD010662DA"), ACCEPTED, "accepted"),
    "36": Case("apple", apple(400, "BadWebPushTopic"), POISON, "bad_topic"),
    "37": Case("apple", apple(400, "BadTtl"), POISON, "http_400"),
    "38": Case("apple", apple(400, "VapidPkHashMismatch"), MISMATCH, "key_mismatch"),
    "39": Case("apple", apple(403, "BadAuthorizationHeader"), HOLD, "vapid_header"),
    "40": Case("apple", apple(400, "IdleTimeout"), ("unreachable", "none", "at_once", "exhausted"), "idle_timeout"),
    "41": Case("apple", apple(403, "BadJwtToken"), HOLD, "vapid_jwt"),
    "42": Case("apple", apple(403, "BadVapidPublicKey"), HOLD, "vapid_key"),
    "43": Case("apple", apple(404, "BadPath"), VOTE, "bad_path"),
    "44": Case("apple", apple(405, "MethodNotAllowed"), POISON, "http_405"),
    "45": Case("apple", apple(410, "Unregistered"), GONE, "gone"),
    "46": Case("apple", apple(413, "PayloadTooLarge"), POISON, "payload_too_large"),
    "47": Case("apple", apple(429, "TooManyRequests"), THROTTLED, "throttled"),
    "48": Case("apple", apple(500, "InternalServerError"), BACKOFF, "http_500"),
    "49": Case("apple", apple(503, "Shutdown"), BACKOFF, "http_503"),
    "50": Case("wns", text(201, x_wns_status="received"), ACCEPTED, "accepted"),
    "51": Case("wns", text(200, x_wns_notificationstatus="Dropped"), ("dropped", "none", "no", "no"), "wns_dropped"),
    "52": Case("wns", text(200, x_wns_status="channelThrottled"), THROTTLED, "wns_throttled"),
    "53": Case(
        "wns",
        text(400, x_wns_error_description="Ttl value conflicts with X-WNS-Cache-Policy."),
        POISON,
        "wns_cache_policy",
    ),
    "54": Case("wns", text(400, x_wns_error_description="X-WNS-Type is missing"), POISON, "wns_header"),
    "55": Case("wns", text(401), HOLD, "vapid_auth"),
    "56": Case("wns", text(403), MISMATCH, "key_mismatch"),
    "57": Case("wns", text(404), VOTE, "not_found"),
    "58": Case("wns", text(405), POISON, "http_405"),
    "59": Case("wns", text(406, x_wns_status="appthrottled"), THROTTLED, "wns_throttled"),
    "60": Case("wns", text(410), GONE, "gone"),
    "61": Case("wns", text(413), POISON, "payload_too_large"),
    "62": Case("wns", text(429, "App is throttled"), THROTTLED, "wns_throttled"),
    "63": Case("wns", text(503), AFTER, "http_503"),
    "64": Case("any", Answer(None, Fault.DNS), GONE, "never_resolves", host="permanently-removed.invalid"),
    "65": Case("ntfy", text(404), VOTE, "not_found"),
    "66": Case("ntfy", text(403, "no"), HOLD, "vapid_unknown"),
    "67": Case("ntfy", text(400), POISON, "http_400"),
    "68": Case("fcm", text(422), POISON, "http_4xx"),
    "68a": Case("mozilla", text(410), GONE, "gone"),
    "68b": Case("apple", text(404), VOTE, "not_found"),
    "68c": Case("fcm", text(101), BACKOFF, "bad_response"),
    "68d": Case("mozilla", mozilla(400, 101), POISON, "errno_101"),
    "69": Case("mozilla", text(408), UNREACHABLE, "http_408"),
    "70": Case("ntfy", text(413), POISON, "payload_too_large"),
    "71": Case("ntfy", text(429), THROTTLED, "throttled"),
    "72": Case("ntfy", text(507), BACKOFF, "http_507"),
    "73": Case("fcm", Answer(None, Fault.DNS), UNREACHABLE, "dns"),
    "74": Case("fcm", Answer(None, Fault.CONNECT), UNREACHABLE, "connect"),
    "75": Case(
        "fcm", Answer(None, Fault.AMBIGUOUS), ("ambiguous", "none", "ambiguous", "exhausted"), "ambiguous_timeout"
    ),
    "76": Case("fcm", Answer(None, Fault.TLS), HOLD, "tls"),
    "77": Case("fcm", Answer(None, Fault.BAD_KEYS), ("bad_keys", "bad_keys", "no", "no"), "bad_keys"),
    "77b": Case("fcm", Answer(None, Fault.VAPID), HOLD, "vapid_sign"),
    "78": Case("fcm", Answer(None, Fault.RENDER), POISON, "render"),
    "79": Case("fcm", Answer(None, Fault.ADDRESS), UNREACHABLE, "address"),
    "80": Case("fcm", Answer(None, Fault.NO_DATA_KEY), HOLD, "no_data_key"),
    "81": Case("fcm", Answer(None, Fault.TAMPERED), HOLD, "tampered"),
    "82": Case("fcm", Answer(None, Fault.DEVICE_LIMIT), POISON, "payload_device_limit"),
    "83": Case("fcm", Answer(None, Fault.PAYLOAD_MISSING), POISON, "payload_missing"),
}
