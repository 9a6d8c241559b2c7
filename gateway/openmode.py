"""What an open gateway refuses: one without keys trusts whoever reaches it, so only this machine's own may.

Listening on loopback is not enough for that. A proxy on the same machine passes strangers on, and a web page
that the user visits can send requests to loopback through the user's browser, also under a host name that
resolves there.
"""

import re
from collections.abc import Collection

from fairlane.gateway.settings import is_loopback

FORWARDING_HEADERS = (
    b"forwarded",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
    b"x-client-ip",
    b"true-client-ip",
    b"cf-connecting-ip",
    b"via",
)
"""Headers by which a proxy gives itself away."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def host_name(host_header: str | None) -> str | None:
    """The name or address in a Host header, lower case and without port; None when it is no such thing."""
    found = _HOST.fullmatch(host_header or "")
    return found[1].strip("[]").lower() if found else None


def open_mode_refusal(
    host: str | None,
    origin: str | None,
    forwarded: bool,
    content_type: str | None,
    method: str,
    *,
    websocket: bool = False,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
) -> str | None:
    """Why an open gateway refuses a request, or None when it does not. Each sentence says what to do.

    `forwarded`: any of FORWARDING_HEADERS is there. Checked in this order: 1 proxies, 2 host names, 3 web
    pages (those of the gateway itself and of `allowed_origins` may call, none may be a worker), 4 bodies
    that a web page may send unasked.
    """
    # 1
    if forwarded:
        return "This gateway has no keys and takes no requests through a proxy; configure keys"
    # 2
    name = host_name(host)
    if name is None or not (is_loopback(name) or name in allowed_hosts):
        return "This gateway has no keys and answers only to localhost; configure keys or allowed_hosts"
    # 3
    if origin is not None:
        if websocket:
            return "This gateway has no keys and takes no workers from web pages"
        own = {f"http://{host}".lower(), f"https://{host}".lower()}
        if origin.lower() not in own and origin not in allowed_origins and "*" not in allowed_origins:
            return "This gateway has no keys and takes no requests from this web page; see cors_origins"
    # 4
    if method in ("POST", "PUT", "PATCH") and content_type is not None:
        kind = content_type.partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            return "This gateway has no keys and takes only JSON; send Content-Type: application/json"
    return None
