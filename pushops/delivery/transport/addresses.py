"""Which addresses a push service may have: public unicast ones, whatever form they are written in."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

# IANA's special-purpose registry for IPv4 (RFC 6890 and later), multicast and the old class E.
_REFUSED_V4: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_GLOBAL_V6: Final = ip_network("2000::/3")
# Of the global unicast space: protocol assignments (Teredo and ORCHID are in it), documentation and 6to4, which
# names an IPv4 address that a relay would send us to.
_REFUSED_V6: Final = tuple(ip_network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_NAT64: Final = ip_network("64:ff9b::/96")  # what DNS64 makes of an IPv4 address (RFC 6052)
_ISATAP: Final = (0x00005EFE, 0x02005EFE)  # the upper half of an interface id that ends in an IPv4 address (RFC 5214)


def is_public(text: str) -> bool:
    """Whether an address, as the resolver wrote it, lies in the public internet. Total: what cannot be read is not."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return _is_public_v4(address) if isinstance(address, IPv4Address) else _is_public_v6(address)


def _is_public_v4(address: IPv4Address) -> bool:
    return not any(address in network for network in _REFUSED_V4)


def _is_public_v6(address: IPv6Address) -> bool:
    """A mapped or translated address is as public as the IPv4 address in it."""
    if address.ipv4_mapped is not None:
        return _is_public_v4(address.ipv4_mapped)
    if address in _NAT64:
        return _is_public_v4(_last_bits(address))
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP and not _is_public_v4(_last_bits(address)):
        return False
    return address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)


def _last_bits(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)
