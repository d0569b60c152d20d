"""Erasure requests, their receipts, and endpoints that may not come back on their own."""

from pushops.db.migrate import run_sibling_sql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sibling_sql(__file__)
