"""What workers of fault tests import beside the product: deaths at chosen moments, doubled messages, a killing sweep.

A worker imports it by ``imports = ["tests.hostile"]``; FAULT names what it does.
"""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from celery import signals
from kombu.messaging import Producer

from pushops import tasks
from pushops.db import Tx
from pushops.db.transaction import render
from pushops.retention.policies import PURGE_TOMBSTONES, SWEEPS
from pushops.runtime import Runtime, runtime
from pushops.settings import Settings
from pushops.sweeps.dispatch import Order, dispatch
from pushops.sweeps.sweep import Acted, Acting, Batch, Page

# A dead child is noticed at once; Celery's own patience of ten seconds is for slow results that a worker left.
CONFIG: Final = 'imports = ["tests.hostile"]\nworker_lost_wait = 0.1\n'
KILLER: Final = "killer"  # the user whose row kills whoever acts on it


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# An acting purge: its work dies of one row, as a native library or the kernel's memory killer would have it.


def _claim(tx: Tx, batch: Batch) -> Sequence[Any]:
    query = "SELECT id, coalesce(user_id, '') FROM {schema}.push_subscription WHERE " + batch.clause
    return tx.conn.execute(render(query, tx.schema), batch.params).fetchall()


def _act(_rt: Runtime, page: Page) -> Acted:
    if any(user == KILLER for _, user in page.rows):
        die()
    return Acted(len(page.rows), result=[row_id for row_id, _ in page.rows])


def _settle(tx: Tx, _batch: Batch, acted: Acted) -> int:
    return tx.run("DELETE FROM {schema}.push_subscription WHERE id = ANY (%(ids)s::uuid[])", {"ids": acted.result})


PURGE_BY_ACTING: Final = replace(
    PURGE_TOMBSTONES,
    name="purge-by-acting",
    effect=None,
    blocks=False,
    acting=Acting(_claim, _act, _settle),
    lease=lambda settings: settings.sweep_lease,
)
SWEEPS[PURGE_BY_ACTING.name] = PURGE_BY_ACTING


def _die_once_after_work() -> None:
    """Die between the commit and the acknowledgement of the first batches, and not again."""
    flag = Path(os.environ["FAULT_FLAG"])

    def after(task_id: str, task: Any, **_: Any) -> None:  # noqa: ARG001  (Celery calls by name)
        if task.name == tasks.sweep_batches.name and flag.exists():
            flag.unlink()
            die()

    signals.task_postrun.connect(after, weak=False)


def _send_everything_twice() -> None:
    """Every message, follow-ups included, goes into the queue twice with the same task id."""
    publish: Callable[..., Any] = Producer._publish

    def twice(*args: Any, **kwargs: Any) -> Any:
        publish(*args, **kwargs)
        return publish(*args, **kwargs)

    Producer._publish = twice  # type: ignore[method-assign]  # a fault on purpose


def dispatch_together(settings: Settings, barrier: Any, outcomes: Any) -> None:
    """A dispatcher in a process of its own that starts with the others; says its outcome and its run."""
    with runtime(settings) as rt:
        barrier.wait(20)
        found = dispatch(rt, PURGE_TOMBSTONES, None, Order(started_by="together"))
    outcomes.put((found.outcome, found.run.run_id if found.run else None))


FAULTS: Final[dict[str, Callable[[], None]]] = {
    "die-after-work": _die_once_after_work,
    "twice": _send_everything_twice,
}
if os.environ.get("FAULT"):
    FAULTS[os.environ["FAULT"]]()
