"""What a process remembers of payloads is bounded by bytes; where they lie is nobody else's."""

from pathlib import Path

import pytest

from pushops.delivery import objects, payloads
from pushops.errors import SettingsError
from tests.made import make_settings

URL = "postgresql://nobody@localhost/none"


def where(name: str) -> tuple[int, str | None, str]:
    return 1, None, name


def test_the_payloads_used_last_stay() -> None:
    cache = payloads._Cache(30)
    for name in ("a", "b", "c"):
        cache.put(where(name), name.encode() * 10)
    assert cache.get(where("a")) == b"a" * 10  # used, so that b is the oldest now
    cache.put(where("d"), b"d" * 10)
    assert [cache.get(where(name)) is None for name in "abcd"] == [False, True, False, False]


def test_the_same_payload_twice_counts_once_and_one_too_large_is_not_kept() -> None:
    cache = payloads._Cache(30)
    for _ in range(5):
        cache.put(where("a"), b"a" * 20)
    cache.put(where("b"), b"b" * 10)
    assert cache.get(where("a")) is not None
    cache.put(where("huge"), b"x" * 31)
    assert cache.get(where("huge")) is None


def test_without_a_url_they_lie_in_the_users_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert objects.folder(None) == tmp_path / "pushops" / "payloads"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert objects.folder(None) == tmp_path / ".local" / "state" / "pushops" / "payloads"


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    assert objects.folder(folder.as_uri()) == folder


@pytest.mark.parametrize(
    "url", ["s3://bucket/path", "gs://b", "az://account/container/x", "file:///var/p", "memory://"]
)
def test_stores_that_are_known_are_taken(url: str) -> None:
    assert make_settings(URL, payload_store=url).payload_store == url


@pytest.mark.parametrize("url", ["/var/p", "file://host/p", "http://x/y", "s3://key:secret@bucket", "s3://b?k=secret"])
def test_others_and_those_with_credentials_are_refused_unseen(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_settings(URL, payload_store=url)
    assert "PUSHOPS_PAYLOAD_STORE" in str(caught.value)
    assert "secret" not in str(caught.value)
