"""What an open gateway refuses: one without keys trusts whoever reaches it, so only this machine's own may.

Listening on loopback is not enough for that. A proxy on the same machine passes strangers on, and a web page
that the user visits can send requests to loopback through the user's browser, also under a host name that
resolves there.

What it cannot tell from this machine's own programs: a proxy or tunnel that speaks HTTP/1.1, rewrites Host and
adds no header of its own. Therefore `who_gets_in` says so at every start, and docs/proxies.md what to do.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from fairlane.gateway.hosts import is_loopback
from fairlane.gateway.settings import Settings

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
"""Headers by which a proxy gives itself away."""
SPECIAL_HEADERS = FORWARDING_HEADERS | {b"origin", b"sec-fetch-site", b"x-fairlane-user", b"x-fairlane-tier"}
"""Also those of web pages, and those by which a caller says who asks. Most requests have none of them."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a database has of keys, as far as it says who gets in."""

    exist: bool = False
    """There is or was a key or a token: so callers need a key."""
    keys: bool = False
    """There is or was a key of a caller."""
    tokens: bool = False
    """There is a worker token that is valid."""


NOTHING_HELD = Held()

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
    old_http: bool = False,
    websocket: bool = False,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
    path: str = "",
    site: str | None = None,
) -> str | None:
    """Why an open gateway refuses a request, or None when it does not. Each sentence says what to do.

    `forwarded`: any of FORWARDING_HEADERS is there. `old_http`: it is HTTP/1.0, which browsers and SDKs do not
    speak, and some proxies do unless told otherwise. Checked in this order: 1 proxies, 2 host names, 3 web
    pages (those of the gateway itself and of `allowed_origins` may call, none may be a worker), 4 bodies
    that a web page may send unasked. A form, which is one of these, is taken where a call wants one: browsers say by `origin` or
    `site` (`Sec-Fetch-Site`) that a page of another site sends it.
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
        wanted = kind == FORM and path.rstrip("/") in TAKE_FORMS
        if wanted and origin is None and site not in (None, "same-origin", "none"):
            return "This gateway has no keys and takes no forms from web pages; configure keys"
        if not wanted and kind != "application/json" and not kind.endswith("+json"):
            return "This gateway has no keys and takes only JSON; send Content-Type: application/json"
    return None


def who_gets_in(settings: Settings, held: Held = NOTHING_HELD) -> list[str]:
    """What an operator should know of who may use a gateway with these settings and such a database, one sentence each; [] when
    only keys decide.

    For `fairlane config check` and for the start.
    """
    if settings.keys or held.exist or not settings.loopback:
        if settings.workers or held.tokens or settings.upstreams:
            return []
        if settings.loopback and not settings.keys:
            return [
                "there are no worker tokens: workers need one (fairlane key create --worker; with --print for the configuration)"
            ]
        return [
            f"no worker tokens are configured: workers need the one that is made in {settings.data_dir} and printed at "
            "the first start (fairlane key create --worker --print makes one for the configuration)"
        ]
    worker = "" if settings.workers else " and connect as a worker, which reads what others ask"
    found = [
        f"no keys are configured: every program on this machine may do what an admin may{worker}; and so may whoever a proxy "
        "or tunnel here lets in, unless it says that it is one: configure keys first (fairlane key create admin=true --print)"
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
