"""What ``pushops check`` looks at: each examination probes, then decides in words."""

from pushops.cli.doctor.examine import examine
from pushops.cli.doctor.findings import Finding, Level

__all__ = ["Finding", "Level", "examine"]
