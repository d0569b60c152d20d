"""Small TLS servers in threads that do to a client what no well-behaved server does."""

import atexit
import contextlib
import functools
import socket
import ssl
import struct
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import h2.config
import h2.connection
import h2.events
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "fcm.googleapis.com"
OTHER_HOST = "updates.push.services.mozilla.com"
PATIENCE = 10.0


class Authority:
    """A certificate authority of its own, kept in a folder; ``ca_file`` is what to trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's authority")])
        self._certificate = self._certify(self._name, self._key, None)
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def context(
        self, *names: str, alpn: tuple[str, ...] = ("http/1.1",), days: int = 30, newest: ssl.TLSVersion | None = None
    ) -> ssl.SSLContext:
        """For a server of these names, offering these protocols."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test's push service")])
        certificate = self._certify(subject, key, names or (HOST, OTHER_HOST), days)
        path = self._folder / f"{certificate.serial_number}.pem"
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        context.set_alpn_protocols(list(alpn))
        if newest is not None:
            context.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # that is why it is offered
                context.minimum_version = context.maximum_version = newest
        return context

    def _certify(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, names: tuple[str, ...] | None, days: int = 30
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=60))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
        )
        if names:
            alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        return builder.sign(self._key, hashes.SHA256())


@functools.cache
def authority() -> Authority:
    """One for the whole run: making keys takes longer than most tests here."""
    folder = tempfile.TemporaryDirectory(prefix="pushops-authority-")
    atexit.register(folder.cleanup)
    return Authority(Path(folder.name))


class Line:
    """One connection that speaks HTTP/1.1, byte by byte."""

    def __init__(self, peer: "Peer", tls: ssl.SSLSocket) -> None:
        self.peer = peer
        self.tls = tls

    def read_request(self) -> bytes | None:
        """The body of a whole request, once the last byte of it is here; None at the end of the connection."""
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = self.tls.recv(65536)
            if not chunk:
                return None
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            chunk = self.tls.recv(65536)
            if not chunk:
                return None
            body += chunk
        self.peer.record(head, body)
        return body

    def send(self, data: bytes) -> None:
        self.tls.sendall(data)

    def answer(self, status: str = "201 Created", headers: str = "", body: bytes = b"") -> None:
        self.send(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body)

    def reset(self) -> None:
        self.tls.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.tls.close()

    def hang(self) -> None:
        """Until the client is gone or the peer is closed."""
        with contextlib.suppress(OSError):
            while not self.peer.closing.is_set() and self.tls.recv(65536):
                pass


class Line2:
    """One connection that speaks HTTP/2; ``h2`` is the library's, for what a good server would not say."""

    def __init__(self, peer: "Peer", tls: ssl.SSLSocket) -> None:
        self.peer = peer
        self.tls = tls
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, validate_outbound_headers=False)
        )
        self._heads: dict[int, bytes] = {}
        self._bodies: dict[int, bytes] = {}
        self._complete: list[int] = []
        self.h2.initiate_connection()
        self.flush()

    def read_request(self) -> int | None:
        """The number of a stream whose body has arrived; None at the end of the connection."""
        while not self._complete:
            data = self.tls.recv(65536)
            if not data:
                return None
            for event in self.h2.receive_data(data):
                self._note(event)
            self.flush()
        return self._complete.pop(0)

    def _note(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._heads[event.stream_id] = b"\r\n".join(b": ".join(header) for header in event.headers)
            self._bodies[event.stream_id] = b""
        elif isinstance(event, h2.events.DataReceived):
            self._bodies[event.stream_id] += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.peer.record(self._heads.pop(event.stream_id), self._bodies.pop(event.stream_id))
            self._complete.append(event.stream_id)

    def answer(
        self, stream: int, status: str = "201", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        self.h2.send_headers(stream, [(":status", status), *(headers or {}).items()], end_stream=not body)
        if body:
            self.h2.send_data(stream, body, end_stream=True)
        self.flush()

    def flush(self) -> None:
        self.tls.sendall(self.h2.data_to_send())


class Peer:
    """A server that hands each connection to ``script`` in its own thread; ``bodies`` are the whole ones it got."""

    def __init__(
        self, context: ssl.SSLContext | None, script: Callable[..., None], *, line: type[Line] | type[Line2] = Line
    ) -> None:
        self.bodies: list[bytes] = []
        self.heads: list[bytes] = []
        self.connections = 0
        self.most_connections = 0
        self.closing = threading.Event()
        self._context = context
        self._script = script
        self._line = line
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def record(self, head: bytes, body: bytes) -> None:
        with self._lock:
            self.heads.append(head)
            self.bodies.append(body)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._listener.close()
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(PATIENCE)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), self._counted(plain) as raw:
            if self._context is None:
                self._script(raw)
                return
            with self._context.wrap_socket(raw, server_side=True) as tls, self._counted(tls):
                self._script(self._line(self, tls))

    @contextlib.contextmanager
    def _counted(self, plain: socket.socket) -> Iterator[socket.socket]:
        with self._lock:
            self._open.add(plain)
            if not isinstance(plain, ssl.SSLSocket):
                self.connections += 1
                self.most_connections = max(self.most_connections, len(self._open))
        try:
            yield plain
        finally:
            with self._lock:
                self._open.discard(plain)
            plain.close()
