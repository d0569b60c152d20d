"""What an answer says beside its verdict."""

import re
from dataclasses import dataclass
from typing import Final

from pushops.delivery.answer import Answer
from pushops.delivery.classify.reading import decode, header
from pushops.delivery.classify.verdict import Lifecycle, Outcome, Verdict

_TOO_LONG_BY: Final = re.compile(r"too long by (\d{1,6})", re.IGNORECASE)
_SECONDS: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Learnt:
    """``granted_ttl``: seconds that the service keeps it, ``clamped`` if less than asked for. ``max_payload``: bytes
    of plaintext that this device takes.
    """

    granted_ttl: int | None = None
    clamped: bool = False
    max_payload: int | None = None


NOTHING: Final = Learnt()


def learn(answer: Answer, verdict: Verdict, payload_bytes: int, asked_ttl: int | None = None) -> Learnt:
    """The facts in an answer. ``payload_bytes``: of the plaintext that was sent; ``asked_ttl``: seconds."""
    if verdict.lifecycle is Lifecycle.DEVICE_LIMIT:
        return Learnt(max_payload=_max_payload(answer.body, payload_bytes))
    if verdict.outcome is not Outcome.ACCEPTED or not answer.headers:
        return NOTHING
    granted = _seconds(header(answer.headers, "ttl"))
    return Learnt(
        granted_ttl=granted,
        clamped=granted is not None and asked_ttl is not None and granted < asked_ttl,
    )


def _max_payload(body: bytes, payload_bytes: int) -> int | None:
    """What was sent less what was too much. That was counted after base64, so the limit is met with room to spare."""
    match = _TOO_LONG_BY.search(decode(body))
    limit = payload_bytes - int(match[1]) if match else 0
    return limit if limit > 0 else None


def _seconds(text: str | None) -> int | None:
    return int(text) if text is not None and _SECONDS.fullmatch(text) else None
