"""The server that everybody posts to: nginx where it is installed, else the sandbox's push service."""

import datetime as dt
import http.client
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from cryptography.hazmat.primitives.serialization import Encoding

from bench.house import wait_for
from pushops.sandbox.push import PushService
from pushops.sandbox.push.subscribers import Subscribers
from pushops.sandbox.push.tls import certify, make_authority
from pushops.sandbox.push.vendors import MOZILLA_HOST, Vendor

HOST: Final = "127.0.0.1"
SERVER: Final = "BENCH_SERVER"  # "sandbox" leaves nginx out where there is one
PLACES: Final = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
DAY: Final = dt.timedelta(days=1)
# Its answer is a vendor's with as little work as can be: 201, where the message lies, and the TTL that was asked for.
CONFIG: Final = """
daemon off; worker_processes 1; pid nginx.pid; error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 600s; http2_max_concurrent_streams 512;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  server {{
    listen {host}:{port} ssl http2; ssl_certificate server.pem; ssl_certificate_key server.pem;
    location / {{ add_header Location https://{name}/m/1; add_header TTL $http_ttl; return 201; }}
  }}
  server {{ listen {host}:{status_port}; location / {{ stub_status; }} }}
}}"""


class Web(Protocol):
    """``received`` counts the requests so far."""

    @property
    def name(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def ca_file(self) -> Path: ...

    def received(self) -> int: ...

    def issue(self, count: int, key: str) -> list[dict[str, Any]]: ...


@dataclass
class Nginx:
    port: int
    status_port: int
    ca_file: Path
    name: str = "nginx"
    looks: int = 0  # these count, too

    def received(self) -> int:
        self.looks += 1
        with closing(http.client.HTTPConnection(HOST, self.status_port, timeout=10)) as connection:
            connection.request("GET", "/")
            lines = connection.getresponse().read().decode().splitlines()
        return int(lines[2].split()[2]) - self.looks

    def issue(self, count: int, key: str) -> list[dict[str, Any]]:
        """It asks for no secret: endpoints and keys as the sandbox would issue them."""
        return list(Subscribers(secrets.token_bytes(32)).issue(Vendor.MOZILLA, count, key, distinct_keys=True))


@dataclass
class Sandbox:
    service: PushService
    name: str = "sandbox"

    @property
    def port(self) -> int:
        return self.service.port

    @property
    def ca_file(self) -> Path:
        return self.service.ca_file

    def received(self) -> int:
        return int(self.service.counts()["accepted"])

    def issue(self, count: int, key: str) -> list[dict[str, Any]]:
        return self.service.issue(Vendor.MOZILLA, count, key, distinct_keys=True)


@contextmanager
def serving(folder: Path) -> Iterator[Web]:
    """A server for the length of the block; ``folder`` is there and ours."""
    program = None if os.environ.get(SERVER) == "sandbox" else shutil.which("nginx", path=PLACES)
    if program is None:
        service = PushService(folder / "push")
        try:
            service.start(decrypt=False)
            yield Sandbox(service)
        finally:
            service.remove()
    else:
        with _nginx(program, folder / "nginx") as found:
            yield found


@contextmanager
def _nginx(program: str, folder: Path) -> Iterator[Nginx]:
    folder.mkdir()
    authority, now = make_authority("pushops bench"), dt.datetime.now(dt.UTC)
    web = Nginx(_free_port(), _free_port(), folder / "ca.pem")
    web.ca_file.write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_text(certify(authority, (MOZILLA_HOST, "localhost"), now - DAY, now + DAY))
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(host=HOST, port=web.port, status_port=web.status_port, name=MOZILLA_HOST))
    command = [program, "-p", f"{folder}/", "-c", str(config)]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_for(lambda: _listens(process, web.port, folder / "log"), 10, "nginx to listen")
        yield web
    finally:
        process.terminate()
        process.wait(20)


def _listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> bool | None:
    if process.poll() is not None:
        raise RuntimeError(f"expected nginx to run, got exit {process.returncode}:\n{log.read_text()[-2000:]}")
    with socket.socket() as found:
        return True if found.connect_ex((HOST, port)) == 0 else None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])
