"""Importing: rows are checked and sealed, wait in staging, and are stored in pages."""

from collections import Counter
from collections.abc import Callable
from typing import ClassVar, Final

from pushops.errors import PushopsError
from pushops.importing import merging
from pushops.importing.checking import Checked
from pushops.importing.crew import check_all
from pushops.importing.merging import Merged
from pushops.importing.sources import Source
from pushops.importing.staging import Staging, staging
from pushops.importing.words import Imported, Refusal, Refuse, Rules, Told
from pushops.runtime import Runtime
from pushops.subscriptions.keychain import keychain
from pushops.subscriptions.registering import LEFT
from pushops.subscriptions.store import auditing
from pushops.subscriptions.suppressing import ERASED

READING: Final = "checked"
STORING: Final = "stored"
COMPARING: Final = "compared with what is here"


class StagingLostError(PushopsError):
    """The server crashed meanwhile: staging is kept without a log."""

    label: ClassVar[str] = "staging_lost"


def import_subscriptions(
    rt: Runtime,
    source: Source,
    *,
    actor: str,
    refuse: Refuse,
    told: Told = lambda _what, _done, _of: None,
    dry_run: bool = False,
    revive: bool = False,
    utc: bool = False,
    application_server_key: str | None = None,
    processes: int | None = None,
) -> Imported:
    """Store what the source holds; ``refuse`` hears of each row that was not, ``told`` how far it is.

    Nothing is stored before all rows were checked. Of rows with one endpoint the latest stands, then one with a user,
    then the last. Importing again changes nothing; stopped half-way it is imported again. What a person unsubscribed
    is refused unless ``revive``. A dry run does all but store.
    """
    done = Imported(dry_run)
    with rt.events.span("subscription.imported", dry_run=dry_run) as span:
        with rt.db.transaction() as tx:
            rules = Rules(tx.now, utc, application_server_key)
        with staging(rt, actor) as place:
            for checked in check_all(rt.settings, source, rules, processes):
                _stage(place, checked, done, refuse)
                told(READING, done.lines, source.total)
            place.index()
            _store(rt, place, done, refuse, told, actor, revive=revive)
            if not dry_run:
                _note(rt, place, done, rules, actor)
        span["rows"], span["refused"] = done.stored, done.refused
        span["inserted"], span["updated"] = done.inserted, done.updated
    return done


def _stage(place: Staging, checked: Checked, done: Imported, refuse: Refuse) -> None:
    place.add(checked.copy, checked.rows)
    done.lines += checked.lines
    done.foreign_keys += checked.foreign_keys
    for refusal in checked.refusals:
        _refused(done, refusal, refuse)


def _store(
    rt: Runtime, place: Staging, done: Imported, refuse: Refuse, told: Told, actor: str, *, revive: bool
) -> None:
    stored = 0
    for page in merging.merge(rt, place.import_id, place.rows, actor, revive=revive, dry_run=done.dry_run):
        stored += page.rows
        _add(done, page)
        for found, gone in (*((LEFT, each) for each in page.left), *((ERASED, each) for each in page.erased)):
            _refused(done, Refusal(gone.ordinal, found, keychain(rt.settings).tag(gone.endpoint_hash)), refuse)
        told(COMPARING if done.dry_run else STORING, stored, place.rows)
        place.keep()
    if not place.intact():
        raise StagingLostError("expected this import's staging, got an empty one: PostgreSQL crashed; import again")
    # An erasure took these out of staging, and with them which lines they were.
    done.refused += place.rows - stored
    done.reasons += Counter({str(ERASED.reason): place.rows - stored})


def _note(rt: Runtime, place: Staging, done: Imported, rules: Rules, actor: str) -> None:
    """The audit's one row for all that was new; its commit waits for the disk, and so for all pages before it."""
    counts = {name: value for name, value in vars(done).items() if isinstance(value, int) and name != "dry_run"}
    with rt.db.transaction() as tx:
        detail = {"import": str(place.import_id), "began_at": rules.until.isoformat(), **counts}
        auditing.note(tx, "import", actor, detail)


def _add(done: Imported, page: Merged) -> None:
    done.inserted += page.inserted
    done.updated += page.updated
    done.unchanged += page.unchanged
    done.duplicates += page.rows - page.endpoints


def _refused(done: Imported, refusal: Refusal, refuse: Callable[[Refusal], None]) -> None:
    done.refused += 1
    done.reasons[str(refusal.found.reason)] += 1
    refuse(refusal)
