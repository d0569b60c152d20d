"""Subscriptions, consent periods, counters, audit and the sweep engine."""

from pushops.db.migrate import run_sibling_sql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sibling_sql(__file__)
