"""Telling workers that there is work, from a process that is none: at once, and never in the way of its caller."""

from functools import cached_property
from typing import Any, Final
from uuid import UUID

import redis
from celery import Celery
from kombu.entity import Queue
from kombu.exceptions import OperationalError

from pushops.delivery.message import MessageState
from pushops.delivery.sending import Sent
from pushops.runtime import Runtime

# Nobody's request waits for a broker: what was not rung for is found by beat.
IMPATIENT: Final = {"max_retries": 1, "interval_start": 0.05, "interval_max": 0.1}


class Doorbell:
    """The broker of a runtime's settings; without one nothing is rung, and beat finds the rows."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt

    def ring(self, sent: Sent) -> None:
        """Ring for whoever fans out, or sends, a message whose row is committed."""
        if self._rt.settings.broker_url is None:
            return
        if sent.state is MessageState.SENDING:
            self._publish("pushops.send_due", [])
        elif sent.state is MessageState.WAITING:
            self._publish("pushops.fan_out", [str(sent.message_id)])

    def ring_run(self, run_id: UUID) -> None:
        """Ring for a worker of a run, who rings for others."""
        if self._rt.settings.broker_url is not None:
            self._publish("pushops.sweep_batches", [str(run_id)])

    def ring_erasures(self) -> None:
        """Ring for whoever carries on a request to be forgotten, which is committed."""
        if self._rt.settings.broker_url is not None:
            self._publish("pushops.apply_erasures", [])

    def close(self) -> None:
        """Close connections, if any were made."""
        if "_app" in self.__dict__:
            self._app.close()

    @cached_property
    def _app(self) -> Any:  # noqa: ANN401  (Celery has no types)
        settings = self._rt.settings
        assert settings.broker_url is not None  # noqa: S101  (asked before)
        limit = settings.broker_timeout.total_seconds()
        app = Celery("pushops-doorbell", broker=settings.broker_url.get_secret_value(), set_as_current=False)
        app.conf.update(
            task_default_queue=settings.queue,
            task_queues=[Queue(settings.queue)],  # type: ignore[no-untyped-call]  # kombu has few types
            task_ignore_result=True,
            task_publish_retry_policy=IMPATIENT,
            broker_transport_options={"socket_timeout": limit, "socket_connect_timeout": limit},
        )
        return app

    def _publish(self, task: str, args: list[str]) -> None:
        try:
            self._app.send_task(task, args)
        except (OperationalError, redis.RedisError, OSError) as error:
            self._rt.events.emit("broker.failed", task=task, error=type(error).__name__)
