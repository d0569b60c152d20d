"""The Celery app and its tasks: glue of a few lines, with ids as arguments, sent after the commit."""

import importlib.util
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import redis
from celery import Celery, signals
from kombu.exceptions import OperationalError

from pushops.deadletters import alarms, tending
from pushops.deadletters import service as replays
from pushops.delivery import fanning, finishing, guard, holds, providers, pump
from pushops.delivery.fanning import FanOut
from pushops.delivery.rendering import check_renderer
from pushops.delivery.tools import tools_of
from pushops.erasure import deadlines
from pushops.erasure import service as erasures
from pushops.errors import BrokerError, RefusedError, SettingsError
from pushops.events import Events
from pushops.events.log import log_sink
from pushops.importing import staging
from pushops.retention import orphans
from pushops.retention.catalog import catalog
from pushops.retention.partitions import service as partitions
from pushops.rolling import seal
from pushops.runtime import Runtime, open_runtime, settings_or_sandbox
from pushops.sweeps import service
from pushops.sweeps.dispatch import Bell, Order
from pushops.sweeps.work import work

PRIORITY_STEPS: Final = (0, 3, 6, 9)
PRIORITY_SEPARATOR: Final = "\x06\x16"
# Asking how long the queue is must not take longer than publishing: kombu would go on trying for seconds.
IMPATIENT: Final = {"max_retries": 1, "interval_start": 0.1}

app = Celery("pushops")
CONFIG: Final = "celeryconfig" if importlib.util.find_spec("celeryconfig") else "pushops.celeryconfig"
app.config_from_object(CONFIG)

_opened: dict[int, Runtime] = {}
_opening = threading.Lock()


def current_runtime() -> Runtime:
    """Return the runtime of this process, never one that came through a fork.

    The one look-up there is, because Celery calls us.
    """
    pid = os.getpid()
    with _opening:  # a pool of threads: one of them opens, the others wait for it
        if pid not in _opened:
            _opened.clear()
            _opened[pid] = open_runtime(settings_or_sandbox())
        return _opened[pid]


@signals.celeryd_init.connect
def _check_worker(instance: Any = None, **_: object) -> None:  # noqa: ANN401  (Celery's worker)
    if getattr(instance, "app", None) is app:
        _refuse_without_urls("worker")
        _refuse_without_renderer()


@signals.beat_init.connect
def _check_beat(sender: Any = None, **_: object) -> None:  # noqa: ANN401  (Celery's beat)
    if getattr(sender, "app", None) is app:
        _refuse_without_urls("beat")


def _refuse_without_urls(what: str) -> None:
    """End a worker or a beat that would work for nobody, or for a database and a broker that are not each other's.

    A broker that the application's own Celery configuration names counts as set.
    """
    found = {
        "PUSHOPS_DATABASE_URL": settings_or_sandbox().database_url,
        "PUSHOPS_BROKER_URL": app.conf.broker_url,
    }
    missing = [name for name, value in found.items() if not value]
    if missing:
        one = "a sandbox never stands in for one of the two"
        hint = one if len(missing) == 1 else "or a sandbox that is up: pushops sandbox up"
        raise SystemExit(f"pushops: expected {' and '.join(missing)} to be set for a {what} ({hint})")


def _refuse_without_renderer() -> None:
    """End a worker whose renderer cannot be called: every row of every message would be at fault."""
    try:
        check_renderer(settings_or_sandbox())
    except SettingsError as error:
        raise SystemExit(f"pushops: {error}") from None


@signals.worker_process_shutdown.connect
def _close(**_: object) -> None:
    opened = _opened.pop(os.getpid(), None)
    if opened is not None:
        opened.close()


@signals.task_unknown.connect
def _count_unknown(name: str = "", **_: object) -> None:
    """Another release's message: Celery drops it, the tending finds its rows. The pool's parent opens no database."""
    settings = settings_or_sandbox()
    events = Events((log_sink(settings.log_format, settings.log_level),))
    events.emit("sweep.unknown_id", task=name[:100], reason="unknown task")


