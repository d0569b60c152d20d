"""The vendors that are played, the hosts they answer for, and the shapes of their endpoints."""

import base64
import hashlib
from enum import StrEnum
from typing import Final
from urllib.parse import quote, unquote


class Vendor(StrEnum):
    """Whose push service an endpoint belongs to."""

    FCM = "fcm"
    MOZILLA = "mozilla"
    APPLE = "apple"
    WNS = "wns"


# The hosts that the service answers for, in the spelling of PUSHOPS_CONNECT_TO: exact, "*." suffix, "#" for digits.
HOST_PATTERNS: Final = (
    "fcm.googleapis.com",
    "jmt#.google.com",
    "updates.push.services.mozilla.com",
    "*.push.apple.com",
    "*.notify.windows.com",
)
# The names in its certificate; browsers reach the WebSocket as push.services.mozilla.com or localhost.
CERTIFIED: Final = (
    "fcm.googleapis.com",
    "*.google.com",
    "updates.push.services.mozilla.com",
    "push.services.mozilla.com",
    "*.push.apple.com",
    "*.notify.windows.com",
    "localhost",
)
MOZILLA_HOST: Final = "updates.push.services.mozilla.com"
ISSUED_HOST: Final = {
    Vendor.FCM: "fcm.googleapis.com",
    Vendor.MOZILLA: MOZILLA_HOST,
    Vendor.APPLE: "web.push.apple.com",
    Vendor.WNS: "wns2-db5p.notify.windows.com",
}
CORE_BYTES: Final = 32  # what a token says; the rest of its length is there because a vendor's tokens are that long


def vendor_of(host: str) -> Vendor | None:
    """Whose host this is; what browsers may be pointed at counts as Mozilla's. None for a host that is not served."""
    name = host.partition(":")[0]
    if name == "fcm.googleapis.com" or (name.startswith("jmt") and name.endswith(".google.com")):
        return Vendor.FCM
    if name.endswith(".push.apple.com"):
        return Vendor.APPLE
    if name.endswith(".notify.windows.com"):
        return Vendor.WNS
    if name in {MOZILLA_HOST, "push.services.mozilla.com", "localhost", "127.0.0.1"}:
        return Vendor.MOZILLA
    return None


def path_of(vendor: Vendor, core: bytes) -> str:
    """The path and query of the endpoint whose token says ``core``: as long and as odd as the vendor's own."""
    text, filler = encode(core), encode(hashlib.sha512(core).digest())
    match vendor:
        case Vendor.FCM:
            return f"/fcm/send/{text[:11]}:APA91b{text[11:]}{filler}"
        case Vendor.MOZILLA:
            return f"/wpush/v2/gAAAAABn{text}{filler}"
        case Vendor.APPLE:
            return f"/Q{text}{filler}"
        case Vendor.WNS:  # standard base64, percent-encoded in lower case: an endpoint is bytes, never to be tidied up
            raw = base64.b64encode(b"\x05\x06\x00" + core + hashlib.sha512(core).digest()).decode()
            return "/w/?token=" + quote(raw, safe="").replace("%2B", "%2b").replace("%2F", "%2f").replace("%3D", "%3d")


def core_of(vendor: Vendor, path: str) -> bytes | None:
    """What the token in a path says; None unless every byte of the path is as it was issued."""
    try:
        core = _core(vendor, path)
    except ValueError:
        return None
    return core if len(core) == CORE_BYTES and path_of(vendor, core) == path else None


def _core(vendor: Vendor, path: str) -> bytes:
    match vendor:
        case Vendor.FCM:
            return decode(path[10:21] + path[28:60])
        case Vendor.MOZILLA:
            return decode(path[18:61])
        case Vendor.APPLE:
            return decode(path[2:45])
        case Vendor.WNS:
            return base64.b64decode(unquote(path[10:]))[3 : 3 + CORE_BYTES]


def encode(raw: bytes) -> str:
    """Unpadded base64url, RFC 4648 section 5."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Bytes of unpadded base64url; ValueError for anything else."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
