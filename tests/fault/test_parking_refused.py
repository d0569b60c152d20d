"""Letters while their table refuses, their spool does, or whoever has them is killed: none is lost or doubled."""

import json
import os
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from pushops import tasks
from pushops.deadletters import spool, tending, writer
from pushops.deadletters.letter import Letter
from pushops.deadletters.spelling import read
from pushops.delivery import settling
from pushops.errors import DatabaseError
from pushops.events import Level
from pushops.runtime import Runtime
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.answers import text
from tests.outgoing import Pg, Recorded, ends, one_row, outgoing
from tests.parking import Row, answer, attempts_of, letter_of, letters, recipient, unparked
from tests.renderers import BAD
from tests.sweeping import beat, publishing, wait_until, workers
from tests.unsettled import SCHEDULE, lose_leases, make_due, sending

pytestmark = pytest.mark.long

SHORT: Final = timedelta(milliseconds=200)
TENDED: Final = {**SCHEDULE, "tend_dead_letters": {"task": "pushops.tend_dead_letters", "schedule": 0.5}}
NOBODY: Final = 65534
NEVER: Final = {"status": 400, "body": "never"}


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"spool": tmp_path / "spool", "dead_letter_timeout": SHORT})


def spooled(rt: Runtime) -> list[Letter]:
    """What is in the spool, which is left as it is."""
    lines = [line for path in spool.files(rt.settings) for line in path.read_bytes().splitlines()]
    return [read(json.loads(line)) for line in lines]


def older(pg: Pg) -> None:
    """Who ended the rows had the time to write their letters."""
    pg.execute("UPDATE pushops.push_unparked SET ended_at = ended_at - interval '10 seconds'")


def assert_each_once(pg: Pg, rt: Runtime, rows: Sequence[Row]) -> None:
    assert Counter(letter["message_id"] for letter in letters(pg)) == Counter(row.message_id for row in rows)
    assert unparked(pg) == 0
    assert spool.files(rt.settings) == []


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Somebody alters the table, and takes their time."""
    with psycopg.connect(url) as conn:
        conn.execute("LOCK TABLE pushops.push_dlq IN ACCESS EXCLUSIVE MODE")
        yield


@contextmanager
def missing(url: str) -> Iterator[None]:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("ALTER TABLE pushops.push_dlq RENAME TO push_dlq_away")
        yield
        conn.execute("ALTER TABLE pushops.push_dlq_away RENAME TO push_dlq")


@contextmanager
def refused(url: str) -> Iterator[None]:
    """Whoever is connected goes on, and nobody else comes in: all connections are in use, or a pooler is full."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    with psycopg.connect(url, dbname="postgres", autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
        yield
        conn.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true".encode())


