"""Which addresses a call may connect to: those of the public internet, and the private ones that an endpoint allows. Pure.

The tables are IANA's registries of special-purpose addresses, kept here because Python's `is_global` means something else in each
release. Forms that carry an IPv4 address are judged by that one, so that none of them is a way around.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_SPECIAL = {
    "0.0.0.0/8": "an unspecified address",
    "10.0.0.0/8": "a private address",
    "100.64.0.0/10": "a private address of a provider",
    "127.0.0.0/8": "a loopback address",
    "168.63.129.16/32": "a cloud's metadata service",
    "169.254.0.0/16": "a link-local address, as metadata services have",
    "172.16.0.0/12": "a private address",
    "192.0.0.0/24": "an address of a protocol",
    "192.0.2.0/24": "an address of documentation",
    "192.88.99.0/24": "a relay's address",
    "192.168.0.0/16": "a private address",
    "198.18.0.0/15": "an address of benchmarks",
    "198.51.100.0/24": "an address of documentation",
    "203.0.113.0/24": "an address of documentation",
    "224.0.0.0/4": "a multicast address",
    "240.0.0.0/4": "a reserved address",
    "::/128": "an unspecified address",
    "::1/128": "a loopback address",
    "fc00::/7": "a private address",
    "fe80::/10": "a link-local address",
    "fec0::/10": "a private address",
    "ff00::/8": "a multicast address",
    "2001::/23": "an address of a protocol or a tunnel",
    "2001:db8::/32": "an address of documentation",
    "2002::/16": "an address of a tunnel",
    "3ffe::/16": "a reserved address",
    "3fff::/20": "an address of documentation",
}
_REFUSED = [(ip_network(text), why) for text, why in _SPECIAL.items()]
_UNICAST_6 = IPv6Network("2000::/3")
"""All that is given to anybody. What lies beyond is reserved, or one of the forms below."""
_NAT64 = IPv6Network("64:ff9b::/96")
"""How a network of IPv6 alone reaches the others: the last 32 bits are an IPv4 address."""
_LOCALHOST = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
"""What the name leads to on most machines."""
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The third quarter of an address whose last one is an IPv4 address in a site's tunnel."""


def read_address(text: str) -> Address:
    """An address as it is connected to: `::ffff:a.b.c.d` is a.b.c.d. Raise ValueError."""
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def addresses_said(host: str) -> list[Address]:
    """Return the addresses of a host that needs no lookup: a literal address, or this machine's for `localhost` and names below
    it. [] for other names, which are checked when they are connected to."""
    if host == "localhost" or host.endswith(".localhost"):
        return list(_LOCALHOST)
    try:
        return [read_address(host.strip("[]"))]
    except ValueError:
        return []


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks such as `10.0.0.0/8`. Raise ValueError."""
    return tuple(ip_network(text) for text in texts)


def why_refused(address: Address, allowed: Sequence[Network]) -> str:
    """Return why an address must not be connected to (`a private address`), or ''. Addresses in `allowed` networks may be, by
    themselves or by the IPv4 address that NAT64 carries."""
    if any(address in network for network in allowed):
        return ""
    if address in _NAT64:
        return why_refused(IPv4Address(int(address) & 0xFFFFFFFF), allowed)
    why = next((why for network, why in _REFUSED if address in network), "")
    if why or isinstance(address, IPv4Address):
        return why
    if address.scope_id is not None:
        return "a link-local address"
    if address not in _UNICAST_6:
        return "a reserved address"
    if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
        return "an address of a tunnel"
    return ""
