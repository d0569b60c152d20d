"""Real PostgreSQL and Valkey servers from wheels, and a push service: no root, no containers, no system packages."""

from pushops.sandbox.postgres import PostgresServer
from pushops.sandbox.push import PushService
from pushops.sandbox.sandbox import Sandbox, SandboxInfo, SandboxStatus
from pushops.sandbox.valkey import ValkeyServer

__all__ = ["PostgresServer", "PushService", "Sandbox", "SandboxInfo", "SandboxStatus", "ValkeyServer"]
