"""A real Firefox without a window, driven over Marionette: it subscribes, receives and unsubscribes."""

import http.server
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pushops.sandbox.push import PushService
from pushops.sandbox.valkey import free_port

PROGRAM: Final = shutil.which("firefox-esr") or shutil.which("firefox")
SECONDS: Final = 60.0
_PAGE: Final = b"<!doctype html><title>subscribe</title>"
_WORKER: Final = b"""
const tell = async (text) => {
  const pages = await self.clients.matchAll({includeUncontrolled: true})
  pages.forEach((page) => page.postMessage(text))
}
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()))
self.addEventListener('push', (event) => event.waitUntil(
  // Without a desktop there may be nobody to show it.
  self.registration.showNotification('a message').catch(() => null)
    .then(() => tell(event.data ? event.data.text() : null))
))
"""
_SUBSCRIBE: Final = """
const [key, done] = arguments
const go = async () => {
  window.received = []
  navigator.serviceWorker.addEventListener('message', (event) => window.received.push(event.data))
  const registration = await navigator.serviceWorker.register('/worker.js')
  await navigator.serviceWorker.ready
  return registration.pushManager.subscribe({userVisibleOnly: true, applicationServerKey: key})
}
go().then((subscription) => done({ok: subscription.toJSON()}), (error) => done({error: String(error)}))
"""
_UNSUBSCRIBE: Final = """
const [done] = arguments
navigator.serviceWorker.ready.then((registration) => registration.pushManager.getSubscription())
  .then((subscription) => subscription.unsubscribe())
  .then((left) => done({ok: left}), (error) => done({error: String(error)}))
"""


class Firefox:
    """One page of one browser, whose push server is ours."""

    def __init__(self, marionette: socket.socket, page: str) -> None:
        self._socket = marionette
        self._number = 0
        self._read()
        # The sandbox's authority is not in the browser's store.
        self._command("WebDriver:NewSession", acceptInsecureCerts=True)
        self._command("WebDriver:SetTimeouts", script=int(SECONDS * 1000))
        self._command("WebDriver:Navigate", url=page)

    def subscribe(self, application_server_key: str) -> dict[str, Any]:
        """Register the page's service worker and subscribe it: what the page would send to its site."""
        found: dict[str, Any] = self._run(_SUBSCRIBE, application_server_key)
        return found

    def unsubscribe(self) -> bool:
        return bool(self._run(_UNSUBSCRIBE))

    def received(self, count: int) -> list[str]:
        """The texts of the messages that the service worker was woken for, once there are so many."""
        deadline = time.monotonic() + SECONDS
        while True:
            found: list[str] = self._command("WebDriver:ExecuteScript", script="return window.received", args=[])
            if len(found) >= count or time.monotonic() > deadline:
                return found
            time.sleep(0.05)

    def _run(self, script: str, *arguments: object) -> Any:
        found = self._command("WebDriver:ExecuteAsyncScript", script=script, args=list(arguments))
        assert "error" not in found, found["error"]
        return found["ok"]

    def _command(self, name: str, **parameters: object) -> Any:
        self._number += 1
        message = json.dumps([0, self._number, name, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, value = self._read()
        assert error is None, error
        return value["value"] if set(value) == {"value"} else value

    def _read(self) -> Any:
        length = b""
        while (digit := self._take(1)) != b":":
            length += digit
        return json.loads(self._take(int(length)))

    def _take(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self._socket.recv(size - len(found))
            if not part:
                raise EOFError("expected Firefox to go on, got the end of its connection")
            found += part
        return found


@contextmanager
def firefox(service: PushService) -> Iterator[Firefox]:
    """A browser that subscribes at ``service``; about three seconds."""
    port = free_port()
    # Firefox writes to its profile until the very end.
    with _site() as page, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        _write_preferences(Path(profile), service.port, port)
        arguments = [str(PROGRAM), "--headless", "--marionette", "--no-remote", "--profile", profile]
        environment = {**os.environ, "HOME": profile}
        silent = subprocess.DEVNULL
        with subprocess.Popen(arguments, env=environment, stdout=silent, stderr=silent) as browser:
            try:
                with _connect(port, browser) as marionette:
                    yield Firefox(marionette, page)
            finally:
                browser.terminate()


def _write_preferences(profile: Path, push_port: int, marionette_port: int) -> None:
    preferences: dict[str, object] = {
        "marionette.port": marionette_port,
        "remote.prefs.recommended": False,  # they turn push off
        "dom.push.serverURL": f"wss://localhost:{push_port}/",
        "permissions.default.desktop-notification": 1,
        "services.settings.server": "data:,#remote-settings-dummy/v1",
        "app.update.auto": False,
        "browser.aboutwelcome.enabled": False,
        "browser.shell.checkDefaultBrowser": False,
        "datareporting.policy.dataSubmissionEnabled": False,
        "network.captive-portal-service.enabled": False,
        "network.connectivity-service.enabled": False,
    }
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in preferences.items()]
    (profile / "user.js").write_text("\n".join(lines))


def _connect(port: int, browser: "subprocess.Popen[bytes]") -> socket.socket:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        except ConnectionRefusedError:
            assert browser.poll() is None, "expected Firefox to start, got its end"
            assert time.monotonic() < deadline, "expected Firefox to listen, got nothing"
            time.sleep(0.05)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        script = self.path == "/worker.js"
        body = _WORKER if script else _PAGE
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if script else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        pass


@contextmanager
def _site() -> Iterator[str]:
    """A page at localhost, which is as good as https to a service worker."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
