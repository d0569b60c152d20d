"""Dead letters, their attempts, and what the engine keeps of runs that act."""

from pushops.db.migrate import run_sibling_sql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sibling_sql(__file__)
