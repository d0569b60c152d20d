"""Objects that no message names are found by walking the store; only they are deleted, and only if they are ours."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from pushops import tasks
from pushops.delivery import objects, payloads
from pushops.delivery.errors import PayloadStoreError
from pushops.errors import RefusedError
from pushops.events import Level
from pushops.retention import orphans
from pushops.retention.policies import PURGE_PAYLOADS
from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from pushops.sweeps import service
from tests.commands import call
from tests.conftest import Recorded
from tests.made import random_key
from tests.sending import Pg, make_live, send_to

DAY = timedelta(days=1)
_numbers = itertools.count(1)


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return settings.model_copy(update={"payload_store": (tmp_path / "payloads").as_uri()})


def lying(rt: Runtime) -> set[str]:
    return {ref for page in objects.pages(rt.settings) for ref in page}


def lay(rt: Runtime, pg: Pg, ago: timedelta) -> str:
    """An object as old as its id, of a message that nobody made."""
    row = pg.execute("SELECT id_floor(now() - %(ago)s) , now() - %(ago)s", {"ago": ago}).fetchone()
    assert row is not None
    floor, made_at = row
    ref, _ = payloads.store(rt, UUID(int=floor.int + next(_numbers)), made_at, b"nobody's")
    return ref


def name(pg: Pg, ref: str) -> None:
    values = {"id": ref.rsplit("/", maxsplit=1)[-1], "ref": ref}
    pg.execute("INSERT INTO push_message (message_id, ttl, payload_ref) VALUES (%(id)s, 60, %(ref)s)", values)


def test_only_old_objects_that_no_message_names_are_deleted(runtime: Runtime, pg: Pg, recorded: list[Recorded]) -> None:
    old = {lay(runtime, pg, ago) for ago in (timedelta(hours=25), 40 * DAY, 400 * DAY)}
    named, young = lay(runtime, pg, 40 * DAY), lay(runtime, pg, timedelta(hours=23))
    name(pg, named)
    objects.put(runtime.settings, "2020/01/01/somebody-elses", b"")
    others = {named, young, "2020/01/01/somebody-elses"}
    shown = orphans.find(runtime)
    assert (shown.seen, shown.orphans, shown.deleted, set(shown.sample)) == (6, 3, 0, old)
    assert lying(runtime) == old | others
    done = orphans.find(runtime, delete=True)
    assert (done.orphans, done.deleted) == (3, 3)
    assert lying(runtime) == others
    assert orphans.find(runtime, delete=True).deleted == 0
    told = [fields for _, event, fields in recorded if event == "payload.orphans"]
    assert [(fields["orphans"], fields["deleted"]) for fields in told] == [(3, 0), (3, 3), (0, 0)]


def test_what_was_put_for_a_message_that_was_taken_back_is_an_orphan(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_live(pg, 1, user="ann")
    kept = send_to(runtime, b"hello", user="ann").message_id
    with pg.transaction(force_rollback=True):
        lost = send_to(runtime, b"hello", user="ann", conn=pg).message_id
    assert orphans.find(runtime).orphans == 0  # it might be about to be made
    monkeypatch.setattr(orphans, "AGE", -DAY)
    assert [ref[-36:] for ref in orphans.find(runtime, delete=True).sample] == [str(lost)]
    assert [ref[-36:] for ref in lying(runtime)] == [str(kept)]


def test_what_does_not_open_with_our_keys_is_left_alone(runtime: Runtime, settings: Settings, pg: Pg) -> None:
    ours = lay(runtime, pg, 2 * DAY)
    rotated = settings.model_copy(update={"seal_keys": settings.seal_keys | {"2": random_key()}, "seal_key_version": 2})
    stranger = settings.model_copy(update={"seal_keys": {"1": random_key()}})
    opened = [open_runtime(each) for each in (rotated, stranger)]
    also_ours, foreign = (lay(rt, pg, 2 * DAY) for rt in opened)
    found = orphans.find(opened[0], delete=True)
    assert (found.orphans, found.foreign, found.deleted) == (2, 1, 2)
    assert {ours, also_ours}.isdisjoint(lying(runtime))
    assert lying(runtime) == {foreign}
    for rt in opened:
        rt.close()


@pytest.mark.parametrize("where", ["folder", "memory"])
def test_a_walk_goes_on_where_the_last_one_ended(
    where: str, runtime: Runtime, settings: Settings, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "PAGE", 3)
    rt = runtime if where == "folder" else open_runtime(settings.model_copy(update={"payload_store": "memory://"}))
    laid = sorted(lay(rt, pg, (2 + n // 4) * DAY) for n in range(11))
    assert list(objects.pages(rt.settings)) == [laid[0:3], laid[3:6], laid[6:9], laid[9:]]
    assert list(objects.pages(rt.settings, laid[4])) == [laid[5:8], laid[8:]]
    assert list(objects.pages(rt.settings, laid[-1])) == []
    found, seen = orphans.find(rt, budget=timedelta()), [3]
    while found.after is not None:
        found = orphans.find(rt, after=found.after, budget=timedelta())
        seen.append(found.seen)
    assert seen == [3, 3, 3, 2, 0]


def test_a_store_whose_messages_are_elsewhere_is_not_emptied(
    runtime: Runtime, pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new database beside an old store, or another's store: whole pages would go."""
    monkeypatch.setattr(objects, "PAGE", 3)
    laid = {lay(runtime, pg, 2 * DAY) for _ in range(7)}
    found = orphans.find(runtime, delete=True)
    assert (found.orphans, found.deleted, found.held) == (7, 0, 7)
    assert found.why is not None
    assert lying(runtime) == laid
    assert orphans.find(runtime, delete=True, force=True).deleted == 7
    assert lying(runtime) == set()


