"""The spool: what is in it comes out of it once, whatever was in it, and whoever was killed over it."""

import errno
import fcntl
import json
import os
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushops.deadletters import spool
from pushops.deadletters.letter import ErrorClass, Letter
from pushops.deadletters.spelling import read, spell
from pushops.deadletters.spool import SpoolError
from pushops.settings import Settings, load_settings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ANYTHING = st.text(st.characters(codec=None), max_size=700)


def letter(**values: Any) -> Letter:
    common: dict[str, Any] = {
        "message_id": uuid4(),
        "subscription_id": uuid4(),
        "endpoint_hash": bytes(range(32)),
        "endpoint_host": "fcm.googleapis.com",
        "push_service": "fcm",
        "owner": "alice",
        "owner_no": 3,
        "campaign_id": None,
        "payload_ref": "2026/03/01/x",
        "attempt_count": 2,
        "first_attempt_at": NOW,
        "last_attempt_at": NOW + timedelta(microseconds=1),
        "terminal_status": 400,
        "error_class": ErrorClass.POISON,
        "error_code": "http_400",
        "error_snippet": "no",
        "original_ttl": 60,
        "expires_at": NOW + timedelta(hours=1),
        "replayable": True,
        "on_in_doubt": "discard",
        "in_doubt": False,
        "history": [{"n": 2, "at": NOW.isoformat(), "status": 400, "code": "http_400", "outcome": "refused"}],
    }
    return Letter(**common | values)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(spool=tmp_path / "spool")


def take_all(settings: Settings) -> list[Letter]:
    found: list[Letter] = []
    for path in spool.files(settings):
        with spool.taken(path) as held:
            found += held.letters if held else []
    return found


def test_what_is_put_away_comes_back_as_it_was_and_once(settings: Settings) -> None:
    letters = [letter(), letter(terminal_status=None, first_attempt_at=None, last_attempt_at=None, owner=None)]
    spool.append(settings, letters[:1])
    spool.append(settings, letters[1:])
    assert len(spool.files(settings)) == 1, "one file of this process"
    assert take_all(settings) == letters
    assert take_all(settings) == []
    assert spool.files(settings) == []


@given(ANYTHING, ANYTHING, ANYTHING)
def test_whatever_a_text_is_it_can_be_spelled_read_and_stored(owner: str, snippet: str, code: str) -> None:
    """NUL, halves of characters, and more bytes than fit, cut within a character (E17)."""
    one = letter(owner=owner, error_snippet=snippet, error_code=code, history=[{"n": 1, "snippet": snippet}])
    again = read(json.loads(json.dumps(spell(one))))
    for text in (again.owner or "", again.error_snippet, again.error_code, again.history[0]["snippet"]):
        assert "\x00" not in text
        text.encode()
    assert len(again.error_snippet.encode()) <= 512
    assert spell(again) == spell(one), "it is as it will be from the first spelling on"
    if not any(c == "\x00" or "\ud800" <= c <= "\udfff" for c in owner):
        assert again.owner == owner


def test_a_snippet_is_cut_between_characters(settings: Settings) -> None:
    spool.append(settings, [letter(error_snippet="a" + "ü" * 300)])
    assert take_all(settings)[0].error_snippet == "a" + "ü" * 255


def test_nobody_else_can_read_it(settings: Settings) -> None:
    before = os.umask(0)
    try:
        spool.append(settings, [letter()])
    finally:
        os.umask(before)
    (path,) = spool.files(settings)
    assert [each.stat().st_mode & 0o777 for each in (path, path.parent)] == [0o600, 0o700]


def test_a_torn_line_is_kept_aside_and_costs_no_other_letter(settings: Settings) -> None:
    """Somebody was killed in the middle of a line; another process of the same number goes on behind it."""
    first, torn, last = letter(), letter(), letter()
    spool.append(settings, [first])
    (path,) = spool.files(settings)
    half = spool.line(torn)[:100]
    with path.open("ab") as file:
        file.write(half)
    spool.append(settings, [last])
    with spool.taken(path) as held:
        assert held is not None
        assert (held.letters, held.broken) == ([first, last], [half])
    aside = path.with_suffix(spool.BROKEN)
    assert aside.read_bytes() == half + b"\n"
    assert aside.stat().st_mode & 0o777 == 0o600
    assert spool.files(settings) == []


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[]",
        b"7",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"message_id": "x"}',
        json.dumps(spell(letter()) | {"expires_at": "2026-03-01T12:00:00"}).encode(),
        json.dumps(spell(letter()) | {"error_class": "other"}).encode(),
        json.dumps(spell(letter()) | {"endpoint_hash": 7}).encode(),
        json.dumps(spell(letter()) | {"message_id": None}).encode(),
    ],
)
def test_a_line_that_is_no_letter_is_kept_aside(settings: Settings, line: bytes) -> None:
    spool.append(settings, [letter()])
    (path,) = spool.files(settings)
    with path.open("ab") as file:
        file.write(line + b"\n")
    with spool.taken(path) as held:
        assert held is not None
        assert (len(held.letters), held.broken) == (1, [line])


