"""The shared fixtures, on Debian's servers: PostgreSQL 15 and Redis 7. `tests/system/run` installs them."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

import pushops
from pushops.sandbox import PostgresServer, ValkeyServer
from pushops.settings import Settings
from pushops.subscriptions.keychain import keychain
from tests import servers
from tests.conftest import FAST
from tests.outgoing import Pg, ends
from tests.sweeping import Process, wait_until, workers

POSTGRES: Final = Path("/usr/lib/postgresql/15/bin")
REDIS: Final = Path("/usr/bin/redis-server")
# As it was before the tests' own clean-up: pip may need the machine's proxy and certificates.
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith(("PUSHOPS_", "PG"))}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with servers.postgres(FAST, POSTGRES) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[ValkeyServer]:
    with servers.valkey(program=REDIS) as server:
        yield server


@pytest.fixture
def ops(settings: Settings) -> Iterator[pushops.Ops]:
    """The verbs, as an application has them: it rings for workers where the settings name a broker."""
    with pushops.open(settings) as opened:
        yield opened


@pytest.fixture
def worker(settings: Settings) -> Iterator[Process]:
    with workers(settings, 1) as started:
        yield started


def key_of(ops: pushops.Ops) -> str:
    """Our public key, as a page hands it to its browser."""
    (key,) = keychain(ops.runtime.settings).vapid.values()
    return base64.urlsafe_b64encode(key.public).rstrip(b"=").decode()


def sent(ops: pushops.Ops, pg: Pg, worker: Process, text: str, user: str = "ann") -> UUID:
    """A message that the worker was rung for and has brought to its end; no beat helps."""
    made = ops.send(text, user=user)
    wait_until(lambda: _ended(pg, made.message_id), expected=worker.tail)
    return made.message_id


def _ended(pg: Pg, message_id: UUID) -> bool:
    found = ends(pg, message_id)
    return bool(found) and not found.keys() & {"due", "claimed"}