@app.task(name="pushops.dispatch_sweep")
def dispatch_sweep(name: str) -> None:
    """Look at a sweep: open its run or join it, and ring for its next batches."""
    rt = current_runtime()
    try:
        sweep = catalog(rt).get(str(name))
        if sweep is None:
            rt.events.emit("sweep.unknown_id", task="dispatch_sweep", reason="unknown sweep")
            return
        service.dispatch(rt, sweep, bell(rt), Order(started_by="beat"))
    except RefusedError as error:  # of a table of your own: nobody's retry mends it
        rt.events.emit("sweep.refused", sweep=str(name), reason=str(error))


@app.task(name="pushops.sweep_batches")
def sweep_batches(run_id: str, batch_ids: Sequence[str] = ()) -> None:
    """Work on a run for about a second: the named batches first, then whatever is ready."""
    rt = current_runtime()
    ids = _parse_ids(rt, "sweep_batches", run_id, batch_ids)
    if ids is None:
        return
    done = work(rt, catalog(rt), ids[0], ids[1:])
    if done.ring_after is not None:
        _publish(rt, sweep_batches, [str(done.next_run or run_id)], done.ring_after)
    if done.more_pages:
        _publish(rt, more_pages, [run_id], timedelta())


@app.task(name="pushops.more_pages")
def more_pages(run_id: str) -> None:
    """Few batches of a run are left: write its next pages now, not at the next tick."""
    rt = current_runtime()
    ids = _parse_ids(rt, "more_pages", run_id)
    if ids is not None:
        service.continue_run(rt, catalog(rt), bell(rt), ids[0])


@app.task(name="pushops.tend_sweeps")
def tend_sweeps() -> None:
    """Find what was lost: messages, workers, valves that opened again."""
    rt = current_runtime()
    service.tend(rt, catalog(rt), bell(rt), granting=False)


@app.task(name="pushops.resume_sweeps")
def resume_sweeps() -> None:
    """Give every open run another slot of its time budget."""
    rt = current_runtime()
    service.tend(rt, catalog(rt), bell(rt), granting=True)


@app.task(name="pushops.reseal_auth")
def reseal_auth() -> None:
    """Seal anew what came under an old key since an operator's last roll."""
    seal.go_on(current_runtime(), bell(current_runtime()))


@app.task(name="pushops.apply_erasures")
def apply_erasures() -> None:
    """Carry on what is asked to be forgotten, and tell of what is late."""
    rt = current_runtime()
    erasures.go_on(rt, bell(rt))
    deadlines.tell(rt)


@app.task(name="pushops.fan_out")
def fan_out(message_id: str) -> None:
    """Write a message's recipients into the ledger for about two seconds, and ring for the rest of them."""
    rt = current_runtime()
    ids = _parse_ids(rt, "fan_out", message_id, event="message.unknown_id")
    if ids is None:
        return
    done = fanning.fan_out(rt, ids[0])
    if done.rows:
        _publish(rt, send_due, [], timedelta())
    if done.outcome is FanOut.MORE:
        _publish(rt, fan_out, [message_id], timedelta())


@app.task(name="pushops.send_due")
def send_due() -> None:
    """Send what is due for about five seconds; ring for a second sender where there is work for two."""
    rt = current_runtime()

    def ring() -> None:
        _publish(rt, send_due, [], timedelta())

    if pump.pump(rt, tools_of(rt), on_full=ring).more:
        ring()


@app.task(name="pushops.reap_claims")
def reap_claims() -> None:
    """Take back what workers had claimed that are gone: messages, and letters that were being sent again."""
    rt = current_runtime()
    pump.reap(rt)
    replays.reap(rt)


@app.task(name="pushops.drain_dlq")
def drain_dlq(run_id: str | None = None, **words: Any) -> None:  # noqa: ANN401  (a filter's words and a replay's options)
    """Send dead letters again: all that the words mean, or go on with an open run."""
    rt = current_runtime()
    try:
        if run_id is not None:
            ids = _parse_ids(rt, "drain_dlq", run_id)
            if ids is not None:
                service.continue_run(rt, catalog(rt), bell(rt), ids[0])
            return
        meant, options = replays.parse_words(words)
        replays.drain(rt, meant, options, bell(rt), started_by="task")
    except RefusedError as error:
        rt.events.emit("sweep.unknown_id", task="drain_dlq", reason=str(error))


