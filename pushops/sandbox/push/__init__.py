"""A push service of one's own: four vendors' endpoints, answers and faults, on loopback with a CA of its own."""

from pushops.sandbox.push.process import PushService
from pushops.sandbox.push.vendors import Vendor

__all__ = ["PushService", "Vendor"]
