"""What sweeps over tables of yours, their archives and partitions need."""

from pushops.db.migrate import run_sibling_sql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    run_sibling_sql(__file__)
