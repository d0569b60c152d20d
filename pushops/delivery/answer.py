"""The words between the transport and the classifier: what came back, or why nothing did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

BODY_MAX: Final = 4096  # bytes of a body that are kept: every known error answer is shorter


class Fault(StrEnum):
    """Why there is no answer. The first five are the network's and the peer's, the others ours."""

    DNS = "dns"
    CONNECT = "connect"  # refused, reset or timed out before any byte of the body was sent
    AMBIGUOUS = "ambiguous"  # timed out, reset or closed after the body was, or may have been, sent
    TLS = "tls"  # certificate or handshake
    BAD_RESPONSE = "bad_response"  # garbage, 1xx as the final answer, 600 and above
    ADDRESS = "address"  # the resolved address is none that we may talk to (SSRF)
    BAD_KEYS = "bad_keys"  # this subscription's p256dh or auth cannot encrypt
    VAPID = "vapid"  # our key cannot sign
    NO_DATA_KEY = "no_data_key"  # the version of the key that sealed this is missing
    TAMPERED = "tampered"  # a sealed value does not open
    DEVICE_LIMIT = "device_limit"  # more than this device once said that it takes
    PAYLOAD_MISSING = "payload_missing"  # the object store has none for this message
    RENDER = "render"  # the renderer raised, or killed its worker


@dataclass(frozen=True, slots=True)
class Answer:
    """One attempt's end: a status, or a fault. A final status beside an ambiguous end is the truth of the two.

    ``headers``: names in lower case, repeats joined with ", ", only small ones. ``body``: at most ``BODY_MAX`` bytes.
    ``seconds``: from the first byte of the request to the end. ``http_version``: "1.1", "2" or "".
    """

    status: int | None
    fault: Fault | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    http_version: str = ""
