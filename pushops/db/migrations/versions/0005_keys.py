"""What rolling keys needs."""

from pushops.db.migrate import run_sibling_sql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sibling_sql(__file__)
