"""Every way in which libcurl ends without an answer, to a fault.

What decides is whether the body began to leave: before that, nothing was delivered; after it, nobody knows, unless the
peer said that it did not look (RFC 9113, sections 6.8 and 8.7) or answered something that is no answer.
"""

from typing import Final

import pycurl

from pushops.delivery.answer import Fault

# libcurl's numbers that pycurl has no name for (curl/curl.h).
HTTP2_STREAM: Final = 92
_QUIC_CONNECT_ERROR: Final = 96
_PROXY: Final = 97
_SSL_CLIENTCERT: Final = 98
_TOO_LARGE: Final = 100
_ECH_REQUIRED: Final = 101

# The peer did speak, and what it said is no HTTP: it has the body, and a second one would be no better answered.
BAD_RESPONSE: Final = frozenset(
    {
        pycurl.E_UNSUPPORTED_PROTOCOL,  # HTTP/0.9: no status line at all
        pycurl.E_WEIRD_SERVER_REPLY if hasattr(pycurl, "E_WEIRD_SERVER_REPLY") else pycurl.E_FTP_WEIRD_SERVER_REPLY,
        pycurl.E_WRITE_ERROR,  # more headers than we read on for
        pycurl.E_BAD_CONTENT_ENCODING,
        pycurl.E_FILESIZE_EXCEEDED,
        _TOO_LARGE,
    }
)
TLS: Final = frozenset(
    {
        pycurl.E_SSL_CONNECT_ERROR,
        pycurl.E_SSL_ENGINE_NOTFOUND,
        pycurl.E_SSL_ENGINE_SETFAILED,
        pycurl.E_SSL_CERTPROBLEM,
        pycurl.E_SSL_CIPHER,
        pycurl.E_PEER_FAILED_VERIFICATION,
        pycurl.E_USE_SSL_FAILED,
        pycurl.E_SSL_ENGINE_INITFAILED,
        pycurl.E_SSL_CACERT_BADFILE,
        pycurl.E_SSL_SHUTDOWN_FAILED,
        pycurl.E_SSL_CRL_BADFILE,
        pycurl.E_SSL_ISSUER_ERROR,
        pycurl.E_SSL_PINNEDPUBKEYNOTMATCH,
        pycurl.E_SSL_INVALIDCERTSTATUS,
        _SSL_CLIENTCERT,
        _ECH_REQUIRED,
    }
)
DNS: Final = frozenset({pycurl.E_COULDNT_RESOLVE_HOST, pycurl.E_COULDNT_RESOLVE_PROXY})
# The text of an endpoint that passed our parser and not libcurl's.
ADDRESS: Final = frozenset({pycurl.E_URL_MALFORMAT})

# How libcurl says that a stream was refused, by RST_STREAM or by a GOAWAY below its number.
_REFUSED: Final = "refused by server"
# How it says that the peer hung up while TLS was being agreed: a network's failure, not a certificate's.
_HUNG_UP: Final = ("Connection reset", "SSL_ERROR_SYSCALL", "unexpected eof", "Broken pipe", "timed out", "timeout")
_RESOLVING: Final = "Resolving timed out"


def fault_of(code: int, message: str, *, began: bool) -> Fault:
    """The fault for libcurl's code and text. ``began``: libcurl took a byte of the body. Total over all numbers."""
    if began:
        return _after(code, message)
    if code in DNS or message.startswith(_RESOLVING):
        return Fault.DNS
    if code in ADDRESS:
        return Fault.ADDRESS
    if code in TLS and not any(text in message for text in _HUNG_UP):
        return Fault.TLS
    return Fault.CONNECT


def _after(code: int, message: str) -> Fault:
    if _REFUSED in message:
        return Fault.CONNECT
    return Fault.BAD_RESPONSE if code in BAD_RESPONSE else Fault.AMBIGUOUS
