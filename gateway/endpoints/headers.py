"""Which headers go to an endpoint: those that it lets pass, and never one that belongs to a connection, identifies a client, or
says what the request is in other words than its URL. Pure.
"""

from collections.abc import Collection, Iterable

from fairlane.workers.adapters.endpoints.headers import (
    HOP_BY_HOP,
    MAX_HEADERS_BYTES,
    MAX_TOTAL_HEADERS,
    NAME,
    OURS,
    VALUE,
    Header,
)

MAX_HEADERS = 64
MAX_SET = MAX_TOTAL_HEADERS - MAX_HEADERS - 1
"""In addition to those of clients, and a `Content-Type` that the gateway says for them."""
MAX_HEADER_CHARS = 8192
"""Of one value."""
MAX_CHARS = MAX_HEADERS_BYTES // 2 - 128
"""Of all that callers send, and of all that the operator sets: a worker takes both together, and that `Content-Type`."""
PASSING = ("accept", "accept-language", "content-type")
"""The headers that pass if the definition names none."""

OF_A_CONNECTION = HOP_BY_HOP | OURS
"""They are made for each hop and cannot be set."""
CREDENTIALS = frozenset(
    {
        "api-key",
        "authorization",
        "cookie",
        "cookie2",
        "proxy-authenticate",
        "proxy-authorization",
        "x-api-key",
        "x-goog-api-key",
    }
)
"""The operator's to set, never a caller's."""
_OF_OTHERS = frozenset(
    {
        "forwarded",
        "via",
        "x-client-ip",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-original-method",
        "x-original-uri",
        "x-original-url",
        "x-real-ip",
        "x-rewrite-url",
        "x-task-id",
        "true-client-ip",
        "cf-connecting-ip",
    }
)
"""Headers that servers trust from proxies: the origin of a request, and its original URL and method."""
_PREFIXES = ("proxy-", "x-fairlane-", "x-forwarded-", "x-envoy-", "sec-")


class BadHeader(ValueError):
    """A header that is rejected; the sentence says why."""


def passing_name(name: str) -> str:
    """Return the name of a header that callers may be allowed to send, in lower case. Raise BadHeader."""
    lower = _name(name)
    if lower in CREDENTIALS:
        raise BadHeader(
            f"{lower} identifies a client and never passes: set it in set_headers, for all clients"
        )
    if lower in OF_A_CONNECTION or lower in _OF_OTHERS or lower.startswith(_PREFIXES):
        raise BadHeader(f"{lower} never passes: it is for those who carry a request, not for who makes it")
    return lower


def own_header(name: str, value: str) -> Header:
    """Return a header that the operator sets. Raise BadHeader."""
    lower = _name(name)
    if lower in OF_A_CONNECTION:
        raise BadHeader(f"{lower} cannot be set: it is made for each request")
    return lower, _value(lower, value)


def passed_headers(headers: Iterable[Header], allowed: Collection[str]) -> list[Header]:
    """Return the headers of a caller, names in lower case. Raise BadHeader for one that may not pass: it would be missed."""
    found: list[Header] = []
    total = 0
    for name, value in headers:
        lower = _name(name)
        if lower not in allowed:
            passing = ", ".join(sorted(allowed)) or "none"
            raise BadHeader(f"The header {lower} may not pass to this endpoint; these may: {passing}")
        found.append((lower, _value(lower, value)))
        total += len(lower) + len(value)
    if len(found) > MAX_HEADERS:
        raise BadHeader(f"at most {MAX_HEADERS} headers may pass, not {len(found)}")
    if total > MAX_CHARS:
        raise BadHeader(f"headers may have {MAX_CHARS} characters together")
    return found


def _name(name: str) -> str:
    lower = name.lower()
    if not NAME.fullmatch(lower):
        raise BadHeader(f"{name[:40]!r} is no name of a header")
    return lower


def _value(name: str, value: str) -> str:
    found = value.strip(" \t")
    if not VALUE.fullmatch(found):
        raise BadHeader(f"the value of {name} must be one line of Latin-1 text, without control characters")
    if len(found) > MAX_HEADER_CHARS:
        raise BadHeader(f"the value of {name} may have {MAX_HEADER_CHARS} characters")
    return found
