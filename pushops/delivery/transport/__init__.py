"""POSTs to push services over libcurl's multi interface: many at a time, in one thread, without an event loop."""

from pushops.delivery.transport.request import Request
from pushops.delivery.transport.rules import TransportRules, transport_rules
from pushops.delivery.transport.transport import Transport

__all__ = ["Request", "Transport", "TransportRules", "transport_rules"]
