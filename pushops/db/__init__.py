"""PostgreSQL: the pool, one transaction at a time, and what its errors mean."""

from pushops.db.pool import Database
from pushops.db.transaction import Tx

__all__ = ["Database", "Tx"]
