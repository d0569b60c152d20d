"""The library of answers: vendors' own words by name, and answers that a script spells out itself."""

import base64
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any, Final

from pushops.errors import PushopsError
from pushops.sandbox.push.vapid import Flaw
from pushops.sandbox.push.vendors import Vendor

Headers = tuple[tuple[str, str], ...]
ANY_VENDOR: Final = "*-"  # "*-404" is each vendor's own way of saying so
_MORE: Final = "http://autopush.readthedocs.io/en/latest/http.html#error-codes"
_TEXT: Final = "text/plain; charset=utf-8"
_HTML: Final = "text/html; charset=UTF-8"
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, headers in the vendor's spelling, a body."""

    status: int
    headers: Headers = ()
    body: bytes = b""


# What is wrong with a request, in each vendor's words.
REFUSALS: Final[Mapping[Vendor, Mapping[Flaw, str]]] = {
    Vendor.FCM: {
        Flaw.MISSING: "fcm-401-missing",
        Flaw.MALFORMED: "fcm-403-format",
        Flaw.KEY: "fcm-403-key",
        Flaw.SIGNATURE: "fcm-403-jwt",
        Flaw.AUDIENCE: "fcm-403-aud",
        Flaw.EXPIRED: "fcm-403-expired",
        Flaw.TOO_LONG: "fcm-403-exp",
        Flaw.SUBJECT: "fcm-403-jwt",
        Flaw.MISMATCH: "fcm-mismatch",
    },
    Vendor.MOZILLA: {
        Flaw.MISSING: "mozilla-401-missing",
        Flaw.MALFORMED: "mozilla-401-scheme",
        Flaw.KEY: "mozilla-401-key",
        Flaw.SIGNATURE: "mozilla-401-signature",
        Flaw.AUDIENCE: "mozilla-401-audience",
        Flaw.EXPIRED: "mozilla-401-expired",
        Flaw.TOO_LONG: "mozilla-401-exp",
        Flaw.SUBJECT: "mozilla-401-signature",
        Flaw.MISMATCH: "mozilla-mismatch",
    },
    Vendor.APPLE: {
        Flaw.MISSING: "apple-403-BadAuthorizationHeader",
        Flaw.MALFORMED: "apple-403-BadAuthorizationHeader",
        Flaw.KEY: "apple-403-BadVapidPublicKey",
        Flaw.SIGNATURE: "apple-403-BadJwtToken",
        Flaw.AUDIENCE: "apple-403-BadJwtToken",
        Flaw.EXPIRED: "apple-403-BadJwtToken",
        Flaw.TOO_LONG: "apple-403-BadJwtToken",
        Flaw.SUBJECT: "apple-403-BadJwtToken",
        Flaw.MISMATCH: "apple-mismatch",
    },
    Vendor.WNS: {**dict.fromkeys(Flaw, "wns-401"), Flaw.MISMATCH: "wns-mismatch"},
}


def named(name: str, vendor: Vendor | None = None) -> Answer:
    """An answer of the library; ``*-`` in front stands for the vendor asked. PushopsError for an unknown name."""
    found = _library().get(name if vendor is None else name.replace(ANY_VENDOR, f"{vendor}-", 1))
    if found is None:
        raise PushopsError(f"expected a name from the library of answers, got {name!r}")
    return found


def names() -> list[str]:
    """Every name there is."""
    return sorted(_library())


def check_name(name: str) -> str:
    """The name itself; PushopsError unless the library has it, for every vendor where ``*-`` stands in front."""
    for vendor in Vendor:
        named(name, vendor)
    return name


def refusal(vendor: Vendor, flaw: Flaw) -> Answer:
    return named(REFUSALS[vendor][flaw])


def spelled(fields: Mapping[str, Any]) -> Answer:
    """An answer from its description: the same words that stand in answers.toml."""
    status = int(fields["status"])
    kind, body = _body(status, fields)
    headers = dict(fields.get("headers", {}))
    has_type = any(name.lower() == "content-type" for name in headers)
    typed: Headers = () if kind is None or has_type else (("Content-Type", kind),)
    return Answer(status, (*typed, *_pairs(headers), *_filling(int(fields.get("fill_headers", 0)))), body)


def _body(status: int, fields: Mapping[str, Any]) -> tuple[str | None, bytes]:
    if "message" in fields:
        said = {"code": status, "errno": fields.get("errno"), "error": _phrase(status), "message": fields["message"]}
        return _JSON, json.dumps({**said, "more_info": _MORE}, separators=(",", ":")).encode()
    if "reason" in fields:
        return _JSON, json.dumps({"reason": fields["reason"]}, separators=(",", ":")).encode()
    if "title" in fields or "html" in fields:
        return _HTML, str(fields.get("html") or _page(fields["title"], status)).encode()
    return _plain_body(fields)


def _plain_body(fields: Mapping[str, Any]) -> tuple[str | None, bytes]:
    if "body_base64" in fields:
        return None, base64.b64decode(fields["body_base64"])
    if "fill_body" in fields:
        return _TEXT, b"x" * int(fields["fill_body"])
    body = str(fields.get("body", "")).encode("utf-8", "surrogateescape")
    return (_TEXT if body else None), body


def _page(title: str, status: int) -> str:
    head = f"<HEAD>\n<TITLE>{title}</TITLE>\n</HEAD>\n"
    body = f'<BODY BGCOLOR="#FFFFFF" TEXT="#000000">\n<H1>{title}</H1>\n<H2>Error {status}</H2>\n</BODY>\n'
    return f"<HTML>\n{head}{body}</HTML>\n"


def _pairs(headers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items():
        for each in value if isinstance(value, list) else [value]:
            yield name, str(each)


def _filling(size: int) -> Iterator[tuple[str, str]]:
    for number in range(0, size, 1000):
        yield f"X-Filler-{number}", "x" * 980


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


@cache
def _library() -> dict[str, Answer]:
    text = files("pushops.sandbox.push").joinpath("answers.toml").read_text(encoding="utf-8")
    return {name: spelled(fields) for name, fields in tomllib.loads(text).items()}
