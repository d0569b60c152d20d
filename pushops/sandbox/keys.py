"""Keys of a sandbox: made once, kept in its folder for its owner only, gone with it."""

import base64
import json
import secrets
from pathlib import Path
from typing import Any, Final

from pushops.sandbox.folders import write_private

FILE: Final = "keys.json"
# Only the sandbox's push service ever reads it, and holds it to Apple's rule: no localhost, no example.com.
SUBJECT: Final = "mailto:sandbox@pushops.dev"
# The order of P-256's group: a private key is a number from 1 to one less (FIPS 186-4, D.1.2.3).
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def read_or_make_keys(folder: Path) -> dict[str, Any]:
    """The settings that hold keys and whom they speak for, by field name, as JSON; call it with the folder locked."""
    path = folder / FILE
    if not path.exists():
        write_private(path, json.dumps(_make()))
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _make() -> dict[str, Any]:
    scalar = secrets.randbelow(_ORDER - 1) + 1
    return {
        "seal_keys": {"1": _text(secrets.token_bytes(32))},
        "log_hmac_key": _text(secrets.token_bytes(32)),
        "vapid_keys": {"sandbox": _text(scalar.to_bytes(32, "big"))},
        "vapid_key_id": "sandbox",
        "vapid_subject": SUBJECT,
    }


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
