"""Renderers of tests: they do to a worker what applications' own code does."""

import os
import signal

from pushops.delivery.rendering import Recipient

BAD = "bad"  # the user whose payload cannot be made


def raises(payload: bytes, recipient: Recipient) -> bytes:
    if recipient.user_id == BAD:
        raise LookupError("no such template, and a secret in the text")
    return payload + (recipient.user_id or "").encode()


def too_much(payload: bytes, recipient: Recipient) -> bytes:
    return payload * 4000 if recipient.user_id == BAD else payload


def no_bytes(payload: bytes, recipient: Recipient) -> bytes:
    return None if recipient.user_id == BAD else payload  # type: ignore[return-value]  # as in an untyped application


def kills(payload: bytes, recipient: Recipient) -> bytes:
    """As a native library would, or the kernel's memory killer."""
    if recipient.user_id == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    return payload
