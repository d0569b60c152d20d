"""Every knob, read once, all problems reported at once."""

from pushops.settings.load import load_settings
from pushops.settings.model import Cadence, Settings
from pushops.settings.values import format_duration, parse_duration

__all__ = ["Cadence", "Settings", "format_duration", "load_settings", "parse_duration"]
