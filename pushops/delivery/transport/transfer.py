"""One libcurl handle with its callbacks, used for one POST after another."""

import socket
from typing import Any, Final

import pycurl

from pushops.delivery.answer import BODY_MAX, Answer, Fault
from pushops.delivery.transport.faults import fault_of
from pushops.delivery.transport.headers import parse_headers
from pushops.delivery.transport.request import Request
from pushops.delivery.transport.routes import Route
from pushops.delivery.transport.rules import TransportRules

BODY_READ_MAX: Final = 64 * 1024  # beyond it the connection is given up; the status counts
HEADERS_MAX: Final = 32 * 1024
_EMPTY_LINE: Final = 2  # CR and LF
_AFTER_SCHEME: Final = len("https://")
_ABORT: Final = -1
_VERSIONS: Final = {1: "1.0", 2: "1.1", 3: "2"}
_FINAL: Final = range(200, 600)
_OK: Final = 0


class Transfer:
    """``begin`` a request, give ``curl`` to the multi handle, and ``finish`` when it is done."""

    def __init__(self, rules: TransportRules) -> None:
        self.curl = pycurl.Curl()
        self.request: Request[Any] | None = None
        self._rules = rules
        self._route: Route | None = None
        self._share: bool | None = None
        self._original: socket.socket | None = None
        self._forget()
        _configure(self.curl, rules)
        self.curl.setopt(pycurl.READFUNCTION, self._read)  # and no SEEKFUNCTION: what cannot be rewound is not re-sent
        self.curl.setopt(pycurl.HEADERFUNCTION, self._header)
        self.curl.setopt(pycurl.WRITEFUNCTION, self._write)
        self.curl.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)

    def begin(self, request: Request[Any], route: Route, *, share: bool) -> None:
        """``share``: wait for a connection that is being made instead of making one, since one carries many."""
        self._forget()
        self.request = request
        if share is not self._share:
            self._share = share
            self.curl.setopt(pycurl.PIPEWAIT, share)
        if route is not self._route:
            self._route = route
            self.curl.setopt(pycurl.CONNECT_TO, route.connect_to)
            self.curl.setopt(pycurl.PROXY, (self._rules.proxy or "") if route.proxied else "")
        self.curl.setopt(pycurl.URL, request.endpoint)
        self.curl.setopt(pycurl.REQUEST_TARGET, _target(request.endpoint))
        self.curl.setopt(pycurl.HTTPHEADER, _header_lines(request))
        self.curl.setopt(pycurl.POSTFIELDSIZE, len(request.body))

    def finish(self, code: int, message: str, *, multiplexed: bool) -> Answer:
        """What came of it, from libcurl's code (0 where it is content) and text; ``multiplexed`` as in ``fault_of``."""
        return self._answer(code, message, multiplexed)

    def rest(self) -> None:
        """Let go of a request."""
        self.request = None
        self._close_original()

    def close(self) -> None:
        self._close_original()
        self.curl.close()

    def _forget(self) -> None:
        self._sent = 0
        self._status_line = b""
        self._lines: list[bytes] = []
        self._header_bytes = 0
        self._headers_complete = False
        self._body = bytearray()
        self._body_bytes = 0
        self._refused_address = False

    def _answer(self, code: int, message: str, multiplexed: bool) -> Answer:
        status = self._status() if code == _OK or self._headers_complete else None
        fault = self._fault(code, message, multiplexed) if status is None else None
        return Answer(
            status,
            fault,
            parse_headers(self._lines),
            bytes(self._body),
            max(0.0, self.curl.getinfo(pycurl.TOTAL_TIME) - self.curl.getinfo(pycurl.PRETRANSFER_TIME)),
            _VERSIONS.get(self.curl.getinfo(pycurl.INFO_HTTP_VERSION), "") if status is not None else "",
        )

    def _status(self) -> int | None:
        """The final status, if libcurl read the same as stands there: it takes the first three of four digits."""
        status: int = self.curl.getinfo(pycurl.RESPONSE_CODE)
        written = self._status_line.split(None, 2)
        return status if status in _FINAL and written[1:2] == [b"%d" % status] else None

    def _fault(self, code: int, message: str, multiplexed: bool) -> Fault:
        if code == _OK:
            return Fault.BAD_RESPONSE
        if self._refused_address and not self._sent:
            return Fault.ADDRESS
        return fault_of(code, message, began=self._sent > 0, multiplexed=multiplexed)

    def _read(self, size: int) -> bytes:
        assert self.request is not None  # noqa: S101  (libcurl reads between begin and finish)
        chunk = self.request.body[self._sent : self._sent + size]
        self._sent += len(chunk)
        return chunk

    def _header(self, line: bytes) -> int | None:
        self._header_bytes += len(line)
        if self._header_bytes > HEADERS_MAX:
            return _ABORT
        if line[:5] == b"HTTP/":  # of a 1xx or a proxy's first, then of the answer
            self._status_line = line
            self._lines.clear()
            self._headers_complete = False
        elif len(line) <= _EMPTY_LINE:
            self._headers_complete = True
        elif not self._headers_complete:  # and no trailer
            self._lines.append(line)
        return None

    def _write(self, chunk: bytes) -> int | None:
        self._body_bytes += len(chunk)
        if len(self._body) < BODY_MAX:
            self._body += chunk[: BODY_MAX - len(self._body)]
        return _ABORT if self._body_bytes > BODY_READ_MAX else None

    def _open_socket(self, _purpose: int, address: Any) -> Any:  # noqa: ANN401  (pycurl's named tuple)
        """The second door: asked of every address that a name turned out to have, at the moment of connecting."""
        family, kind, protocol, place = address
        assert self._route is not None  # noqa: S101  (libcurl connects between begin and finish)
        if family not in {socket.AF_INET, socket.AF_INET6} or not self._route.allows(place[0], place[1]):
            self._refused_address = True
            return pycurl.SOCKET_BAD
        self._close_original()
        self._original = socket.socket(family, kind, protocol)
        return self._original

    def _close_original(self) -> None:
        """The socket that pycurl took a copy of."""
        if self._original is not None:
            self._original.close()
            self._original = None


