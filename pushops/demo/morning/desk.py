"""The operator's desk: what is asked, by the command and the task that everybody has, and what is looked at."""

import os
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from celery import Celery

from pushops.deadletters import service, tending, triage
from pushops.deadletters.filters import parse
from pushops.deadletters.service import Preview
from pushops.demo.campaign.looking import PAGE
from pushops.demo.campaign.subscribers import PATIENCE
from pushops.demo.crew import Crew
from pushops.demo.morning import store
from pushops.demo.morning.store import Live
from pushops.errors import PushopsError
from pushops.runtime import Runtime
from pushops.sandbox import processes

COMMAND: Final = (sys.executable, "-c", "from pushops.cli.main import run; run()")
PATIENT: Final = 60.0
ALARM: Final = "dlq.alarm"
SPAN: Final = timedelta(seconds=5)  # over which a pace is looked at
COLUMNS: Final = "138"  # of a terminal, less what the telling puts before each line


def command(*words: str) -> list[str]:
    """What ``pushops`` with these words prints. Raises PushopsError where it fails."""
    done = subprocess.run(  # noqa: S603  (our own command)
        [*COMMAND, *words],
        env=os.environ | {"COLUMNS": COLUMNS},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    if done.returncode:
        raise PushopsError(f"expected pushops {' '.join(words)} to do it, got: {done.stderr.strip()}")
    return done.stdout.splitlines()


def preview(rt: Runtime, **words: str) -> Preview:
    return service.preview(rt, parse(words))


def drain(rt: Runtime, **words: str) -> UUID:
    """Send the task that a program sends, which knows nothing of pushops; the run that a worker opens for it."""
    url = rt.settings.broker_url
    assert url is not None  # noqa: S101  (the stage set it)
    found: list[UUID] = []

    def opened() -> bool:
        with rt.db.transaction() as tx:
            run_id = store.last_run(tx, parse(words).key())
        found.extend([] if run_id is None else [run_id])
        return bool(found)

    with Celery(broker=url.get_secret_value(), set_as_current=False) as producer:
        producer.send_task("pushops.drain_dlq", kwargs=dict(words), queue=rt.settings.queue)
    processes.wait_until(opened, PATIENT, "a worker to open a replay's run")
    return found[0]


def now(rt: Runtime) -> datetime:
    """The time by the database's clock."""
    with rt.db.transaction() as tx:
        return tx.now


def none_owed(rt: Runtime) -> bool:
    """Whether every letter is written, as beat has it done where a writer could not."""
    tending.tend(rt)
    with rt.db.transaction() as tx:
        return not store.owed(tx)


def alarms(hired: Crew) -> Counter[str]:
    """What wakes somebody because of letters, as the workers' own events say."""
    events = [event for worker in hired.workers for event in worker.events() if event.get("event") == ALARM]
    return Counter(str(event.get("signal")) for event in events if event.get("level") == PAGE)


def triaged(rt: Runtime) -> int:
    return triage.triage(rt).letters


def back_up(rt: Runtime, campaign: str) -> None:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.back_up(tx, campaign)


def restore(rt: Runtime, campaign: str) -> None:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        store.restore(tx, campaign)


def progress(rt: Runtime) -> store.Progress:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        return store.progress(tx)


def run(rt: Runtime, run_id: UUID) -> store.Run:
    with rt.db.transaction() as tx:
        return store.run(tx, run_id)


def busiest(rt: Runtime, run_id: UUID) -> float:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        return store.busiest(tx, run_id, SPAN)


def letters(rt: Runtime) -> list[store.Ended]:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        return store.letters(tx)


def live(rt: Runtime, campaign: str) -> list[Live]:
    with rt.db.transaction(statement_timeout=PATIENCE) as tx:
        return store.live(tx, campaign)
