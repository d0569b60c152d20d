"""Every way in which libcurl ends without an answer, to a fault.

What decides is whether the body began to leave: before that, nothing was delivered; after it, nobody knows, unless the
peer said that it did not look (RFC 9113, sections 6.8 and 8.7) or answered something that is no answer.
"""

from typing import Final

import pycurl

from pushops.delivery.answer import Fault

# libcurl's numbers that pycurl has no name for (curl/curl.h).
_SSL_CLIENTCERT: Final = 98
_TOO_LARGE: Final = 100
_ECH_REQUIRED: Final = 101

# The peer did speak, and what it said is no HTTP: it has the body, and a second one would be no better answered.
BAD_RESPONSE: Final = frozenset(
    {
        pycurl.E_UNSUPPORTED_PROTOCOL,  # HTTP/0.9: no status line at all
        pycurl.E_FTP_WEIRD_SERVER_REPLY,  # of HTTP's too: the number kept its first name
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

# What libcurl has to say where it would send a second time, may not, and knows of no error: on HTTP/2 the peer refused
# the stream by RST_STREAM or by a GOAWAY below its number (each other end has a text or another code, and is tested);
# on HTTP/1.1 it may just have closed politely after taking the body.
_NOT_REWOUND: Final = (pycurl.E_SEND_FAIL_REWIND, "necessary data rewind was not possible")
# How it says that the peer hung up while TLS was being agreed: a network's failure, not a certificate's.
_HUNG_UP: Final = ("Connection reset", "SSL_ERROR_SYSCALL", "unexpected eof", "Broken pipe", "timed out", "timeout")
_RESOLVING: Final = "Resolving timed out"


def fault_of(code: int, message: str, *, began: bool, multiplexed: bool = False) -> Fault:
    """The fault for libcurl's code and text. Total over all numbers.

    ``began``: libcurl took a byte of the body. ``multiplexed``: the connection is known to have spoken HTTP/2.
    """
    if began:
        return _after(code, message, multiplexed=multiplexed)
    if code in DNS or message.startswith(_RESOLVING):
        return Fault.DNS
    if code in ADDRESS:
        return Fault.ADDRESS
    if code in TLS and not any(text in message for text in _HUNG_UP):
        return Fault.TLS
    return Fault.CONNECT


def _after(code: int, message: str, *, multiplexed: bool) -> Fault:
    if multiplexed and (code, message) == _NOT_REWOUND:
        return Fault.CONNECT
    return Fault.BAD_RESPONSE if code in BAD_RESPONSE else Fault.AMBIGUOUS
