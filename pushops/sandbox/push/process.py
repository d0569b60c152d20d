"""The service as seen from outside: starting and stopping its process, and telling it what to do."""

import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pushops.errors import PushopsError
from pushops.sandbox import processes
from pushops.sandbox.account import ENVIRONMENT, Account
from pushops.sandbox.folders import claim, claimed, release
from pushops.sandbox.push.config import Config, read, read_or_make
from pushops.sandbox.push.script import place
from pushops.sandbox.push.subscribers import Subscribers
from pushops.sandbox.push.tls import CA_FILE, make_certificates
from pushops.sandbox.push.vendors import HOST_PATTERNS, Vendor

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 60
CONTROL_SECONDS: Final = 60
PID_FILE: Final = "push.pid"
MODULE: Final = "pushops.sandbox.push"


class PushService:
    """A push service that lives in ``folder`` and outlives the process that starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.account = Account(os.geteuid(), os.getegid())
        self.log = self.folder / "server.log"

    # Its process

    def start(self, *, decrypt: bool | None = None, endpoint_host: str | None = None) -> None:
        """Start unless it runs; returns when it answers. It keeps its ports, unless another took them meanwhile."""
        if self.running():
            return
        claim(self.folder, self.account)
        changes = {"decrypt": decrypt, "endpoint_host": endpoint_host}
        read_or_make(self.folder, **{name: value for name, value in changes.items() if value is not None})
        make_certificates(self.folder)
        self._launch()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, as a crash would; returns when it is gone."""
        self._end(signal.SIGKILL)

    def running(self) -> bool:
        return self.pid() is not None

    def pid(self) -> int | None:
        """Its pid, or None unless the process there really is this service."""
        pid = processes.read_pid(self.folder / PID_FILE) if claimed(self.folder) else None
        marker = f"--folder {self.folder}"
        return pid if pid is not None and processes.is_ours(pid, self.account.uid, marker) else None

    def remove(self) -> None:
        """Stop it, however it takes, and remove its folder."""
        try:
            self.stop()
        except PushopsError:
            self.kill()
        release(self.folder)

    # How a sender reaches it

    @property
    def ca_file(self) -> Path:
        return self.folder / CA_FILE

    @property
    def port(self) -> int:
        return self._config().port

    def connect_to(self) -> dict[str, str]:
        """Where each host pattern really is: the value of PUSHOPS_CONNECT_TO."""
        return dict.fromkeys(HOST_PATTERNS, f"{HOST}:{self.port}")

    # What it is told

    def issue(
        self,
        service: str,
        count: int = 1,
        application_server_key: str | None = None,
        *,
        distinct_keys: bool = False,
        host: str | None = None,
    ) -> list[dict[str, Any]]:
        """New subscriptions as a browser's ``toJSON()`` gives them; made here, from the secret in the folder.

        ``host``: another of the vendor's, such as jmt17.google.com. Key pairs are 64 that repeat, unless distinct.
        """
        makers, vendor = Subscribers(self._config().secret), Vendor(service)
        return list(makers.issue(vendor, count, application_server_key, distinct_keys=distinct_keys, host=host))

    def script(self, name: str, **fields: Any) -> None:  # noqa: ANN401 - fields of Script, as JSON
        """Set a script, in front of the others: ``script("gone", host="fcm.googleapis.com", answer="fcm-410")``."""
        self.tell("set", script={"name": name, **fields})

    def mix(self, shares: Mapping[str, float], **fields: Any) -> None:  # noqa: ANN401 - fields of Script, as JSON
        """Answers for disjoint shares of the endpoints: ``mix({"*-410": 0.02, "*-404": 0.01})``."""
        starts = itertools.accumulate(shares.values(), initial=0.0)
        for (answer, share), start in zip(shares.items(), starts, strict=False):
            self.script(f"mix {answer}", answer=answer, share=share, start=start, salt="mix", **fields)

    def chosen(self, endpoints: Iterable[str], *, salt: str, share: float, start: float = 0.0) -> list[str]:
        """Those endpoints that a script with this salt (by default its name) and share strikes."""
        makers = Subscribers(self._config().secret)
        found = [(each, makers.find_url(each)) for each in endpoints]
        return [each for each, one in found if one and start <= place(salt, one.serial) < start + share]

    def clear(self, script: str | None = None) -> None:
        """Take a script away, or all of them."""
        self.tell("clear", **({} if script is None else {"script": script}))

    def outage(self, name: str | None) -> None:
        """Stage an outage in place of the one there is; None ends it."""
        self.tell("outage", name=name)

    def counts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.tell("counts")
        return found

    def reset_counts(self) -> None:
        self.tell("reset_counts")

    def accepted(self, endpoints: Iterable[str], message_id: str | None = None) -> list[int]:
        """How often each endpoint's messages (or that message) were accepted."""
        found: list[int] = self.tell("accepted", endpoints=list(endpoints), message_id=message_id)
        return found

    def received(self, endpoints: Iterable[str]) -> list[int]:
        """How many requests were read to their end, whatever was answered."""
        found: list[int] = self.tell("received", endpoints=list(endpoints))
        return found

    def messages(self, endpoint: str) -> list[dict[str, Any]]:
        """What waits for a subscriber, decrypted."""
        found: list[dict[str, Any]] = self.tell("messages", endpoint=endpoint)
        return found

    def unregister(self, endpoints: Iterable[str]) -> None:
        """Their users have unsubscribed: 410 from now on."""
        self.tell("unregister", endpoints=list(endpoints))

    def tell(self, command: str, **fields: Any) -> Any:  # noqa: ANN401 - JSON
        """One command of the control API; PushopsError with what it said if it refused."""
        config = self._config()
        connection = http.client.HTTPConnection(HOST, config.control_port, timeout=CONTROL_SECONDS)
        try:
            connection.request("POST", f"/{command}", json.dumps(fields), {"Authorization": f"Bearer {config.token}"})
            answer = connection.getresponse()
            value = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise PushopsError(f"expected the push service to answer, got {error}") from error
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise PushopsError(str(value.get("error")))
        return value

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def _config(self) -> Config:
        try:
            return read(self.folder)
        except FileNotFoundError:
            raise PushopsError("expected a push service in the sandbox, got none: pushops sandbox up") from None

    def _launch(self) -> None:
        arguments = [sys.executable, "-m", MODULE, "--folder", str(self.folder)]
        home = Path(__file__).parents[3]  # so that it is this pushops, installed or not
        try:
            done = subprocess.run(
                arguments,
                cwd=self.folder,
                env={**ENVIRONMENT, "PYTHONPATH": str(home)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=START_SECONDS,
                check=False,
                umask=0o077,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise PushopsError(f"expected the push service to start, got {error}") from error
        if done.returncode or not self.running():
            raise PushopsError(f"expected the push service to start, got {done.stderr.strip() or self.log_tail()}")

    def _end(self, number: signal.Signals) -> None:
        pid = self.pid()
        if pid is not None:
            processes.send(pid, number)
            processes.wait_until(lambda: not self.running(), 30, "the stopped push service to go")
