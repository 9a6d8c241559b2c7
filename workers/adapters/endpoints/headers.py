"""Which headers go out with a call, and which come back with its answer. Pure."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2

Header = tuple[str, str]

MAX_TOTAL_HEADERS = 128
MAX_HEADERS_BYTES = 32 * 1024

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("http2-settings", "expect"),
    }
)
"""They are about one connection (RFC 9110, 7.6.1). `Expect` is one of them: a body is sent immediately."""
OURS = frozenset({"host", "content-length", "accept-encoding"})
"""They follow from the call itself: where it goes, what its body is, and what we can read."""
CREDENTIALS_OF_ANSWERS = frozenset({"set-cookie", "set-cookie2", "authentication-info"})
"""They are meant for this worker, which calls with the operator's credentials, not for clients."""

NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def outgoing(headers: Iterable[Header]) -> list[Header]:
    """Return the headers that pass, names in lower case. Raise ValueError, with a message that quotes no value, for an invalid
    header: a line break in one would begin another."""
    given = [(name.lower(), value.strip(" \t")) for name, value in headers]
    if len(given) > MAX_TOTAL_HEADERS or sum(len(n) + len(v) for n, v in given) > MAX_HEADERS_BYTES:
        raise ValueError(
            f"There are more than {MAX_TOTAL_HEADERS} headers, or {MAX_HEADERS_BYTES} characters of them"
        )
    for name, value in given:
        if not NAME.fullmatch(name):
            raise ValueError("A header's name is invalid")
        if not VALUE.fullmatch(value):
            raise ValueError(f"The header {name} is not one line of Latin-1 text")
    stays = HOP_BY_HOP | OURS | _named_by_connection(given)
    return [(name, value) for name, value in given if name not in stays and not name.startswith("proxy-")]


def incoming(headers: "httpx2.Headers", *, decoded: bool) -> list[Header]:
    """Those of an answer that its caller gets, names in lower case. `decoded`: the body is not as the server encoded it."""
    pairs = headers.multi_items()
    stays = HOP_BY_HOP | CREDENTIALS_OF_ANSWERS | _named_by_connection(pairs)
    if decoded:
        stays |= {"content-encoding", "content-length"}
    return [(name, value) for name, value in pairs if name not in stays and not name.startswith("proxy-")]


def _named_by_connection(headers: Iterable[Header]) -> set[str]:
    return {
        member.strip().lower()
        for name, value in headers
        if name == "connection"
        for member in value.split(",")
    }
