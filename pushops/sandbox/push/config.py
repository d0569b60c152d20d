"""What a push service's folder says about it: ports, the secret all endpoints follow from, the control token."""

import json
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from pushops.sandbox.folders import write_private
from pushops.sandbox.push.vendors import MOZILLA_HOST, decode, encode

FILE: Final = "service.json"


@dataclass(frozen=True)
class Config:
    """``port`` and ``control_port``: 0 before the first start. ``endpoint_host``: what browsers are given."""

    secret_text: str
    token: str
    port: int = 0
    control_port: int = 0
    decrypt: bool = True
    endpoint_host: str = MOZILLA_HOST

    @property
    def secret(self) -> bytes:
        return decode(self.secret_text)


def read_or_make(folder: Path, **changes: Any) -> Config:  # noqa: ANN401 - fields of Config
    """The folder's configuration, changed; written if it is new or changed."""
    path = folder / FILE
    old = Config(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
    new = replace(old or Config(encode(secrets.token_bytes(32)), secrets.token_urlsafe(24)), **changes)
    if new != old:
        write_private(path, json.dumps(asdict(new)))
    return new


def read(folder: Path) -> Config:
    return Config(**json.loads((folder / FILE).read_text(encoding="utf-8")))
