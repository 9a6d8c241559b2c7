"""Names of hosts. Pure."""

import ipaddress

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""The usual names, recognized without parsing an address."""


def is_loopback(host: str) -> bool:
    """Return whether a host name or address, without port, means this machine only."""
    if host.lower() in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
