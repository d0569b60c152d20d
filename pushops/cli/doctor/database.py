"""PostgreSQL: reachable, migrated, its indexes valid, nobody's foreign keys in the way, clocks together."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from pushops.cli.context import reach
from pushops.cli.doctor import store
from pushops.cli.doctor.findings import Finding, fine, problem, warning
from pushops.cli.doctor.store import ForeignKey, Server
from pushops.cli.output import duration
from pushops.db import migrate
from pushops.retention.policies import SWEEPS
from pushops.runtime import Runtime

SKEW: Final = timedelta(seconds=5)
# Push services refuse tokens that lie further ahead or behind than they allow; beat fires at the wrong hour.
BAD_SKEW: Final = timedelta(minutes=5)
HINDERING: Final = ("RESTRICT", "NO ACTION")


def server(rt: Runtime) -> Iterator[Finding]:
    reach(rt.settings)
    before = datetime.now(UTC)
    with rt.db.transaction() as tx:
        found = store.server(tx)
    after = datetime.now(UTC)
    yield version(found)
    yield skew(found.now - before, found.now - after)


def version(found: Server) -> Finding:
    expected = f"PostgreSQL {migrate.OLDEST_SERVER} or newer that can be written to"
    if found.version < migrate.OLDEST_SERVER * 10_000:
        return problem("database", expected, f"PostgreSQL {found.version_text}", "move to a newer server")
    return fine("database", expected, f"PostgreSQL {found.version_text}")


def skew(since_before: timedelta, since_after: timedelta) -> Finding:
    """The server looked at its clock at some time between: only what that cannot explain is skew."""
    ahead = max(since_after, -since_before, timedelta())
    expected, found = f"host and database within {duration(SKEW)}", f"{ahead.total_seconds():.1f} s apart or less"
    if ahead <= SKEW:
        return fine("clock", expected, found)
    make = problem if ahead > BAD_SKEW else warning
    return make("clock", expected, f"{duration(ahead)} apart", "let both follow the same time server")


def migrations(rt: Runtime) -> Iterator[Finding]:
    current, pending = migrate.current(rt.settings), migrate.pending(rt.settings)
    expected = "every migration applied"
    if pending:
        found = f"at {current or 'no revision'}, to apply: {', '.join(pending)}"
        yield problem("migrations", expected, found, "pushops migrate")
    else:
        yield fine("migrations", expected, f"at {current}")


def indexes(rt: Runtime) -> Iterator[Finding]:
    with rt.db.transaction() as tx:
        invalid, there = store.invalid_indexes(tx), store.indexes(tx)
    missing = sorted({sweep.index for sweep in SWEEPS.values()} - there)
    expected = "every index valid, and one for each sweep"
    if invalid:
        advice = f"REINDEX INDEX CONCURRENTLY {invalid[0]}, at a quiet time"
        yield problem("indexes", expected, f"invalid: {', '.join(invalid)}", advice)
    if missing:
        yield problem(
            "indexes", expected, f"missing: {', '.join(missing)}", "create them as pushops migrate --sql does"
        )
    if not invalid and not missing:
        yield fine("indexes", expected, f"{len(there)} valid")


def foreign_keys(rt: Runtime) -> Iterator[Finding]:
    with rt.db.transaction() as tx:
        found = store.foreign_keys(tx)
    yield from judge_foreign_keys(found)


def judge_foreign_keys(found: Sequence[ForeignKey]) -> Iterator[Finding]:
    expected = "no foreign key into our tables, or an indexed one that lets rows be deleted"
    for key in found:
        text = f"{key.table}.{key.name} to {key.target}, ON DELETE {key.action}" + ("" if key.indexed else ", no index")
        if key.action in HINDERING:
            advice = (
                "rows that it points to cannot be purged and end in quarantine: CASCADE, SET NULL, or keep the hash"
            )
            yield warning("foreign keys", expected, text, advice)
        elif not key.indexed:
            yield warning("foreign keys", expected, text, "create an index on its columns: every deletion scans for it")
        else:
            yield fine("foreign keys", expected, text)
    if not found:
        yield fine("foreign keys", expected, "none")