def _target(endpoint: str) -> str:
    """Path and query as they are: libcurl would write the digits of a percent-encoding in upper case."""
    authority_end = endpoint.find("/", _AFTER_SCHEME)
    query = endpoint.find("?", _AFTER_SCHEME)
    if authority_end >= 0 and not 0 <= query < authority_end:
        return endpoint[authority_end:]
    return f"/{endpoint[query:]}" if query >= 0 else "/"


def _header_lines(request: Request[Any]) -> list[str]:
    """Names that libcurl would add of itself are there, or there without a value, which takes them out."""
    lines = [f"{name}: {value}" for name, value in request.headers.items()]
    return [*lines, "Expect:", "Accept:"]


def _configure(curl: pycurl.Curl, rules: TransportRules) -> None:
    """What is the same for every request."""
    for option, value in _options(rules).items():
        curl.setopt(option, value)
    curl.unsetopt(pycurl.CAPATH)


def _options(rules: TransportRules) -> dict[int, int | str]:
    return {
        pycurl.POST: 1,
        pycurl.PROTOCOLS: pycurl.PROTO_HTTPS,
        pycurl.FOLLOWLOCATION: 0,
        pycurl.PATH_AS_IS: 1,
        pycurl.NOSIGNAL: 1,
        pycurl.USERAGENT: rules.user_agent,
        # HTTP/2 where offered.
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_2TLS,
        pycurl.HTTP09_ALLOWED: 0,
        pycurl.TCP_KEEPALIVE: 1,
        pycurl.TCP_KEEPIDLE: 60,
        pycurl.TCP_KEEPINTVL: 30,
        pycurl.DNS_CACHE_TIMEOUT: 60,
        pycurl.CONNECTTIMEOUT_MS: round(rules.connect_timeout.total_seconds() * 1000),
        pycurl.TIMEOUT_MS: round(rules.deadline.total_seconds() * 1000),
        # TLS, with certificates from one file and from nowhere else.
        pycurl.SSLVERSION: pycurl.SSLVERSION_TLSv1_2,
        pycurl.SSL_VERIFYPEER: 1,
        pycurl.SSL_VERIFYHOST: 2,
        pycurl.CAINFO: rules.ca_file,
        pycurl.PROXY_CAINFO: rules.ca_file,
        # Set, if only to nothing: else libcurl looks in the environment.
        pycurl.PROXY: "",
        pycurl.NOPROXY: "",
        pycurl.NETRC: pycurl.NETRC_IGNORED,
    }
