"""Real PostgreSQL and Valkey servers from wheels: no root, no containers, no system packages."""

from pushops.sandbox.postgres import PostgresServer
from pushops.sandbox.sandbox import Sandbox, SandboxInfo, SandboxStatus
from pushops.sandbox.valkey import ValkeyServer

__all__ = ["PostgresServer", "Sandbox", "SandboxInfo", "SandboxStatus", "ValkeyServer"]