@app.task(name="pushops.tend_dead_letters")
def tend_dead_letters() -> None:
    """Write the letters that are owed, or wait in this host's spool; and tell where they come as they should not."""
    tending.tend(current_runtime())
    alarms.tell(current_runtime())


@app.task(name="pushops.tend_health")
def tend_health() -> None:
    """Go on with what a guard's opening or an operator's word began; release holds whose cause is gone."""
    rt = current_runtime()
    guard.tend(rt)
    holds.release_by_cause(rt)
    providers.wake(rt, guard.TEND)


@app.task(name="pushops.tend_messages")
def tend_messages() -> None:
    """Find messages that begin now, whose doorbell was lost, or whose recipients all have an end."""
    rt = current_runtime()
    for message_id in fanning.due(rt, fanning.RUNG_AT_ONCE):
        _publish(rt, fan_out, [str(message_id)], timedelta())
    finishing.finish(rt)


@app.task(name="pushops.tidy_imports")
def tidy_imports() -> None:
    """Remove what imports left whose process died: it names people."""
    staging.tidy(current_runtime())


@app.task(name="pushops.make_partitions")
def make_partitions() -> None:
    """Make the next partitions of the ledger and of the tables of the settings."""
    partitions.create(current_runtime())


@app.task(name="pushops.purge_ledger")
def purge_ledger() -> None:
    """Drop what is over of the ledger and of the tables of the settings."""
    partitions.retire(current_runtime())


@app.task(name="pushops.purge_orphans")
def purge_orphans(after: str = "") -> None:
    """Delete objects that no message names, for a minute; then the next message goes on from there."""
    rt = current_runtime()
    try:
        found = orphans.purge(rt, after)
    except RefusedError as error:
        rt.events.emit("message.unknown_id", task="purge_orphans", reason=str(error))
        return
    if found.after is not None:
        _publish(rt, purge_orphans, [found.after], timedelta())


def bell(rt: Runtime) -> Bell:
    """How this app rings for workers and how long its queue is."""
    return Bell(ring=_ring, depth=lambda: queue_depth(rt.settings.queue))


def _ring(run_id: UUID, batch_ids: Sequence[UUID]) -> None:
    try:
        sweep_batches.apply_async([str(run_id), [str(batch) for batch in batch_ids]] if batch_ids else [str(run_id)])
    except (OperationalError, redis.RedisError, OSError) as error:
        raise BrokerError(f"the broker did not take a message: {type(error).__name__}") from None


def _publish(rt: Runtime, task: Any, args: list[str], after: timedelta) -> None:  # noqa: ANN401  (a Celery task)
    """Send a follow-up; one that is lost is made good by the tending."""
    try:
        task.apply_async(args, countdown=after.total_seconds() or None)
    except (OperationalError, redis.RedisError, OSError) as error:
        rt.events.emit("broker.failed", task=task.name, error=type(error).__name__)


def queue_depth(queue: str) -> int | None:
    """Messages that wait or are not acknowledged yet; None where the broker does not say.

    On Redis a queue is one list per priority step, and messages in hand stand in a hash: a plain LLEN sees neither.
    """
    try:
        with app.connection_for_read(transport_options=IMPATIENT) as connection:
            channel = connection.default_channel
            client = getattr(channel, "client", None)
            if client is None:
                return int(channel.queue_declare(queue, passive=True).message_count)
            return _redis_depth(channel, client, queue)
    except (OperationalError, redis.RedisError, OSError):
        return None


def _redis_depth(channel: Any, client: Any, queue: str) -> int:  # noqa: ANN401  (kombu's channel)
    steps = getattr(channel, "priority_steps", PRIORITY_STEPS)
    separator = getattr(channel, "sep", PRIORITY_SEPARATOR)
    names = [f"{queue}{separator}{step}" if step else queue for step in steps]
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.llen(name)
        pipe.hlen(getattr(channel, "unacked_key", "unacked"))
        return int(sum(pipe.execute()))


def _parse_ids(
    rt: Runtime, task: str, first: str, others: Sequence[str] = (), *, event: str = "sweep.unknown_id"
) -> list[UUID] | None:
    """None where one of them is no id, which is counted: nobody gains by trying again."""
    try:
        return [UUID(text) for text in (first, *others)]
    except (ValueError, TypeError, AttributeError):
        rt.events.emit(event, task=task, reason="malformed id")
        return None
