"""Distinct subscriptions: a file for senders that keep none, and a database for the one that does."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from pydantic import SecretStr

from bench.house import House
from bench.sending.job import KEY_ID, WARM, Person
from bench.sending.ours import WARM_TAG
from pushops.db.migrate import migrate
from pushops.settings import load_settings
from pushops.subscriptions import base64url
from pushops.subscriptions.keychain import AUTH, keychain

TEMPLATE: Final = "people"
_COPY: Final = """
COPY pushops.push_subscription
     (endpoint_hash, endpoint, push_service, p256dh, auth_sealed, auth_key_version, vapid_key_id, tags, origin, state)
FROM STDIN"""


def write(people: Sequence[Person], file: Path) -> None:
    with file.open("w") as out:
        out.writelines(json.dumps(one) + "\n" for one in people)


def store(house: House, people: Sequence[Person]) -> None:
    """Make a template database in which they are registered, each with its auth secret under a seal of its own."""
    settings = load_settings(database_url=SecretStr(house.postgres.create_database(TEMPLATE)))
    migrate(settings)
    ring = keychain(settings).ring
    with psycopg.connect(house.postgres.url(TEMPLATE), autocommit=True) as conn:
        with conn.cursor().copy(_COPY) as copy:
            for number, one in enumerate(people):
                copy.write_row(_row(ring, one, [WARM_TAG] if number < WARM else []))
        conn.execute("VACUUM ANALYZE")


def drop(house: House) -> None:
    with house.admin() as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {TEMPLATE}")


def _row(ring: Any, one: Person, tags: list[str]) -> tuple[Any, ...]:  # noqa: ANN401  (a row of many types)
    endpoint, keys = one["endpoint"], one["keys"]
    digest = hashlib.sha256(endpoint.encode()).digest()
    sealed = ring.seal(AUTH, digest, base64url.decode(keys["auth"]))
    origin = "https://shop.example.org"
    return digest, endpoint, "mozilla", keys["p256dh"], sealed.blob, sealed.version, KEY_ID, tags, origin, "active"
