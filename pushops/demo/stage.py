"""The stage: servers in a folder of their own, settings of their own, and nothing left when the curtain falls."""

import json
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar, Final

from pushops.demo.browsers import SERVICES
from pushops.sandbox import Sandbox, SandboxInfo, processes
from pushops.sandbox.account import server_account
from pushops.sandbox.push import PushService
from pushops.sandbox.sandbox import default_folder
from pushops.settings import Settings, format_duration, load_settings
from pushops.subscriptions.keys import generate_log_key, generate_seal_key, generate_vapid_key

# Nothing of the caller's environment may steer the story, least of all a PUSHOPS_DATABASE_URL.
FOREIGN: Final = ("PUSHOPS_", "PG", "CELERY_", "SENTRY_")
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEAN_SECONDS: Final = 30
SHORTEST_LEASE: Final = timedelta(seconds=5)  # the settings allow no less

# How an installation changes when things happen: a celeryconfig of its own that begins with the defaults.
CELERYCONFIG: Final = """\
from pushops.celeryconfig import *

beat_schedule = {
    "purge-tombstones": {"task": "pushops.dispatch_sweep", "schedule": 3.0, "args": ["purge-tombstones"]},
    "tend-sweeps": {"task": "pushops.tend_sweeps", "schedule": 2.0, "options": {"expires": 2.0}},
    "resume-sweeps": {"task": "pushops.resume_sweeps", "schedule": 10.0},
}
beat_max_loop_interval = 1
"""
SENDING: Final = """\
from pushops.celeryconfig import *

beat_schedule = {
    "send-due": {"task": "pushops.send_due", "schedule": 0.5, "options": {"expires": 2.0}},
    "tend-messages": {"task": "pushops.tend_messages", "schedule": 1.0, "options": {"expires": 2.0}},
    "reap-claims": {"task": "pushops.reap_claims", "schedule": 5.0, "options": {"expires": 5.0}},
    "tend-health": {"task": "pushops.tend_health", "schedule": 2.0, "options": {"expires": 2.0}},
}
beat_max_loop_interval = 0.5
"""
MORNING: Final = """\
from pushops.celeryconfig import *

beat_schedule = {
    "send-due": {"task": "pushops.send_due", "schedule": 1.0, "options": {"expires": 2.0}},
    "tend-messages": {"task": "pushops.tend_messages", "schedule": 2.0, "options": {"expires": 5.0}},
    "reap-claims": {"task": "pushops.reap_claims", "schedule": 3.0, "options": {"expires": 10.0}},
    "tend-health": {"task": "pushops.tend_health", "schedule": 5.0, "options": {"expires": 5.0}},
    "tend-dead-letters": {"task": "pushops.tend_dead_letters", "schedule": 5.0, "options": {"expires": 10.0}},
    "tend-sweeps": {"task": "pushops.tend_sweeps", "schedule": 2.0, "options": {"expires": 5.0}},
    "resume-sweeps": {"task": "pushops.resume_sweeps", "schedule": 10.0},
}
beat_max_loop_interval = 0.5
"""
PER_SECOND: Final = 2_500  # messages, over all push services: slow enough to watch