def test_what_was_not_written_after_all_stays(settings: Settings) -> None:
    spool.append(settings, [letter()])
    (path,) = spool.files(settings)
    with pytest.raises(LookupError), spool.taken(path):
        raise LookupError
    assert len(take_all(settings)) == 1


def test_who_finds_a_file_in_hand_takes_another_and_waits_for_nobody(settings: Settings) -> None:
    one, other = letter(), letter()
    spool.append(settings, [one])
    (path,) = spool.files(settings)
    with spool.taken(path) as held:
        assert held is not None
        with spool.taken(path) as again:
            assert again is None
        spool.append(settings, [other])
        assert len(spool.files(settings)) == 2
    assert take_all(settings) == [other]


def test_a_file_that_is_full_is_followed_by_another(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "FILE_BYTES", 1000)
    letters = [letter() for _ in range(6)]
    for each in letters:
        spool.append(settings, [each])
    assert len(spool.files(settings)) > 1
    assert {one.message_id for one in take_all(settings)} == {one.message_id for one in letters}


@pytest.mark.parametrize("kind", ["link", "readable", "foreign", "folder", "pipe"])
def test_what_is_not_ours_alone_is_refused_and_not_in_the_way(settings: Settings, tmp_path: Path, kind: str) -> None:
    spool.append(settings, [letter()])
    assert len(take_all(settings)) == 1
    path = spool.folder(settings) / f"{os.getpid()}-0{spool.SUFFIX}"
    target = tmp_path / "target"
    target.write_bytes(spool.line(letter()) + b"\n")
    target.chmod(0o600)
    match kind:
        case "link":
            path.symlink_to(target)
        case "readable":
            path.write_bytes(b"")
            path.chmod(0o640)
        case "foreign":
            if os.geteuid() != 0:
                pytest.skip("expected to be root, who can give files away")
            path.write_bytes(b"")
            path.chmod(0o600)
            os.chown(path, 65534, 65534)
        case "folder":
            path.mkdir()
        case _:
            os.mkfifo(path, 0o600)
    with pytest.raises(SpoolError), spool.taken(path):
        pass
    mine = letter()
    spool.append(settings, [mine])
    with spool.taken(path.with_name(f"{os.getpid()}-1{spool.SUFFIX}")) as held:
        assert held is not None
        assert held.letters == [mine]
    assert target.read_bytes().count(b"\n") == 1


def test_a_folder_that_others_may_write_to_is_refused(settings: Settings) -> None:
    spool.append(settings, [letter()])
    spool.folder(settings).chmod(0o770)
    with pytest.raises(SpoolError):
        spool.append(settings, [letter()])


def test_a_disk_that_is_full_leaves_no_half_of_a_line(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = letter()
    spool.append(settings, [kept])
    write = os.write
    left = [200]

    def full(number: int, data: Any) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "no space")
        done = write(number, bytes(data)[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no space"):
        spool.append(settings, [letter()])
    monkeypatch.undo()
    (path,) = spool.files(settings)
    assert path.read_bytes() == spool.line(kept) + b"\n"
    assert take_all(settings) == [kept]


def test_a_file_that_went_while_it_was_opened_is_not_written_to(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader removed it between the opening and the lock: what is written there now would go with it."""
    spool.append(settings, [letter()])
    (path,) = spool.files(settings)
    lock = fcntl.flock

    def late(number: int, how: int) -> None:
        path.unlink(missing_ok=True)
        monkeypatch.undo()
        lock(number, how)

    monkeypatch.setattr(fcntl, "flock", late)
    mine = letter()
    spool.append(settings, [mine])
    assert take_all(settings) == [mine]


def test_processes_that_write_while_others_read_lose_nothing_and_double_nothing(settings: Settings) -> None:
    """Four processes of the same folder, each in its own files, and two readers among them."""
    ids = [[uuid4() for _ in range(60)] for _ in range(4)]
    children = [fork(settings, own) for own in ids]
    found: list[UUID] = []

    def read_on(over: threading.Event) -> None:
        while not over.wait(0.001):
            found.extend(one.message_id for one in take_all(settings))

    over = threading.Event()
    readers = [threading.Thread(target=read_on, args=[over]) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    over.set()
    for reader in readers:
        reader.join()
    found += [one.message_id for one in take_all(settings)]
    assert sorted(found) == sorted(one for own in ids for one in own)


def fork(settings: Settings, ids: list[UUID]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        for one in ids:
            spool.append(settings, [replace(letter(), message_id=one)])
        os._exit(0)
    finally:
        os._exit(1)
