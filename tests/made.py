"""What tests need many of: settings, keys."""

import base64
import secrets
from typing import Any

from pydantic import SecretStr

from pushops.settings import Settings, load_settings


def make_settings(database_url: str, **changes: Any) -> Settings:
    """Complete settings for a database, with random keys."""
    keys: dict[str, Any] = {
        "database_url": SecretStr(database_url),
        "log_hmac_key": SecretStr(random_key()),
        "seal_keys": {"1": random_key()},
        "vapid_keys": {"test": random_key()},
        "vapid_key_id": "test",
        "vapid_subject": "mailto:tests@pushops.dev",
    }
    return load_settings(**keys | changes)


def random_key() -> str:
    """32 random bytes as base64url; also a P-256 private key, all but 2^-32 of the time."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
