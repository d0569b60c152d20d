"""The public verbs on an opened runtime: what ``pushops.open()`` gives."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from pushops.subscriptions import service
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.registering import Candidate, Outcome, Saved
from pushops.subscriptions.work import Conn


class Ops:
    """pushops' verbs. Make it with ``pushops.open()``, in the process that uses it, and close it (or use ``with``).

    Verbs that take ``conn`` join the caller's psycopg transaction; without it each is a transaction of its own, in
    which a deadlock is tried again. All raise children of ``pushops.errors.PushopsError``.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.runtime.close()

    def save_subscription(
        self,
        subscription: object,
        *,
        user_id: str | None = None,
        origin: str | None = None,
        application_server_key: str | bytes | None = None,
        keep_owner: bool = False,
        tags: Iterable[str] | None = None,
        user_agent: str | None = None,
        locale: str | None = None,
        actor: str = "application",
        conn: Conn | None = None,
    ) -> Saved:
        """Store or refresh the object that the browser's ``PushSubscription.toJSON()`` gave.

        ``user_id`` takes the endpoint over; without one the row becomes anonymous unless ``keep_owner``. ``tags`` None
        leaves the tags. Raises SubscriptionRefused (field, reason, expected, got, advice), before any I/O.
        """
        return service.save_subscription(
            self.runtime,
            subscription,
            user_id=user_id,
            origin=origin,
            application_server_key=application_server_key,
            keep_owner=keep_owner,
            tags=tags,
            user_agent=user_agent,
            locale=locale,
            actor=actor,
            conn=conn,
        )

    def save_many(
        self, candidates: Iterable[Candidate], *, actor: str = "import", conn: Conn | None = None
    ) -> Iterator[Outcome]:
        """Store many and yield ``Saved`` or ``Rejected`` for each, in order; each is written as it is consumed."""
        return service.save_many(self.runtime, candidates, actor=actor, conn=conn)


def open_ops(settings: Settings | None = None) -> Ops:
    """Read the settings (unless given), check all key material and open a runtime; raises SettingsError."""
    runtime = open_runtime(settings)
    try:
        keychain(runtime.settings)
    except BaseException:
        runtime.close()
        raise
    return Ops(runtime)
