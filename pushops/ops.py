"""The public verbs on an opened runtime: what ``pushops.open()`` gives."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack
from uuid import UUID

from pushops.deadletters import alarms, discarding, looking, triage
from pushops.deadletters import service as replays
from pushops.deadletters.alarms import Alarm
from pushops.deadletters.discarding import Discarded
from pushops.deadletters.filters import parse
from pushops.deadletters.looking import LetterPage, Story, Words
from pushops.deadletters.replay.previewing import Preview as ReplayPreview
from pushops.deadletters.replay.resending import Resent
from pushops.deadletters.triage import Triage
from pushops.delivery import churn, guard, holds, providers
from pushops.delivery import service as delivery
from pushops.delivery.cancelling import Cancelled
from pushops.delivery.churn import Churn
from pushops.delivery.content import Payload
from pushops.delivery.guard import Judged
from pushops.delivery.preflight import Draft, Request
from pushops.delivery.providers import Provider
from pushops.delivery.reading import Progress, ResultPage
from pushops.delivery.sending import Preview, Sent
from pushops.delivery.store.guard import Listed as Guarded
from pushops.delivery.store.holds import Hold, Released
from pushops.delivery.store.messages import MessageRow
from pushops.erasure import service as erasures
from pushops.erasure.holding import Held as LegallyHeld
from pushops.erasure.words import Erasure
from pushops.erasure.words import Request as ErasureRequest
from pushops.runtime import Runtime, open_runtime
from pushops.settings import Settings
from pushops.subscriptions import service as verbs
from pushops.subscriptions.evidence import Evidence, EvidenceOutcome
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.reading import Day, Page
from pushops.subscriptions.registering import Candidate, Outcome, Saved
from pushops.subscriptions.store.reading import Subscription
from pushops.subscriptions.touching import Touched
from pushops.subscriptions.undoing import Undone
from pushops.subscriptions.work import Conn
from pushops.sweeps.dispatch import Dispatched

if TYPE_CHECKING:
    from pushops.doorbell import Doorbell


class Ops:
    """pushops' verbs. Make it with ``pushops.open()``, in the process that uses it, and close it (or use ``with``).

    Verbs that take ``conn`` join the caller's psycopg transaction; without it each is a transaction of its own, in
    which a deadlock is tried again. All raise children of ``pushops.errors.PushopsError``.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._doorbell: Doorbell | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._doorbell is not None:
            self._doorbell.close()
        self.runtime.close()

    def save_subscription(
        self,
        subscription: object,
        *,
        user_id: str | None = None,
        origin: str | None = None,
        application_server_key: str | bytes | None = None,
        keep_owner: bool = False,
        opt_in: bool = False,
        tags: Iterable[str] | None = None,
        user_agent: str | None = None,
        locale: str | None = None,
        actor: str = "application",
        conn: Conn | None = None,
    ) -> Saved:
        """Store or refresh the object that the browser's ``PushSubscription.toJSON()`` gave.

        ``user_id`` takes the endpoint over; without one the row becomes anonymous unless ``keep_owner``. ``tags`` None
        leaves the tags. ``opt_in``: the person just chose to be here, which brings back even what was erased. Raises
        SubscriptionRefused (field, reason, expected, got, advice); nothing is stored then.
        """
        return verbs.save_subscription(
            self.runtime,
            subscription,
            user_id=user_id,
            origin=origin,
            application_server_key=application_server_key,
            keep_owner=keep_owner,
            opt_in=opt_in,
            tags=tags,
            user_agent=user_agent,
            locale=locale,
            actor=actor,
            conn=conn,
        )

    def save_many(
        self,
        candidates: Iterable[Candidate],
        *,
        revive: bool = False,
        actor: str = "import",
        conn: Conn | None = None,
    ) -> Iterator[Outcome]:
        """Store many and yield ``Saved`` or ``Rejected`` for each, in order; each is written as it is consumed.

        What a person unsubscribed is refused unless ``revive``.
        """
        return verbs.save_many(self.runtime, candidates, revive=revive, actor=actor, conn=conn)

    def rotate(
        self,
        old_endpoint: str,
        new_subscription: object,
        *,
        user_id: str | None = None,
        origin: str | None = None,
        application_server_key: str | bytes | None = None,
        tags: Iterable[str] | None = None,
        user_agent: str | None = None,
        locale: str | None = None,
        actor: str = "application",
        conn: Conn | None = None,
    ) -> Saved:
        """Serve ``pushsubscriptionchange``: the new subscription takes the old one's user, tags and date.

        The old row ends as ``rotated``. An unknown old endpoint makes it a plain save that keeps the owner. Raises
        SubscriptionRefused, also with the advice ``unsubscribe`` where a person had ended the old one.
        """
        return verbs.rotate(
            self.runtime,
            old_endpoint,
            new_subscription,
            user_id=user_id,
            origin=origin,
            application_server_key=application_server_key,
            tags=tags,
            user_agent=user_agent,
            locale=locale,
            actor=actor,
            conn=conn,
        )

    def touch(self, endpoint: str, *, actor: str = "application", conn: Conn | None = None) -> Touched:
        """A heartbeat: refresh ``last_seen_at`` (at most once an hour) and answer what the client should do.

        Brings a stale row back. ``state`` is None for an unknown endpoint, whose advice is ``resubscribe``.
        """
        return verbs.touch(self.runtime, endpoint, actor=actor, conn=conn)

    def unsubscribe(
        self,
        *,
        endpoint: str | None = None,
        endpoints: Iterable[str] | None = None,
        user: str | None = None,
        actor: str = "application",
        conn: Conn | None = None,
    ) -> int:
        """Revoke one endpoint, a list, or all of a user's; how many rows that ended. Idempotent.

        Raises RefusedError unless exactly one of the three is given.
        """
        return verbs.unsubscribe(
            self.runtime, endpoint=endpoint, endpoints=endpoints, user=user, actor=actor, conn=conn
        )

    def detach(self, endpoint: str, *, actor: str = "application", conn: Conn | None = None) -> int:
        """Logging out: end the link of an endpoint to its user. The row lives on, anonymous, without tags."""
        return verbs.detach(self.runtime, endpoint, actor=actor, conn=conn)

    def detach_all(self, user: str, *, actor: str = "application", conn: Conn | None = None) -> int:
        """End the link of all endpoints of a user; how many."""
        return verbs.detach_all(self.runtime, user, actor=actor, conn=conn)

    def record_evidence(self, evidence: Evidence, *, conn: Conn | None = None) -> EvidenceOutcome:
        """Apply a push service's answer to the row that it is about, if that is still the one that was sent to."""
        return verbs.record_evidence(self.runtime, evidence, conn=conn)

    def undo(
        self,
        *,
        run: UUID | None = None,
        service: str | None = None,
        reason: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        dry_run: bool = True,
        actor: str,
        conn: Conn | None = None,
    ) -> Undone:
        """Bring back what evidence or ageing ended, inside the undo window; by default only count it.

        Raises RefusedError without any filter, or for a reason that is a person's.
        """
        return verbs.undo(
            self.runtime,
            run=run,
            service=service,
            reason=reason,
            since=since,
            until=until,
            dry_run=dry_run,
            actor=actor,
            conn=conn,
        )

    def send(
        self,
        payload: Payload,
        *,
        user: str | None = None,
        tags: Iterable[str] | None = None,
        ids: Iterable[UUID] | None = None,
        service: str | None = None,
        origin: str | None = None,
        locale: str | None = None,
        key: str | None = None,
        everyone: bool = False,
        ttl: timedelta | int | None = None,
        urgency: str = "normal",
        topic: str | None = None,
        campaign: str | None = None,
        not_before: datetime | None = None,
        replayable: bool = True,
        on_ambiguous: str = "retry",
        on_in_doubt: str = "discard",
        idempotency_key: str | None = None,
        stamp: bool | None = None,
        actor: str = "application",
        conn: Conn | None = None,
    ) -> Sent:
        """Send to every live subscription that all named conditions hold for; ``tags`` means any of them.

        ``key`` is a VAPID key's id; ``everyone=True`` has to be said. A mapping goes out as JSON that carries the
        message's id (``{"pushops": {"id": ...}}``, unless ``stamp=False``), bytes and text as they are. ``ttl`` is in
        seconds, from the first dispatch on. The same ``idempotency_key`` with the same request returns the first
        message, with another it raises ConflictError. Raises MessageRefused with every fault, before anything is
        written. Workers are rung at once; with ``conn`` beat finds the message after the caller's commit, and the
        payload goes into its store, over the network where that is remote, while the caller's transaction is open.
        """
        sent = delivery.send(
            self.runtime,
            payload,
            user=user,
            tags=tags,
            ids=ids,
            service=service,
            origin=origin,
            locale=locale,
            key=key,
            everyone=everyone,
            ttl=ttl,
            urgency=urgency,
            topic=topic,
            campaign=campaign,
            not_before=not_before,
            replayable=replayable,
            on_ambiguous=on_ambiguous,
            on_in_doubt=on_in_doubt,
            idempotency_key=idempotency_key,
            stamp=stamp,
            actor=actor,
            conn=conn,
        )
        if sent.created and conn is None and not_before is None:
            self._bell().ring(sent)
        return sent

    def preview(self, payload: Payload, **request: Unpack[Request]) -> Preview:
        """What ``send`` would do with the same arguments: whom it would reach now, by push service, and every fault.

        Nothing is written.
        """
        return delivery.preview(self.runtime, Draft(payload=payload, **request))

    def cancel(
        self,
        message_id: UUID | None = None,
        *,
        campaign: str | None = None,
        actor: str = "application",
        conn: Conn | None = None,
    ) -> Cancelled:
        """Cancel a message, or every open one of a campaign; what was sent stays sent. Raises NotFoundError."""
        return delivery.cancel(self.runtime, message_id, campaign=campaign, actor=actor, conn=conn)

    def messages(
        self,
        *,
        campaign: str | None = None,
        state: str | None = None,
        before: UUID | None = None,
        limit: int = 50,
    ) -> list[MessageRow]:
        """The latest messages, newest first, at most 1,000; ``before`` is the last id of the page before."""
        return delivery.messages(self.runtime, campaign=campaign, state=state, before=before, limit=limit)

    def message(self, message_id: UUID) -> Progress:
        """A message and how many of its recipients are where; raises NotFoundError."""
        return delivery.message(self.runtime, message_id)

    def results(
        self, message_id: UUID, *, outcome: str | None = None, after: str | None = None, limit: int = 1000
    ) -> ResultPage:
        """What became of each recipient, at most 1,000 a page; ``page.next`` is the ``after`` of the next one.

        ``outcome`` is one, or a state for those that have none yet. Raises NotFoundError and RefusedError.
        """
        return delivery.results(self.runtime, message_id, outcome=outcome, after=after, limit=limit)

    def list_providers(self) -> list[Provider]:
        """Each push service: what is due, its answers of the last five minutes, and why it waits if it does."""
        return providers.list_providers(self.runtime)

    def pause(self, kind: str, name: str, *, actor: str, why: str | None = None) -> bool:
        """Stop sending to a ``provider``, under a ``key`` or of a ``campaign``; whether it was not stopped already."""
        return providers.pause(self.runtime, providers.Pausable(kind), name, actor=actor, why=why)

    def resume(self, kind: str, name: str, *, actor: str) -> bool:
        """Go on sending; whether it had been stopped."""
        return providers.resume(self.runtime, providers.Pausable(kind), name, actor=actor)

    def list_guards(self, *, closed: bool = False, limit: int = 100) -> list[Guarded]:
        """Guards that are open or not settled, or all, newest first, with how many answers wait for a word."""
        return guard.list_guards(self.runtime, closed=closed, limit=limit)

    def accept_guard(self, service: str, *, reason: str, actor: str, dry_run: bool = True) -> Judged:
        """Close a push service's guard and believe what it kept; by default only say what that is."""
        return guard.accept(self.runtime, service, reason=reason, actor=actor, dry_run=dry_run)

    def reject_guard(self, service: str, *, reason: str, actor: str, dry_run: bool = True) -> Judged:
        """Close a push service's guard and discard what it kept; by default only say what that is."""
        return guard.reject(self.runtime, service, reason=reason, actor=actor, dry_run=dry_run)

    def list_holds(self, *, released: bool = False, limit: int = 100) -> list[Hold]:
        """Holds that are open, or all, newest first, with how many messages wait behind each."""
        return holds.list_holds(self.runtime, released=released, limit=limit)

    def release_hold(self, hold_id: UUID, *, actor: str, why: str) -> Released:
        """Send again to a host under a key that refused it; it is held again if that still does."""
        return holds.release(self.runtime, hold_id, actor=actor, why=why)

    def churn(self, by: str, since: datetime, until: datetime) -> list[Churn]:
        """Who left, by ``service``, ``reason`` or the ``campaign`` that found out."""
        return churn.churn(self.runtime, churn.By(by), since, until)

    def triage(self, *, new_since: datetime | None = None, limit: int = 50, **words: Unpack[Words]) -> Triage:
        """Parked letters by class, code, host and campaign, the largest groups first, and faults that everybody has.

        ``words`` say which letters are meant, as ``pushops dlq`` has them. ``new_since`` is a day ago unless said.
        """
        return triage.triage(self.runtime, parse(words), new_since=new_since, limit=limit)

    def list_dead_letters(
        self, *, state: str = "parked", after: UUID | None = None, limit: int = 100, **words: Unpack[Words]
    ) -> LetterPage:
        """A page of at most 1,000 letters in the order of parking; ``page.next`` is the ``after`` of the next one.

        ``state`` may be ``all``. Raises RefusedError.
        """
        return looking.list_letters(self.runtime, parse(words), state=state, after=after, limit=limit)

    def show_dead_letter(self, dlq_id: UUID) -> Story:
        """One letter and every attempt at it; raises NotFoundError."""
        return looking.show_letter(self.runtime, dlq_id)

    def discard_dead_letters(
        self, *, reason: str, actor: str, dry_run: bool = True, **words: Unpack[Words]
    ) -> Discarded:
        """Close the parked letters that are meant; by default only count them. What a replay has in hand stays.

        Raises RefusedError without any word that says which.
        """
        return discarding.discard(self.runtime, parse(words), reason=reason, actor=actor, dry_run=dry_run)

    def preview_replay(
        self, *, rate: float | None = None, ramp: timedelta | None = None, **words: Unpack[Words]
    ) -> ReplayPreview:
        """What ``drain_dlq`` would do to the letters that are meant, gate by gate; nothing changes."""
        return replays.preview(self.runtime, parse(words), rate=rate, ramp=ramp)

    def drain_dlq(
        self,
        *,
        limit: int | None = None,
        rate: float | None = None,
        ramp: timedelta | None = None,
        actor: str = "application",
        **words: Unpack[Words],
    ) -> Dispatched:
        """Have workers send the letters that are meant once more; joins the open run of the same words.

        ``limit`` letters at most, ``rate`` a second to each push service. Raises RefusedError.
        """
        options = replays.Options(limit, rate, ramp)
        done = replays.drain(self.runtime, parse(words), options, None, started_by=actor)
        if done.run is not None:
            self._bell().ring_run(done.run.run_id)
        return done

    def resend_dead_letter(self, dlq_id: UUID, *, reason: str, actor: str) -> Resent:
        """Send one letter now, whatever says that it was sent already; raises NotFoundError and RefusedError."""
        return replays.resend(self.runtime, dlq_id, reason=reason, actor=actor)

    def dead_letter_alarms(self) -> list[Alarm]:
        """Whether letters come or lie as they should not, the grave first; tells nobody."""
        return alarms.current(self.runtime)

    def erase(
        self,
        *,
        user: str | None = None,
        endpoint: str | None = None,
        actor: str = "application",
        conn: Conn | None = None,
    ) -> Erasure:
        """Forget a user or an endpoint: nothing is sent from the commit on, and all that is stored goes within minutes.

        Only a receipt and the hashes of endpoints stay, so that their browsers are told to unsubscribe. Asked twice
        it is one request while that is open; a legal hold makes it wait. Raises RefusedError.
        """
        done = erasures.erase(self.runtime, user=user, endpoint=endpoint, actor=actor, conn=conn)
        if conn is None and not done.held:
            self._bell().ring_erasures()
        return done

    def confirm_unsubscribed(self, endpoint: str, *, actor: str = "application", conn: Conn | None = None) -> bool:
        """The client of an erased endpoint did as it was told: its hash goes too. Whether it was known as erased."""
        return verbs.confirm_unsubscribed(self.runtime, endpoint, actor=actor, conn=conn)

    def list_erasures(self, *, done: bool = True, limit: int = 100) -> list[ErasureRequest]:
        """Requests to be forgotten, the latest first: where they stand, and the receipts of those that are done."""
        return erasures.list_requests(self.runtime, done=done, limit=limit)

    def show_erasure(self, request_id: UUID) -> ErasureRequest:
        """One request or its receipt; raises NotFoundError."""
        return erasures.show_request(self.runtime, request_id)

    def hold_legally(
        self, *, user: str | None = None, endpoint: str | None = None, reason: str, actor: str, conn: Conn | None = None
    ) -> LegallyHeld:
        """Keep subscriptions from retention and erasure until they are released; raises RefusedError."""
        return erasures.hold(self.runtime, user=user, endpoint=endpoint, reason=reason, actor=actor, conn=conn)

    def release_legally(
        self, *, user: str | None = None, endpoint: str | None = None, reason: str, actor: str, conn: Conn | None = None
    ) -> LegallyHeld:
        """Let retention, and an erasure that waited, have them; raises RefusedError."""
        done = erasures.release(self.runtime, user=user, endpoint=endpoint, reason=reason, actor=actor, conn=conn)
        if conn is None and done.requests:
            self._bell().ring_erasures()
        return done

    def show(
        self, *, endpoint: str | None = None, subscription_id: UUID | None = None, conn: Conn | None = None
    ) -> Subscription:
        """One row by endpoint or id, without endpoint and keys; raises NotFoundError."""
        return verbs.show(self.runtime, endpoint=endpoint, subscription_id=subscription_id, conn=conn)

    def list_subscriptions(
        self,
        *,
        user: str | None = None,
        state: str | None = None,
        service: str | None = None,
        origin: str | None = None,
        after: UUID | None = None,
        limit: int = 100,
        conn: Conn | None = None,
    ) -> Page:
        """A page of at most 1,000 rows in id order; ``page.next`` is the ``after`` of the page that follows."""
        return verbs.list_subscriptions(
            self.runtime,
            user=user,
            state=state,
            service=service,
            origin=origin,
            after=after,
            limit=limit,
            conn=conn,
        )

    def stats(self, since: datetime, until: datetime, *, conn: Conn | None = None) -> list[Day]:
        """Starts, reconnections and ends (by reason) for each UTC day and push service, ``until`` excluded."""
        return verbs.stats(self.runtime, since, until, conn=conn)

    def _bell(self) -> "Doorbell":
        if self._doorbell is None:
            from pushops.doorbell import Doorbell  # noqa: PLC0415  (Celery, only for who sends)

            self._doorbell = Doorbell(self.runtime)
        return self._doorbell


def open_ops(settings: Settings | None = None) -> Ops:
    """Read the settings (unless given), check all key material and open a runtime; raises SettingsError."""
    runtime = open_runtime(settings)
    try:
        keychain(runtime.settings)
    except BaseException:
        runtime.close()
        raise
    return Ops(runtime)
