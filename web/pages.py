"""The web pages' files: known by name, read once, kept in memory.

A request's path is looked up in a table made of the files that the package holds. No path of the file system is ever made of
it, so there is nothing to traverse.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path

from starlette.responses import Response

PAGES = {
    "/": "playground/index.html",
    "/dashboard": "dashboard/index.html",
    "/docs": "docs/index.html",
    "/favicon.ico": "common/favicon.svg",
}
"""Paths that are not under `/static/`."""

STATIC = "/static/"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".ts": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}
"""The types of served files, by their endings. Other files of the folders are not served."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only scripts and styles from the gateway run, none inside a page, and no script can turn a text into HTML: the output of a
model stays text, even if a page has a bug."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-cache",
    "vary": "Accept-Encoding",
}
MIN_GZIP = 1024

WEB = Path(__file__).parent
"""The client for clients' own pages is in a folder of its own because it is a package for npm, too."""


@cache
def files() -> dict[str, Path]:
    """Return every served file by its path."""
    static, client = WEB / "static", WEB / "client"
    found = {STATIC + path.relative_to(static).as_posix(): path for path in static.rglob("*")}
    found |= {f"{STATIC}client/{path.name}": path for path in client.iterdir()}
    served = {name: path for name, path in found.items() if path.suffix in TYPES and path.suffix != ".html"}
    return served | {name: static / page for name, page in PAGES.items()}


@cache
def _read(path: Path) -> tuple[bytes, bytes | None, str]:
    """Return a file's bytes, the same with gzip if that saves some, and its hash."""
    body = path.read_bytes()
    packed = gzip.compress(body, 6, mtime=0) if len(body) >= MIN_GZIP else None
    return body, packed, hashlib.sha256(body).hexdigest()[:20]


def response_to(path: str, accept_encoding: str = "", if_none_match: str = "") -> Response | None:
    """Return the response to a GET of `path`; None if there is no such file.

    Browsers keep a file and ask each time whether it is still the same (`no-cache`, ETag, 304), so that a new version of the
    gateway is never run with files of the old one.
    """
    file = files().get(path)
    if file is None:
        return None
    body, packed, digest = _read(file)
    if packed is not None and "gzip" in accept_encoding:
        headers = {**HEADERS, "etag": f'"{digest}-gz"', "content-encoding": "gzip"}
        body = packed
    else:
        headers = {**HEADERS, "etag": f'"{digest}"'}
    known = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    if headers["etag"] in known:
        headers.pop("content-encoding", None)
        return Response(None, 304, headers)
    return Response(body, 200, headers | {"content-type": TYPES[file.suffix]})