def test_beat_deletes_them_unless_payloads_are_paused_or_away(
    runtime: Runtime, pg: Pg, recorded: list[Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PayloadStoreError("expected the payload store to delete an object, got GenericError")

    monkeypatch.setattr(tasks, "current_runtime", lambda: runtime)
    laid = lay(runtime, pg, 2 * DAY)
    service.pause_sweep(runtime, PURGE_PAYLOADS, actor="me", why="moving")
    tasks.purge_orphans()
    service.resume_sweep(runtime, PURGE_PAYLOADS, actor="me")
    with monkeypatch.context() as patched:
        patched.setattr(objects, "remove", refuse)
        tasks.purge_orphans()
    assert lying(runtime) == {laid}
    tasks.purge_orphans()
    assert lying(runtime) == set()
    told = [(level, fields.get("deleted")) for level, event, fields in recorded if event == "payload.orphans"]
    assert told == [(Level.WARNING, None), (Level.WARNING, None), (Level.INFO, 1)]


@pytest.mark.parametrize("after", ["2026", "../../etc/passwd", "2026/01/01/x", 7])
def test_no_message_names_another_place_to_go_on_from(after: str, runtime: Runtime) -> None:
    with pytest.raises(RefusedError):
        orphans.purge(runtime, after)


def test_the_command_shows_them_and_deletes_them_only_when_told(runtime: Runtime, pg: Pg) -> None:
    assert call("payload", "orphans", settings=runtime.settings).out.split() == (
        ["no", "message", "misses", "any", "0", "of", "0", "objects", "are", "orphans"]
    )
    laid = lay(runtime, pg, datetime.now(UTC) - datetime(2026, 1, 1, tzinfo=UTC))
    shown = call("payload", "orphans", settings=runtime.settings)
    assert shown.code == 0
    assert laid in shown.out
    assert "1 of 1 objects are orphans; --delete deletes them" in shown.out
    done = call("payload", "orphans", "--delete", "--json", settings=runtime.settings)
    assert (done.json["orphans"], done.json["deleted"], done.json["sample"]) == (1, 1, [laid])
    assert lying(runtime) == set()