@contextmanager
def read_only(url: str) -> Iterator[None]:
    """The standby was promoted by mistake, or the disk is full: every new transaction refuses to write."""
    with psycopg.connect(url, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        yield
        conn.execute(f"SET default_transaction_read_only = off; ALTER DATABASE {name} RESET ALL".encode())


@pytest.mark.parametrize("refusing", [locked, missing, refused, read_only])
def test_while_the_table_refuses_every_letter_is_in_the_spool_and_then_once_in_the_table(
    runtime: Runtime, pg: Pg, database_url: str, recorded: Recorded, refusing: Callable[[str], Any]
) -> None:
    """One batch finds it out, the others do not ask: nobody who sends waits for it again and again."""
    rows = [recipient(pg) for _ in range(60)]
    batches = [rows[start : start + 10] for start in range(0, 60, 10)]
    answer(runtime, batches[0], [text(400)] * 10)
    with refusing(database_url):
        for batch in batches[1:5]:
            answer(runtime, batch, [text(400)] * 10)
        assert {letter.message_id for letter in spooled(runtime)} == {row.message_id for row in rows[10:50]}
        assert unparked(pg) == 40
        with pytest.raises(DatabaseError):
            tending.tend(runtime)
        assert len(spooled(runtime)) == 40
    found = [(level, fields["rows"], fields["error"]) for level, name, fields in recorded if name == "dlq.spooled"]
    assert found[0][0] is Level.PAGE
    assert found[0][2] != writer.A_MOMENT_AGO
    assert found[1:] == [(Level.WARNING, 10, writer.A_MOMENT_AGO)] * 3
    answer(runtime, batches[5], [text(400)] * 10)
    assert len(spooled(runtime)) == 50, "for a few seconds nobody asks"
    older(pg)
    tending.tend(runtime)
    assert_each_once(pg, runtime, rows)
    assert {len(attempts_of(pg, row)) for row in rows} == {1}
    assert tending.tend(runtime) == 0


def test_after_a_pause_the_table_is_asked_again(
    runtime: Runtime, pg: Pg, database_url: str, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PAUSE", 0.0)
    monkeypatch.setattr(writer, "PAUSES", 0.0)
    one, other = recipient(pg), recipient(pg)
    with missing(database_url):
        answer(runtime, [one], [text(400)])
    answer(runtime, [other], [text(400)])
    assert [letter.message_id for letter in spooled(runtime)] == [one.message_id]
    assert letter_of(pg, other) is not None
    assert [fields["rows"] for _, name, fields in recorded if name == "dlq.parked"] == [1]


def test_an_outage_in_which_the_table_refuses_as_well_costs_no_letter_and_makes_none(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str, database_url: str
) -> None:
    """Real workers: one push service is down, another refuses some; meanwhile everybody else is sent to."""
    hurried = sending(settings, pushed_to, valkey_url)
    with outgoing(hurried, pushed_to) as out:
        good, bad = out.register(pg, "fcm", 200), out.register(pg, "fcm", 50)
        out.register(pg, "apple", 60)
        pushed_to.script("never", endpoints=bad, answer=NEVER)
        pushed_to.script("down", host="web.push.apple.com", answer="*-503")
        message = out.send("hello")

        def over(**expected: int) -> bool:
            return all(ends(pg, message)[name] == number for name, number in expected.items())

        with publishing(hurried), workers(hurried, 2) as pool, beat(hurried, TENDED):
            with locked(database_url):
                tasks.send_due.delay()
                wait_until(lambda: over(accepted=200, poison=50), 40, lambda: f"all others\n{pool.tail()}")
                wait_until(lambda: len(spooled(out.rt)) == 50, expected=lambda: f"50 in the spool\n{pool.tail()}")
            wait_until(lambda: len(letters(pg)) == 50, expected=lambda: f"the spool's letters\n{pool.tail()}")
            older(pg)
            wait_until(lambda: unparked(pg) == 0 and not spool.files(hurried), expected="nothing owed")
        assert {letter["terminal_status"] for letter in letters(pg)} == {400}
        assert len({letter["subscription_id"] for letter in letters(pg)}) == len(letters(pg)) == 50
        assert pushed_to.accepted(good) == [1] * 200
        assert ends(pg, message)["due"] + ends(pg, message)["claimed"] == 60


def test_a_worker_killed_between_the_settling_and_the_parking_leaves_its_letters_owed(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str, database_url: str
) -> None:
    """The test holds the table, so that the worker stands before it with its letters when it is killed."""
    hurried = sending(settings, pushed_to, valkey_url, dead_letter_timeout=timedelta(seconds=30))
    standing = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pushops-letters'"

    def writers(waiting: str = "") -> int:
        found = pg.execute((standing + waiting).encode()).fetchone()
        assert found is not None
        return int(found[0])

    with outgoing(hurried, pushed_to) as out:
        out.register(pg, "fcm", 20)
        pushed_to.script("never", answer=NEVER)
        message = out.send("hello")
        with publishing(hurried), workers(hurried, 1) as victim, locked(database_url):
            tasks.send_due.delay()
            wait_until(lambda: writers(" AND wait_event_type = 'Lock'"), expected=lambda: f"letters\n{victim.tail()}")
            owed = unparked(pg)
            victim.kill()
        wait_until(lambda: writers() == 0, expected="its connection to end")
        assert (len(letters(pg)), spool.files(hurried)) == (0, [])
        assert owed == unparked(pg) == ends(pg, message)["poison"] > 0
        older(pg)
        assert tending.tend(out.rt) == owed
        assert (len(letters(pg)), unparked(pg)) == (owed, 0)


def test_a_process_killed_in_the_middle_of_spooling_leaves_a_torn_line_and_no_loss(
    runtime: Runtime, pg: Pg, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills it between two writes of one line; what is torn is still owed."""
    rows = [recipient(pg) for _ in range(3)]
    monkeypatch.setattr(settling, "park", lambda *_: None)
    found = answer(runtime, rows, [text(400)] * 3).letters
    length = len(spool.line(found[0])) + 1
    child = os.fork()
    if child == 0:
        die_spooling(runtime.settings, found, length * 2 + length // 2)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -signal.SIGXFSZ
    (path,) = spool.files(runtime.settings)
    assert (path.read_bytes().count(b"\n"), path.stat().st_size) == (2, length * 2 + length // 2)
    assert tending.tend(runtime) == 2
    assert [fields["rows"] for _, name, fields in recorded if name == "dlq.spool_failed"] == [1]
    assert len(path.with_suffix(spool.BROKEN).read_bytes()) == length // 2 + 1
    older(pg)
    assert tending.tend(runtime) == 1
    assert_each_once(pg, runtime, rows)


def die_spooling(settings: Settings, found: Sequence[Letter], size: int) -> None:
    """In a child: no file may become longer than that, and who goes on writing is killed."""
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        spool.append(settings, found)
    finally:
        os._exit(0)


def a_file(folder: Path, _patch: pytest.MonkeyPatch) -> None:
    folder.write_text("not a folder")


def closed(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Its owner may not write there. Root may everywhere, and is somebody else meanwhile."""
    folder.mkdir()
    folder.chmod(0o500)
    if os.geteuid() == 0:
        append = spool.append

        def as_nobody(*given: Any) -> None:
            for each in (folder, folder.parent, folder.parent.parent):
                os.chown(each, NOBODY, NOBODY)
            os.seteuid(NOBODY)
            try:
                append(*given)
            finally:
                os.seteuid(0)

        patch.setattr(spool, "append", as_nobody)


@pytest.mark.parametrize("spoil", [a_file, closed])
def test_where_neither_table_nor_spool_takes_them_letters_are_owed_until_one_does(
    runtime: Runtime,
    pg: Pg,
    database_url: str,
    recorded: Recorded,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said as an error, and costs no answer its settling."""
    rows = [recipient(pg) for _ in range(10)]
    spoil(spool.folder(runtime.settings), monkeypatch)
    with missing(database_url):
        for batch in (rows[:5], rows[5:]):
            assert len(answer(runtime, batch, [text(400)] * 5).letters) == 5
    failed = [(level, fields["rows"]) for level, name, fields in recorded if name == "dlq.spool_failed"]
    assert failed == [(Level.ERROR, 5)] * 2
    assert (letters(pg), unparked(pg)) == ([], 10)
    older(pg)
    assert tending.tend(runtime) == 10
    assert_each_once(pg, runtime, rows)


def test_a_row_whose_rendering_kills_its_worker_ends_as_a_letter_after_three_deaths(
    settings: Settings, pushed_to: PushService, pg: Pg, valkey_url: str
) -> None:
    """No status, poison, and nothing in doubt: nothing was ever sent (E14)."""
    hurried = sending(settings, pushed_to, valkey_url, renderer="tests.renderers:kills")
    with outgoing(hurried, pushed_to) as out:
        out.register(pg, "fcm", 10, user_id="good")
        (bad,) = out.register(pg, "fcm", 1, user_id=BAD)
        message = out.send("hello")

    def over() -> bool:
        lose_leases(pg, older_than="1 second")
        make_due(pg)
        return not ends(pg, message).keys() & {"due", "claimed"} and len(letters(pg)) > 0

    with (
        publishing(hurried),
        workers(hurried, 1, config="worker_lost_wait = 0.1\n") as pool,
        beat(hurried, TENDED),
    ):
        tasks.send_due.delay()
        wait_until(over, 40, lambda: f"an end of each row\n{pool.tail()}", poll=0.2)
    (letter,) = letters(pg)
    assert letter["subscription_id"] == one_row(pg, bad)["subscription_id"]
    names = ("error_class", "error_code", "terminal_status", "in_doubt", "attempt_count", "replay_state")
    assert tuple(letter[name] for name in names) == ("poison", "worker_lost", None, False, 3, "parked")
    assert pushed_to.accepted([bad]) == [0]
