"""Incidents that happened, as scripts: `pushops sandbox outage NAME` stages them."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

from pushops.errors import PushopsError

FCM: Final = "fcm.googleapis.com"
WNS: Final = "*.notify.windows.com"
APPLE: Final = "*.push.apple.com"
MOZILLA: Final = "updates.push.services.mozilla.com"


class Listening(StrEnum):
    """What the port does."""

    YES = "yes"
    REFUSES = "refuses"
    DEAF = "deaf"


@dataclass(frozen=True)
class Outage:
    """What happened, and what stages it.

    ``scripts``: without names, they are numbered. ``listening``: whether connections are refused, or taken and never
    read. ``clock_ahead``: seconds that the service's clock is ahead of the sender's.
    """

    meaning: str
    scripts: tuple[dict[str, Any], ...] = ()
    listening: Listening = Listening.YES
    clock_ahead: float = 0.0


OUTAGES: Final[dict[str, Outage]] = {
    "fcm-2019": Outage(
        "FCM answers half of all requests with a false 404; the same endpoint is found and not found",
        ({"host": FCM, "share": 0.5, "per": "request", "answer": "fcm-404-html"},),
    ),
    "fcm-2024": Outage(
        "45 % of FCM's tokens answer 404, and go on answering it: this time they are gone",
        ({"host": FCM, "share": 0.45, "answer": "fcm-404"},),
    ),
    "fcm-400": Outage(
        "FCM alternates UnauthorizedRegistration and acceptance for the same request",
        ({"host": FCM, "share": 0.5, "per": "request", "answer": "fcm-400-UnauthorizedRegistration"},),
    ),
    "fcm-401": Outage(
        "FCM answers some requests with 401 invalid push endpoint though nothing is wrong",
        ({"host": FCM, "share": 0.2, "per": "request", "answer": "fcm-401-endpoint"},),
    ),
    "all-404": Outage("every service answers everything with 404", ({"answer": "*-404"},)),
    "all-410": Outage("every service answers everything with 410", ({"answer": "*-410"},)),
    "all-404-410": Outage(
        "every service answers 404 to half of its endpoints and 410 to the others",
        ({"answer": "*-404"}, {"answer": "*-410", "share": 0.5}),
    ),
    "all-429": Outage("every service throttles everything, with Retry-After", ({"answer": "*-429"},)),
    "all-500": Outage("every service answers everything with 500", ({"answer": "*-500"},)),
    "all-503": Outage("every service is overloaded and says when to come back", ({"answer": "*-503"},)),
    "wns-406": Outage("WNS throttles with 406, without a body", ({"host": WNS, "answer": "wns-406"},)),
    "wns-dropped": Outage("WNS answers 200 and drops everything", ({"host": WNS, "answer": "wns-200-dropped"},)),
    "apple-jwt": Outage(
        "Apple refuses every token with 403 BadJwtToken, as for a subject at localhost",
        ({"host": APPLE, "answer": "apple-403-BadJwtToken"},),
    ),
    "vapid-mismatch": Outage(
        "every service says that the key is not the one the subscription was made with", ({"answer": "*-mismatch"},)
    ),
    "auth-expired": Outage(
        "every service says that the token has expired, as for a sender whose clock is wrong",
        (
            {"answer": "fcm-403-expired", "host": FCM},
            {"answer": "mozilla-401-expired", "host": MOZILLA},
            {"answer": "apple-403-BadJwtToken", "host": APPLE},
            {"answer": "wns-401", "host": WNS},
        ),
    ),
    "mozilla-bridged": Outage(
        "one endpoint in five of Mozilla's is a phone behind a bridge, which says 413 with the excess",
        ({"host": MOZILLA, "share": 0.2, "answer": "mozilla-413-bridged"},),
    ),
    "accepted-but-503": Outage(
        "a third of the requests is accepted and answered 503 all the same",
        ({"share": 0.33, "per": "request", "answer": "*-503", "accept": True},),
    ),
    "answer-lost": Outage(
        "a third of the requests is accepted, then the connection is reset before the answer",
        ({"share": 0.33, "per": "request", "fault": "reset", "accept": True},),
    ),
    "redirect": Outage("everything is redirected to another host", ({"answer": "redirect"},)),
    "html": Outage("a proxy in front answers 502 with a page", ({"answer": "html-502"},)),
    "slow": Outage("every answer comes after five seconds", ({"delay": 5.0},)),
    "drip": Outage("answers come a byte every half second", ({"drip": 0.5},)),
    "hang": Outage("requests are read and never answered", ({"fault": "hang"},)),
    "reset": Outage("connections are reset after the request was read", ({"fault": "reset"},)),
    "kept-close": Outage(
        "a kept connection is closed after the next request was read whole",
        ({"fault": "close", "kept": True, "accept": True},),
    ),
    "goaway": Outage(
        "HTTP/2 connections end with GOAWAY every so often",
        ({"share": 0.02, "per": "request", "fault": "goaway", "at": "headers", "code": 0},),
    ),
    "http1": Outage("HTTP/2 is not offered any more", ({"handshake": "http1"},)),
    "tls": Outage("certificates come from an authority that nobody trusts", ({"handshake": "stranger"},)),
    "tls-expired": Outage("certificates have expired", ({"handshake": "expired"},)),
    "down": Outage("connections are refused", listening=Listening.REFUSES),
    "deaf": Outage("connections are accepted, and nothing is ever said on them", listening=Listening.DEAF),
    "clock": Outage(
        "the sender's clock is a day behind: every token has expired", clock_ahead=timedelta(days=1).total_seconds()
    ),
}
DNS: Final = "dns"
DNS_MEANING: Final = "names do not resolve: staged in the sender, with PUSHOPS_CONNECT_TO"


def scripts_of(name: str) -> list[dict[str, Any]]:
    """The scripts of an outage; PushopsError for an unknown one."""
    return [{**script, "name": f"outage {name} {number}"} for number, script in enumerate(find(name).scripts)]


def meaning_of(name: str) -> str:
    return find(name).meaning


def find(name: str) -> Outage:
    found = OUTAGES.get(name)
    if found is None:
        raise PushopsError(f"expected an outage, one of {', '.join(sorted(OUTAGES))}; got {name!r}")
    return found
