"""A push service for tests: in a temporary folder, gone at exit whatever happens; and pushing to it the plain way."""

import atexit
import base64
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final
from urllib.parse import urlsplit

import http_ece
import pycurl
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pushops.sandbox.push import PushService
from tests import servers

SUBJECT: Final = "mailto:tests@pushops.dev"


@contextmanager
def push_service(*, decrypt: bool = True, endpoint_host: str | None = None) -> Iterator[PushService]:
    """Yield a started push service; stop and remove it afterwards."""
    service = PushService(servers.new_folder("pushops-push"))
    atexit.register(service.remove)
    try:
        service.start(decrypt=decrypt, endpoint_host=endpoint_host)
        yield service
    finally:
        service.remove()
        atexit.unregister(service.remove)


@dataclass(frozen=True)
class Sender:
    """A VAPID key and what one signs with it: nothing of pushops' own sending, so that each checks the other."""

    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @property
    def public(self) -> str:
        return _text(self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint))

    def authorization(self, endpoint: str, **claims: Any) -> str:
        """The header for an endpoint; claims may be replaced, ``t`` and ``k`` are right."""
        parts = urlsplit(endpoint)
        said = {"aud": f"https://{parts.netloc}", "exp": int(time.time()) + 3600, "sub": SUBJECT, **claims}
        head = _text(b'{"typ":"JWT","alg":"ES256"}') + "." + _text(json.dumps(said).encode())
        r, s = decode_dss_signature(self.key.sign(head.encode(), ec.ECDSA(SHA256())))
        return f"vapid t={head}.{_text(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}, k={self.public}"


@dataclass(frozen=True)
class Got:
    """What came back; status 0 and libcurl's error number where nothing did."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    error: int = 0
    http_version: int = 0


def encrypt(subscription: Mapping[str, Any], plaintext: bytes) -> bytes:
    keys = subscription["keys"]
    private = ec.generate_private_key(ec.SECP256R1())
    encrypted: bytes = http_ece.encrypt(
        plaintext, private_key=private, dh=_raw(keys["p256dh"]), auth_secret=_raw(keys["auth"]), version="aes128gcm"
    )
    return encrypted


def push(
    service: PushService,
    subscription: Mapping[str, Any],
    plaintext: bytes = b'{"message_id": "1"}',
    sender: Sender | None = None,
    *,
    curl: pycurl.Curl | None = None,
    http1: bool = False,
    timeout: float = 5.0,
    rewindable: bool = False,
    **headers: str | None,
) -> Got:
    """POST a message to a subscription as a sender would; headers are added, or left out with None."""
    endpoint = subscription["endpoint"]
    body = encrypt(subscription, plaintext)
    said: dict[str, str | None] = {
        "Authorization": (sender or Sender()).authorization(endpoint),
        "TTL": "60",
        "Content-Encoding": "aes128gcm",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return request(
        service, "POST", endpoint, said, body, curl=curl, http1=http1, timeout=timeout, rewindable=rewindable
    )


def request(
    service: PushService,
    method: str,
    url: str,
    headers: Mapping[str, str | None],
    body: bytes = b"",
    *,
    curl: pycurl.Curl | None = None,
    http1: bool = False,
    timeout: float = 5.0,
    rewindable: bool = False,
) -> Got:
    """One request over libcurl; a ``curl`` that is handed in keeps its connection for the next one.

    ``rewindable``: libcurl may send the body again, as it does where it is given all of it.
    """
    handle = curl or pycurl.Curl()
    handle.reset()
    received, found = BytesIO(), dict[str, str]()
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.CAINFO, str(service.ca_file))
    handle.setopt(pycurl.CONNECT_TO, [f"::127.0.0.1:{service.port}"])
    handle.setopt(pycurl.CUSTOMREQUEST, method)
    handle.setopt(pycurl.HTTPHEADER, [f"{name}: {value}" for name, value in headers.items() if value is not None])
    handle.setopt(pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1 if http1 else pycurl.CURL_HTTP_VERSION_2TLS)
    handle.setopt(pycurl.TIMEOUT_MS, int(timeout * 1000))
    handle.setopt(pycurl.WRITEFUNCTION, received.write)
    handle.setopt(pycurl.HEADERFUNCTION, lambda line: _keep(found, line))
    if rewindable:
        handle.setopt(pycurl.POSTFIELDS, body)
    elif method == "POST":
        handle.setopt(pycurl.UPLOAD, 1)
        handle.setopt(pycurl.INFILESIZE_LARGE, len(body))
        handle.setopt(pycurl.READFUNCTION, BytesIO(body).read)
    error = 0
    try:
        handle.perform()
    except pycurl.error as failed:
        error = failed.args[0]
    status, version = handle.getinfo(pycurl.RESPONSE_CODE), handle.getinfo(pycurl.INFO_HTTP_VERSION)
    if curl is None:
        handle.close()
    return Got(status, found, received.getvalue(), error, version)


def _keep(found: dict[str, str], line: bytes) -> None:
    name, colon, value = line.decode("latin-1").partition(":")
    if colon:
        found[name.lower()] = value.strip()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
