"""Checking what a sender says about itself: RFC 8292, with the vendors' own strictness about the subject."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from pushops.sandbox.push.subscribers import UNBOUND, fingerprint
from pushops.sandbox.push.vendors import Vendor, decode

LONGEST: Final = 24 * 3600  # seconds that a token may have left, RFC 8292 section 2
CACHED: Final = 4096  # a sender signs about one token an hour and origin
_HEADER: Final = re.compile(r"vapid +([tk])=([^, ]+) *, *([tk])=([^, ]+)", re.IGNORECASE)
# Apple refuses these as the host of a subject (seen in the field); the others do not look.
_NO_HOST: Final = re.compile(r"[@/](?:localhost|[^@/]*\.(?:local|localhost|invalid|test|example))(?=[:/>?]|$)")


class Flaw(StrEnum):
    """What is wrong with an Authorization header; each vendor has a text for each."""

    MISSING = "missing"
    MALFORMED = "malformed"
    KEY = "key"
    SIGNATURE = "signature"
    AUDIENCE = "audience"
    EXPIRED = "expired"
    TOO_LONG = "too_long"
    SUBJECT = "subject"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token whose signature holds says, and the fingerprint of the key that signed it."""

    audience: object
    expires: float
    subject: str
    signer: bytes


class Verifier:
    """Remembers whose signatures hold: a token is sent thousands of times and checked once."""

    def __init__(self) -> None:
        self._known: dict[str, Claims | Flaw] = {}

    def check(self, header: str | None, origin: str, vendor: Vendor, bound: bytes, now: float) -> Flaw | None:
        """What is wrong for this origin and this subscriber at ``now`` (seconds of the epoch), or None."""
        if not header:
            return Flaw.MISSING
        claims = self._read(header)
        return claims if isinstance(claims, Flaw) else judge(claims, origin, vendor, bound, now)

    def _read(self, header: str) -> Claims | Flaw:
        found = self._known.get(header)
        if found is None:
            if len(self._known) >= CACHED:
                self._known.clear()
            found = self._known[header] = read(header)
        return found


def judge(claims: Claims, origin: str, vendor: Vendor, bound: bytes, now: float) -> Flaw | None:
    """Hold claims against an origin, a clock and the key that the subscriber was made for."""
    if claims.audience != origin:
        return Flaw.AUDIENCE
    if claims.expires <= now:
        return Flaw.EXPIRED
    if claims.expires > now + LONGEST:
        return Flaw.TOO_LONG
    if not subject_is_real(claims.subject, vendor):
        return Flaw.SUBJECT
    return Flaw.MISMATCH if bound not in {UNBOUND, claims.signer} else None


def read(header: str) -> Claims | Flaw:
    """Parse a header and verify its signature."""
    parts = _HEADER.fullmatch(header.strip())
    fields = {parts[1].lower(): parts[2], parts[3].lower(): parts[4]} if parts else {}
    if fields.keys() != {"t", "k"}:
        return Flaw.MALFORMED
    try:
        raw = decode(fields["k"].rstrip("="))
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), raw)
    except ValueError:
        return Flaw.KEY
    try:
        claims = _verified(fields["t"], key)
        return Claims(claims.get("aud"), float(claims["exp"]), str(claims.get("sub", "")), fingerprint(raw))
    except (ValueError, TypeError, KeyError, InvalidSignature):
        return Flaw.SIGNATURE


def _verified(token: str, key: ec.EllipticCurvePublicKey) -> dict[str, Any]:
    head, body, signature = token.split(".")
    raw = decode(signature)
    if len(raw) != 64 or json.loads(decode(head)).get("alg") != "ES256":  # noqa: PLR2004 - R and S, RFC 7518 3.4
        raise InvalidSignature
    der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    key.verify(der, f"{head}.{body}".encode(), ec.ECDSA(SHA256()))
    claims: dict[str, Any] = json.loads(decode(body))
    return claims


def subject_is_real(subject: str, vendor: Vendor) -> bool:
    """Whether a vendor takes this subject: a mailto: or https: URI; for Apple of a host that can exist."""
    if vendor is Vendor.MOZILLA and not subject:
        return True  # autopush reads the claim for its logs only
    if not subject.startswith(("mailto:", "https://")):
        return False
    return vendor is not Vendor.APPLE or _NO_HOST.search(subject) is None
