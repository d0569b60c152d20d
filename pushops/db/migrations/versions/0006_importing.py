"""Where imported subscriptions wait before they are stored."""

from pushops.db.migrate import run_sibling_sql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sibling_sql(__file__)
