"""An import that is killed in the middle of storing is completed by the next, while browsers go on registering."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from pushops.importing import staging
from pushops.runtime import Runtime
from pushops.settings import Settings
from pushops.subscriptions import service as subscriptions
from tests.browser import subscribe
from tests.importing import everything, staged
from tests.rows import Pg
from tests.sweeping import DEADLINE, as_environment, count, wait_until

ROWS: Final = 12_000  # beyond what one process checks alone
PROGRAM: Final = "from pushops.cli.main import run; run()"
# Pages of a few rows, so that there is a middle to be killed in.
SMALL: Final = "from pushops.importing import merging; merging.PAGE = 50; " + PROGRAM


def importing(file: Path, settings: Settings, program: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", program, "subscription", "import", str(file), "--json"]
    environment = os.environ | as_environment(settings)
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )


def stored(pg: Pg) -> int:
    return count(pg, "SELECT count(*) FROM push_subscription")


def staged_rows(pg: Pg) -> int:
    return count(pg, "SELECT count(*) FROM import_staging")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def ended(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.long
def test_killed_while_it_checks_it_leaves_no_process_behind(settings: Settings, pg: Pg, tmp_path: Path) -> None:
    keys = subscribe()["keys"]
    file = write(tmp_path / "rows.jsonl", [subscribe() | {"keys": keys} for _ in range(ROWS * 10)])
    child = importing(file, settings, PROGRAM)
    wait_until(lambda: staged_rows(pg) > ROWS, 60, expected="the crew checks rows")
    os.kill(child.pid, signal.SIGKILL)
    child.communicate(timeout=DEADLINE)  # whose standard output the crew has too
    wait_until(lambda: ended(child.pid), expected="the crew ends with who started it")
    assert stored(pg) == 0


@pytest.mark.long
def test_a_crew_that_is_killed_ends_the_import_with_a_word(settings: Settings, pg: Pg, tmp_path: Path) -> None:
    keys = subscribe()["keys"]
    file = write(tmp_path / "rows.jsonl", [subscribe() | {"keys": keys} for _ in range(ROWS * 10)])
    child = importing(file, settings, PROGRAM)
    wait_until(lambda: staged_rows(pg) > ROWS, 60, expected="the crew checks rows")
    for pid in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text(encoding="ascii").split():
        os.kill(int(pid), signal.SIGKILL)
    child.communicate(timeout=DEADLINE)
    assert (child.returncode, stored(pg), staged(pg)) == (1, 0, 0)


@pytest.mark.long
def test_killed_while_it_stores_it_is_completed_by_the_next(
    pg: Pg, settings: Settings, runtime: Runtime, tmp_path: Path
) -> None:
    keys = [subscribe()["keys"] for _ in range(100)]
    rows = [subscribe(user=f"u{n}") | {"keys": keys[n % 100]} for n in range(ROWS)]
    file = write(tmp_path / "rows.jsonl", rows)
    for turn in range(1, 3):
        child = importing(file, settings, SMALL)
        before = stored(pg)
        wait_until(lambda before=before: stored(pg) > before + 500, expected="rows are stored")  # type: ignore[misc]
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        assert stored(pg) < ROWS, f"kill {turn} came in the middle"
        assert staged(pg) > 0, "a killed import can tidy nothing"
        pg.execute("UPDATE subscription_import SET alive_until = now() - interval '1 second'")
    done = importing(file, settings, PROGRAM)
    found = json.loads(done.communicate()[0])
    assert (done.returncode, found["inserted"] + found["unchanged"], found["updated"]) == (0, ROWS, 0)
    after = everything(pg)
    assert (len(after["push_subscription"]), len(after["subscription_period"])) == (ROWS, ROWS)
    assert {row["registration_no"] for row in after["push_subscription"]} == {1}
    assert staged(pg) == 0
    assert staging.tidy(runtime) == 0


@pytest.mark.long
def test_browsers_that_register_meanwhile_neither_wait_nor_lose(
    pg: Pg, settings: Settings, runtime: Runtime, tmp_path: Path
) -> None:
    """The same endpoints from both sides: one row each, one open period each, and no error on either side."""
    rows = [subscribe(user=f"u{n}") for n in range(600)]
    file = write(tmp_path / "rows.jsonl", rows)
    child = importing(file, settings, SMALL)
    failures: list[Exception] = []

    def register(part: list[dict[str, Any]]) -> None:
        try:
            for each in part:
                subscriptions.save_subscription(runtime, each, user_id=each["user"])
        except Exception as error:  # noqa: BLE001  (told to the test)
            failures.append(error)

    threads = [threading.Thread(target=register, args=(rows[n::2],)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = json.loads(child.communicate()[0])
    assert (failures, child.returncode, found["refused"]) == ([], 0, 0)
    assert found["inserted"] + found["updated"] + found["unchanged"] == len(rows)
    assert stored(pg) == len(rows)
    assert count(pg, "SELECT count(*) FROM subscription_period WHERE ended_at IS NULL") == len(rows)
    assert count(pg, "SELECT count(*) FROM subscription_period") == len(rows)
