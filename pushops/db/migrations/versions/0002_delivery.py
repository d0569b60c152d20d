"""Messages, the ledger, lanes, provider health, guard, holds and evidence."""

from pushops.db.migrate import run_sibling_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sibling_sql(__file__)