@dataclass(frozen=True)
class Scale:
    """How much of everything. ``seconds`` is the length of the purge, drawn out so that there is time for trouble."""

    FEWEST: ClassVar[int] = 1_000
    BATCHES: ClassVar[int] = 150
    WORKERS: ClassVar[int] = 2
    MORNING_WORKERS: ClassVar[int] = 3
    BEATS: ClassVar[int] = 2
    READERS: ClassVar[int] = 50
    FEWEST_SUBSCRIBERS: ClassVar[int] = 2_000  # so that each push service has a streak's worth in the outage

    tombstones: int = 300_000
    live: int = 30_000
    seconds: float = 20
    subscribers: int = 20_000  # and as many letters

    @property
    def batch_rows(self) -> int:
        return max(50, self.tombstones // self.BATCHES)

    @property
    def pause_ms(self) -> int:
        return round(self.seconds * 1000 * self.WORKERS * self.batch_rows / self.tombstones)

    @property
    def morning_rate(self) -> float:
        """Messages a second, over all push services: a tenth of it sends a quarter of the letters in 33 seconds."""
        return self.subscribers * 0.075

    @property
    def returning(self) -> int:
        """How many of the doomed come back."""
        return min(400, self.tombstones // 20)


@dataclass(frozen=True)
class Stage:
    """One folder with everything in it. This process's environment, which its children get, holds the settings."""

    folder: Path
    database_url: str
    broker_url: str
    push: PushService

    def sending(self) -> tuple[Settings, Path]:
        """Settings for the campaign, with the usual limits again, and a folder for those who send it."""
        folder = self.folder / "sending"
        folder.mkdir()
        (folder / "celeryconfig.py").write_text(SENDING)
        for name in ("PUSHOPS_STATEMENT_TIMEOUT", "PUSHOPS_SWEEP_LEASE"):
            os.environ.pop(name, None)
        os.environ.update(sending_settings(self.push, folder))
        return load_settings(), folder

    def replaying(self, scale: Scale) -> tuple[Settings, Path]:
        """Settings for the morning after, beside those of the campaign, and a folder for those who work then."""
        folder = self.folder / "morning"
        folder.mkdir()
        (folder / "celeryconfig.py").write_text(MORNING)
        os.environ.update(replaying_settings(scale))
        return load_settings(), folder

    @staticmethod
    def limit(statement_timeout: timedelta) -> Settings:
        """Set the statement timeout, and a lease that fits it, for this process and those that it starts."""
        lease = max(SHORTEST_LEASE, 2 * statement_timeout)
        os.environ["PUSHOPS_STATEMENT_TIMEOUT"] = format_duration(statement_timeout)
        os.environ["PUSHOPS_SWEEP_LEASE"] = format_duration(lease)
        return load_settings()


@contextmanager
def stage(scale: Scale) -> Iterator[Stage]:
    """Servers up in a new folder; servers stopped and folder gone afterwards, however the block ended."""
    with _own_environment():
        sandbox = Sandbox(default_folder(server_account()).with_name(f"pushops-demo-{secrets.token_hex(4)}"))
        try:
            info = sandbox.up()
            (sandbox.folder / "celeryconfig.py").write_text(CELERYCONFIG)
            os.environ.update(our_settings(info, scale) | {"PUSHOPS_SPOOL": str(sandbox.folder / "spool")})
            yield Stage(sandbox.folder, info.database_url, info.broker_url, sandbox.push)
        finally:
            with undisturbed():
                _strike(sandbox)


def _strike(sandbox: Sandbox) -> None:
    """Stop and remove everything. An initdb that was cut off may work on for a moment, so look until it is quiet."""

    def gone() -> bool:
        try:
            sandbox.down()
        except OSError:  # files came or went while they were removed
            return False
        shutil.rmtree(sandbox.folder, ignore_errors=True)
        return not sandbox.folder.exists()

    processes.wait_until(gone, CLEAN_SECONDS, f"{sandbox.folder} to go")


def our_settings(info: SandboxInfo, scale: Scale) -> dict[str, str]:
    """All that makes this run differ from a default installation."""
    return {
        "PUSHOPS_CONFIG": os.devnull,
        "PUSHOPS_DATABASE_URL": info.database_url,
        "PUSHOPS_BROKER_URL": info.broker_url,
        "PUSHOPS_LOG_HMAC_KEY": generate_log_key(),
        "PUSHOPS_LOG_LEVEL": "error",  # of this process; the workers' is lower, since their logs are read
        "PUSHOPS_SEAL_KEYS": json.dumps({"1": generate_seal_key()}),
        "PUSHOPS_VAPID_KEYS": json.dumps({"demo": generate_vapid_key().private_text}),
        "PUSHOPS_VAPID_KEY_ID": "demo",
        "PUSHOPS_VAPID_SUBJECT": "mailto:demo@pushops.dev",
        # Nine rows in ten are to go, and the brake is there to refuse just that.
        "PUSHOPS_SWEEP_MAX_SHARE": "1",
        "PUSHOPS_SWEEP_BATCH_ROWS": str(scale.batch_rows),
        "PUSHOPS_SWEEP_PAUSE_MS": str(scale.pause_ms),
        "PUSHOPS_SWEEP_GRACE": "1s",
    }


def sending_settings(push: PushService, folder: Path) -> dict[str, str]:
    """Where the push services are, and waits that end while somebody watches."""
    return {
        "PUSHOPS_CA_FILE": str(push.ca_file),
        "PUSHOPS_CONNECT_TO": json.dumps(push.connect_to()),
        "PUSHOPS_PAYLOAD_STORE": (folder / "payloads").as_uri(),
        "PUSHOPS_PROVIDER_RATES": _rates(PER_SECOND),
        "PUSHOPS_RETRY_BASE": "1s",
    }


def replaying_settings(scale: Scale) -> dict[str, str]:
    """Waits that end while somebody watches; one worker of three is always there for live messages."""
    return {
        "PUSHOPS_PROVIDER_RATES": _rates(scale.morning_rate),
        "PUSHOPS_REPLAY_LEASE": "30s",
        "PUSHOPS_REPLAY_RAMP": "2s",
        "PUSHOPS_REPLAY_PARALLEL": "2",
    }


def _rates(whole: float) -> str:
    return json.dumps({name: whole * share / 100 for name, _, share in SERVICES})


@contextmanager
def undisturbed() -> Iterator[None]:
    """Clean up without being stopped half-way by somebody who is in a hurry."""
    before = [signal.signal(number, signal.SIG_IGN) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _own_environment() -> Iterator[None]:
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
