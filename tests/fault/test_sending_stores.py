"""What sending leans on is away: the broker, the object store, a payload, a seal key, a VAPID key."""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from pushops.delivery import holds, payloads
from pushops.delivery.objects import MARK
from pushops.sandbox.push import PushService
from pushops.settings import Settings
from tests.made import random_key
from tests.outgoing import Outgoing, Pg, Recorded, ends, hurry, outgoing, pages, rows_of, subscriptions_of

PEOPLE = 30
Opened = Callable[..., AbstractContextManager[Outgoing]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "payloads"
    folder.mkdir()
    return folder


@pytest.fixture
def opened(settings: Settings, pushed_to: PushService, recorded: Recorded, store: Path) -> Opened:
    """A sender with its settings changed, as one that was started anew with them."""
    sinks = (lambda level, name, fields: recorded.append((level, name, dict(fields))),)
    return partial(outgoing, settings, pushed_to, sinks, payload_store=f"file://{store}")


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """No payload is remembered from before it was gone."""
    monkeypatch.setattr(payloads, "_cache", payloads._Cache(0))


def test_an_object_store_that_is_away_keeps_the_rows_and_costs_no_attempt(
    opened: Opened, pg: Pg, recorded: Recorded, store: Path
) -> None:
    with opened() as out:
        endpoints = out.register(pg, "fcm", PEOPLE)
        message = out.send("hello")
        away = store.with_name("away")
        store.rename(away)
        store.write_text("a file where the folder was: not missing, but unreadable")
        out.pump()
        assert rows_of(pg, message, "state", "attempts") == {("due", 0): PEOPLE}
        assert [name for _, name, _ in recorded].count("send.store_failed") == 1
        store.unlink()
        away.rename(store)
        out.pump_all()
        assert ends(pg, message) == {"accepted": PEOPLE}
        assert out.service.accepted(endpoints) == [1] * PEOPLE


def test_one_unreadable_payload_keeps_its_own_message_waiting_and_no_other(
    opened: Opened, pg: Pg, recorded: Recorded, store: Path
) -> None:
    with opened() as out:
        endpoints = out.register(pg, "fcm", PEOPLE)
        stuck = out.send("stuck")
        (sealed,) = [path for path in store.rglob("*") if path.is_file() and path.name != MARK]
        sealed.rename(sealed.with_name("aside"))
        sealed.symlink_to(sealed)  # there, and not to be opened
        others = out.send("others")
        out.pump_all()
        assert ends(pg, others) == {"accepted": PEOPLE}
        assert rows_of(pg, stuck, "state", "attempts") == {("due", 0): PEOPLE}
        assert "send.store_failed" in [name for _, name, _ in recorded]
        sealed.unlink()
        sealed.with_name("aside").rename(sealed)
        out.pump_all()
        assert ends(pg, stuck) == {"accepted": PEOPLE}
        assert out.service.accepted(endpoints) == [2] * PEOPLE


def test_a_payload_that_is_missing_ends_its_message_and_no_other(opened: Opened, pg: Pg, store: Path) -> None:
    with opened() as out:
        out.register(pg, "fcm", PEOPLE)
        lost = out.send("lost")
        shutil.rmtree(next(path for path in store.iterdir() if path.is_dir()))
        kept = out.send("kept")
        out.pump_all()
        assert ends(pg, lost) == {"poison": PEOPLE}
        assert rows_of(pg, lost, "code", "status") == {("payload_missing", None): PEOPLE}
        assert ends(pg, kept) == {"accepted": PEOPLE}


@pytest.mark.parametrize("of", ["auth secrets", "payloads"])
def test_a_missing_seal_key_is_one_hold_and_putting_it_back_sends_everything(
    opened: Opened, pg: Pg, recorded: Recorded, settings: Settings, of: str
) -> None:
    """Not one failure for each message; nobody is asked anything meanwhile, and no subscription is touched."""
    both = {"seal_keys": settings.seal_keys | {"2": SecretStr(random_key())}}
    with opened(**both, seal_key_version=1 if of == "auth secrets" else 2) as out:
        endpoints = out.register(pg, "fcm", PEOPLE)
    with opened(**both, seal_key_version=2 if of == "auth secrets" else 1) as out:
        message = out.send("hello")
    with opened(seal_keys={"2": both["seal_keys"]["2"]}, seal_key_version=2) as out:
        for _ in range(3):
            out.pump_all()
            hurry(pg)
        assert rows_of(pg, message, "state", "attempts") == {("due", 0): PEOPLE}
        assert [(hold.code, hold.members) for hold in holds.list_holds(out.rt)] == [("no_data_key", PEOPLE)]
        assert out.service.counts()["received"] == 0
    assert pages(recorded) == [("hold.opened", "fcm", "no_data_key")]
    assert subscriptions_of(pg, "votes", "send_block", "deleted_at IS NULL") == {(0, None, True): PEOPLE}
    with opened(**both, seal_key_version=2) as out:
        for _ in range(2):
            hurry(pg)
            out.pump_all()
        assert ends(pg, message) == {"accepted": PEOPLE}
        assert out.service.accepted(endpoints) == [1] * PEOPLE
        assert holds.list_holds(out.rt) == []


def test_rows_of_a_vapid_key_that_is_gone_are_held_and_the_key_s_return_sends_them(
    opened: Opened, pg: Pg, recorded: Recorded, settings: Settings
) -> None:
    """Others go on under their own key; nothing is revoked, no attempt is spent (B18)."""
    other = {"k2": SecretStr(random_key())}
    with opened() as out:
        old = out.register(pg, "fcm", PEOPLE)
    with opened(vapid_keys=other, vapid_key_id="k2") as out:
        new = out.register(pg, "fcm", PEOPLE)
        message = out.send("hello")
        for _ in range(3):
            out.pump_all()
            hurry(pg)
        assert out.service.accepted([*old, *new]) == [0] * PEOPLE + [1] * PEOPLE
        held = holds.list_holds(out.rt)
        assert [(hold.vapid_key_id, hold.code, hold.members) for hold in held] == [
            ("test", "unknown_vapid_key", PEOPLE)
        ]
        assert rows_of(pg, message, "coalesce(outcome, state)", "attempts") == {
            ("accepted", 1): PEOPLE,
            ("due", 0): PEOPLE,
        }
    assert pages(recorded) == [("hold.opened", "fcm", "unknown_vapid_key")]
    assert subscriptions_of(pg, "votes", "send_block", "deleted_at IS NULL") == {(0, None, True): 2 * PEOPLE}
    with opened(vapid_keys=settings.vapid_keys | other, vapid_key_id="k2") as out:
        assert holds.release_by_cause(out.rt) == 1
        hurry(pg)
        out.pump_all()
        assert ends(pg, message) == {"accepted": 2 * PEOPLE}
        assert out.service.accepted([*old, *new]) == [1] * 2 * PEOPLE
