"""Names of hosts, and what they mean for HTTP clients. Pure."""

import ipaddress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

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


def client_options(url: str) -> dict[str, Any]:
    """Return the options that each httpx2 client has: it keeps no cookies, because many callers share it, and uses no proxy of
    the environment if the URL is of this machine."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    mounts = {f"all://{host}": None} if is_loopback(parts.hostname or "") else {}
    return {"cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])), "mounts": mounts}
