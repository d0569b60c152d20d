"""How long each thing is kept, and the sweep that ends it: every lifetime in one list."""

from datetime import timedelta
from typing import Final

from pushops.deadletters.replay.draining import DRAIN
from pushops.erasure.sweeping import APPLY_ERASURES
from pushops.retention import payloads, store
from pushops.rolling.resealing import RESEAL_AUTH
from pushops.sweeps.sweep import Column, Fold, Sweep, Window

_DAY: Final = timedelta(days=1)
_ID: Final = Column("id", "uuid")
_CONTACT: Final = Column(store.CONTACT, "timestamptz")
_DELETED: Final = Column("deleted_at", "timestamptz")

AGE_STALE: Final = Sweep(
    name="age-stale",
    meaning="active rows that were quiet for PUSHOPS_STALE_AFTER although they were tried become stale",
    table="{schema}.push_subscription",
    index="push_subscription_age_stale",
    key=(_CONTACT, _ID),
    predicate=store.QUIET,
    windows=(
        Window("tried", ("stale_after",), floor=3 * _DAY),
        Window("untried", ("untried_after",), floor=15 * _DAY),
    ),
    effect=store.AGE_STALE,
    brake=True,
)
AGE_EXPIRED: Final = Sweep(
    name="age-expired",
    meaning="stale rows expire after PUSHOPS_EXPIRE_AFTER, pending ones after PUSHOPS_PENDING_EXPIRE_AFTER",
    table="{schema}.push_subscription",
    index="push_subscription_age_expired",
    key=(_CONTACT, _ID),
    predicate=store.AGED_OUT,
    windows=(
        Window("stale", ("expire_after",), floor=3 * _DAY),
        Window("contact", ("stale_after", "expire_after"), floor=7 * _DAY),
        Window("pending", ("pending_expire_after",), floor=3 * _DAY),
        Window("untried", ("untried_after",), floor=15 * _DAY),
        Window("untried_contact", ("untried_after", "untried_after"), floor=30 * _DAY),
    ),
    effect=store.AGE_EXPIRED,
    follow_up=store.CLOSE_AGED_PERIODS,
    brake=True,
)
SCRUB_TOMBSTONES: Final = Sweep(
    name="scrub-tombstones",
    meaning="after PUSHOPS_UNDO_WINDOW the credentials of ended rows are removed",
    table="{schema}.push_subscription",
    index="push_subscription_scrub",
    key=(_DELETED, _ID),
    predicate=store.UNDO_IS_OVER,
    windows=(Window("cutoff", ("undo_window",), floor=timedelta(minutes=30)),),
    effect=store.SCRUB,
    brake=True,
    blocks=True,
)
PURGE_TOMBSTONES: Final = Sweep(
    name="purge-tombstones",
    meaning="tombstones are deleted after PUSHOPS_TOMBSTONE_RETENTION and folded into daily counters",
    table="{schema}.push_subscription",
    index="push_subscription_purge",
    key=(_DELETED, _ID),
    predicate=store.TOMBSTONE_OVER,
    windows=(Window("cutoff", ("tombstone_retention",), floor=30 * _DAY),),
    effect=store.PURGE,
    fold=Fold(store.ENDED_BATCHES, store.FOLD_ENDED),
    brake=True,
    blocks=True,
)
PURGE_PERIODS: Final = Sweep(
    name="purge-periods",
    meaning="ended consent periods are deleted after PUSHOPS_PERIOD_RETENTION",
    table="{schema}.subscription_period",
    index="subscription_period_purge",
    key=(Column("ended_at", "timestamptz"), Column("period_id", "uuid")),
    identity=Column("period_id", "uuid"),
    predicate=store.PERIOD_OVER,
    windows=(Window("cutoff", ("period_retention",), floor=30 * _DAY),),
    effect=store.PURGE_PERIODS,
    blocks=True,
)
PURGE_RECEIPTS: Final = Sweep(
    name="purge-receipts",
    meaning="batches and receipts of closed runs are deleted after PUSHOPS_RECEIPT_RETENTION",
    table="{schema}.sweep_batch",
    index="sweep_batch_purge",
    key=(Column("finished_at", "timestamptz"), Column("batch_id", "uuid")),
    identity=Column("batch_id", "uuid"),
    predicate=store.RECEIPT_OVER,
    windows=(Window("cutoff", ("receipt_retention",), floor=7 * _DAY),),
    effect=store.PURGE_RECEIPTS,
)
PURGE_RUNS: Final = Sweep(
    name="purge-runs",
    meaning="closed runs whose batches are gone are deleted after PUSHOPS_RECEIPT_RETENTION",
    table="{schema}.sweep_run",
    index="sweep_run_purge",
    key=(Column("closed_at", "timestamptz"), Column("run_id", "uuid")),
    identity=Column("run_id", "uuid"),
    predicate=store.RUN_OVER,
    windows=(Window("cutoff", ("receipt_retention",), floor=7 * _DAY),),
    effect=store.PURGE_RUNS,
)
# The order of ids is that of time, so that the key itself says what is old. A message goes once its week of the ledger
# has gone; push_answer is the guard's memory, which looks back 35 days.
PURGE_MESSAGES: Final = Sweep(
    name="purge-messages",
    meaning="closed messages whose recipients have left the ledger are deleted after PUSHOPS_LEDGER_RETENTION",
    table="{schema}.push_message",
    index="push_message_pkey",
    key=(Column("message_id", "uuid"),),
    identity=Column("message_id", "uuid"),
    predicate=store.MESSAGE_OVER,
    windows=(Window("cutoff", ("ledger_retention",), floor=30 * _DAY),),
    effect=store.PURGE_MESSAGES,
)
PURGE_PAYLOADS: Final = Sweep(
    name="purge-payloads",
    meaning="payloads are deleted from their store PUSHOPS_PAYLOAD_GRACE after their messages expired",
    table="{schema}.push_message",
    index="push_message_payload",
    key=(Column("coalesce(expires_at, closed_at)", "timestamptz"), Column("message_id", "uuid")),
    identity=Column("message_id", "uuid"),
    predicate=store.PAYLOAD_OVER,
    windows=(Window("cutoff", ("payload_grace",), floor=timedelta(minutes=30)),),
    acting=payloads.ACTING,
    page_rows=payloads.page_rows,
)
_LETTER: Final = Column("dlq_id", "uuid")
CLOSE_DEAD_LETTERS: Final = Sweep(
    name="close-dead-letters",
    meaning="parked letters end when they expire: nobody may send them any more",
    table="{schema}.push_dlq",
    index="push_dlq_close",
    key=(Column("expires_at", "timestamptz"), _LETTER),
    identity=_LETTER,
    predicate=store.LETTER_STALE,
    windows=(Window("opened", (), floor=timedelta()),),
    effect=store.CLOSE_LETTERS,
)
PURGE_DEAD_LETTERS: Final = Sweep(
    name="purge-dead-letters",
    meaning="closed letters are deleted with their attempts PUSHOPS_DEAD_LETTER_RETENTION after their parking",
    table="{schema}.push_dlq",
    index="push_dlq_inflow",
    key=(Column("parked_at", "timestamptz"), _LETTER),
    identity=_LETTER,
    predicate=store.LETTER_OVER,
    windows=(Window("cutoff", ("dead_letter_retention",), floor=30 * _DAY),),
    effect=store.PURGE_LETTERS,
)
PURGE_EVIDENCE: Final = Sweep(
    name="purge-evidence",
    meaning="what push services said against subscriptions is deleted after PUSHOPS_LEDGER_RETENTION",
    table="{schema}.push_evidence",
    index="push_evidence_purge",
    key=(Column("at", "timestamptz"), Column("evidence_id", "uuid")),
    identity=Column("evidence_id", "uuid"),
    predicate=store.EVIDENCE_OVER,
    windows=(Window("cutoff", ("ledger_retention",), floor=30 * _DAY),),
    effect=store.PURGE_EVIDENCE,
)
PURGE_ANSWERS: Final = Sweep(
    name="purge-answers",
    meaning="counts of answers by the minute are deleted after PUSHOPS_LEDGER_RETENTION",
    table="{schema}.push_answer",
    index="push_answer_purge",
    key=(Column("minute", "timestamptz"), Column("push_service", "text")),
    identity=Column("push_service || ' ' || minute", "text"),
    predicate=store.ANSWER_OVER,
    windows=(Window("cutoff", ("ledger_retention",), floor=36 * _DAY),),
    effect=store.PURGE_ANSWERS,
)
PURGE_AUDIT: Final = Sweep(
    name="purge-audit",
    meaning="who did what to which subscription is deleted after PUSHOPS_AUDIT_RETENTION",
    table="{schema}.audit",
    index="audit_pkey",
    key=(Column("audit_id", "uuid"),),
    identity=Column("audit_id", "uuid"),
    predicate=store.AUDIT_OVER,
    windows=(Window("cutoff", ("audit_retention",), floor=30 * _DAY),),
    effect=store.PURGE_AUDIT,
)

SWEEPS: Final[dict[str, Sweep]] = {
    sweep.name: sweep
    for sweep in (
        AGE_STALE,
        AGE_EXPIRED,
        SCRUB_TOMBSTONES,
        PURGE_TOMBSTONES,
        PURGE_PERIODS,
        PURGE_RECEIPTS,
        PURGE_RUNS,
        PURGE_MESSAGES,
        PURGE_PAYLOADS,
        CLOSE_DEAD_LETTERS,
        PURGE_DEAD_LETTERS,
        PURGE_EVIDENCE,
        PURGE_ANSWERS,
        PURGE_AUDIT,
        RESEAL_AUTH,
        APPLY_ERASURES,
        DRAIN,
    )
}
