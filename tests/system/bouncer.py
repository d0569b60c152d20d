"""A PgBouncer in transaction mode before a server of the tests', in a folder of its own, on a Unix socket only."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

from pushops.sandbox import PostgresServer
from pushops.sandbox.postgres import SUPERUSER
from pushops.sandbox.processes import wait_until
from tests.servers import new_folder

PORT: Final = 6432  # only part of the socket's name
SIZE: Final = 3  # server connections for a database, far fewer than the clients

# Round robin moves a session to another backend at nearly every transaction, where the default tends to keep it.
SETTINGS: Final = """
[databases]
* = host={sockets} port={server_port} user={user}
[pgbouncer]
listen_port = {port}
unix_socket_dir = {folder}
logfile = {folder}/log
auth_type = any
pool_mode = transaction
default_pool_size = {size}
min_pool_size = {size}
server_round_robin = 1
"""
NO_STATEMENTS: Final = "max_prepared_statements = 0\n"  # what versions before 1.21 do without being told


class Bouncer:
    """A started PgBouncer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def url(self, database: str) -> str:
        query = urlencode({"host": str(self.folder), "port": PORT}, quote_via=quote, safe="")
        return f"postgresql://{SUPERUSER}@/{database}?{query}"


@contextmanager
def before(server: PostgresServer) -> Iterator[Bouncer]:
    """Yield a PgBouncer that leads to `server`; stop and remove it afterwards."""
    folder = new_folder("pushops-bouncer")
    server.account.make_folder(folder, owned=True)
    server.account.make_file(folder / "pgbouncer.ini", settings(server, folder), owned=True)
    process = subprocess.Popen(
        [program(), str(folder / "pgbouncer.ini")],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=server.account.uid,
        group=server.account.gid,
        extra_groups=[],
    )
    try:
        wait_until((folder / f".s.PGSQL.{PORT}").exists, 10, "PgBouncer's socket")
        yield Bouncer(folder)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


def settings(server: PostgresServer, folder: Path) -> str:
    values = {"sockets": server.sockets, "server_port": server.port, "user": SUPERUSER}
    text = SETTINGS.format(**values, port=PORT, folder=folder, size=SIZE)
    return text + (NO_STATEMENTS if version() >= (1, 21) else "")


def version() -> tuple[int, ...]:
    said = subprocess.run([program(), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


def program() -> str:
    return shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
