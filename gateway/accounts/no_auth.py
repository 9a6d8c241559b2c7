"""The no-auth mode: a gateway without keys trusts every request, so it accepts only those of programs on this machine.

Listening on loopback is not enough for that. A proxy on the same machine forwards requests of strangers, and a web page that the
user visits can send requests to loopback through the user's browser, also under a host name that resolves there.

A proxy or tunnel that speaks HTTP/1.1, rewrites Host and adds no header of its own looks like a program on this machine.
Therefore `access_warnings` warns at every start, and docs/production.md describes what to do.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from fairlane.gateway.settings import Settings
from fairlane.workers.hosts import is_loopback

FORWARDING_HEADERS = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-client-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"via",
    }
)
"""Headers that proxies add."""
SPECIAL_HEADERS = FORWARDING_HEADERS | {b"origin", b"sec-fetch-site", b"x-fairlane-user", b"x-fairlane-tier"}
"""Also those of web pages, and those that name user and tier. Most requests have none of them."""


@dataclass(frozen=True, slots=True)
class KeyPresence:
    """Which kinds of keys a database has."""

    exist: bool = False
    """There is or was a key or a token, so callers need a key."""
    keys: bool = False
    """There is or was a key of a caller."""
    tokens: bool = False
    """There is a valid worker token."""


NO_KEYS = KeyPresence()

FORM = "multipart/form-data"
TAKE_FORMS = frozenset(
    {
        *("/v1/files", "/v1/audio/transcriptions", "/v1/audio/translations"),
        *("/v1/images/edits", "/v1/images/variations"),
    }
)
"""Paths of calls whose bodies are forms."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def host_name(host_header: str | None) -> str | None:
    """Return the name or address in a Host header, in lower case and without port; None if it is invalid."""
    found = _HOST.fullmatch(host_header or "")
    return found[1].strip("[]").lower() if found else None


def no_auth_rejection(
    host: str | None,
    origin: str | None,
    forwarded: bool,
    content_type: str | None,
    method: str,
    *,
    old_http: bool = False,
    websocket: bool = False,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
    takes_form: bool = False,
    site: str | None = None,
) -> str | None:
    """Return why a request is rejected in no-auth mode, or None. Each sentence says what to do.

    `forwarded`: one of FORWARDING_HEADERS is present. `old_http`: HTTP/1.0, which browsers and SDKs do not speak, and some
    proxies do by default. Checked in this order: 1 proxies, 2 host names, 3 web pages (those of the gateway and of
    `allowed_origins` may call, none may be a worker), 4 bodies that a web page can send without CORS. Calls that take a form
    accept it: with `origin` or `site` (`Sec-Fetch-Site`), browsers report that a page of another site sends it.
    """
    # 1
    if forwarded:
        return "This gateway has no keys and takes no requests through a proxy; configure keys"
    if old_http:
        return "This gateway has no keys and takes no HTTP/1.0, as some proxies send; configure keys or use HTTP/1.1"
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
        wanted = kind == FORM and takes_form
        if wanted and origin is None and site not in (None, "same-origin", "none"):
            return "This gateway has no keys and takes no forms from web pages; configure keys"
        if not wanted and kind != "application/json" and not kind.endswith("+json"):
            return "This gateway has no keys and takes only JSON; send Content-Type: application/json"
    return None


def access_warnings(settings: Settings, presence: KeyPresence = NO_KEYS) -> list[str]:
    """Return warnings about access without keys, one sentence each; [] if only keys decide. For `fairlane config check` and the
    start."""
    if settings.keys or presence.exist or not settings.loopback:
        if settings.workers or presence.tokens or settings.upstreams:
            return []
        if settings.loopback and not settings.keys:
            return [
                "there are no worker tokens: workers need one (fairlane key create --worker; with --print for the configuration)"
            ]
        return [
            "no worker tokens are configured: workers need the one that the first start writes to "
            f"{settings.data_dir}/first-worker-token.secret (fairlane key create --worker --print makes one for the "
            "configuration)"
        ]
    worker = "" if settings.workers else " and connect as a worker, which reads the requests of others"
    found = [
        f"no keys are configured: every program on this machine may do what an admin may{worker}; so may every client of a proxy "
        "or tunnel here that does not identify itself: configure keys first (fairlane key create scopes=admin --print)"
    ]
    if "*" in settings.cors_origins:
        found.append(
            "no keys are configured and cors_origins allows *: so may every web page that is opened on this machine"
        )
    strange = [host for host in settings.allowed_hosts if not is_loopback(host)]
    if strange:
        found.append(
            f"no keys are configured and allowed_hosts lets in requests for {', '.join(strange)} without any"
        )
    return found
