"""What both halves share: servers, the push service that everybody posts to, and the settings that lead there."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench import house
from bench.house import House
from bench.purge import enter
from bench.sending import web
from bench.sending.job import SUBJECT
from bench.sending.web import Web
from pushops.sandbox.push.vendors import MOZILLA_HOST

# When a ledger row was settled is when its transaction committed, and PostgreSQL is asked to remember that.
OPTIONS: Final = {**house.OPTIONS, "track_commit_timestamp": "on"}


@dataclass(frozen=True)
class Stage:
    """Servers that run. ``settings`` lead to the push service, and have no word on pace."""

    house: House
    web: Web

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "log_level": "warning",
            "ca_file": self.web.ca_file,
            "connect_to": json.dumps({MOZILLA_HOST: f"{web.HOST}:{self.web.port}"}),
            "vapid_subject": SUBJECT,
            "payload_store": f"file://{self.house.folder}/payloads",
        }

    def clone(self, template: str) -> None:
        """A fresh copy, right after a checkpoint."""
        self.house.clone(template)
        with self.house.admin() as conn:
            conn.execute("CHECKPOINT")


@contextmanager
def staged() -> Iterator[Stage]:
    """Servers for the length of the block; this process has their settings, and none of the caller's."""
    with house.opened(OPTIONS) as servers, web.serving(servers.folder) as server:
        enter(servers)
        stage = Stage(servers, server)
        os.environ.update(servers.environment(**stage.settings))
        yield stage
