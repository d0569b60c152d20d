"""The shared fixtures, on Debian's servers: PostgreSQL 15 and Redis 7. `tests/system/run` installs them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pushops.sandbox import PostgresServer, ValkeyServer
from tests import servers
from tests.conftest import FAST

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
