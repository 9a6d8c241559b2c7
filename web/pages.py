"""The web pages' files: known by name, read once, kept in memory.

A request's path is looked up in a table made of the files that the package holds. No path of the file system is ever made of
it, so there is nothing to traverse.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

Headers = list[tuple[bytes, bytes]]

PAGES = {
    "/": "playground/index.html",
    "/dashboard": "dashboard/index.html",
    "/docs": "docs/index.html",
    "/favicon.ico": "common/favicon.svg",
}
"""Paths that are not under `/static/`."""

STATIC = "/static/"
CLIENT = "client/"
"""The client for callers' own pages, in a folder of its own because it is a package for npm, too."""
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".ts": b"text/plain; charset=utf-8",
    ".txt": b"text/plain; charset=utf-8",
}
"""What is served, by its ending; anything else in the folders is not."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only scripts and styles from the gateway run, none inside a page, and no script can turn a text into HTML: the output of a
model stays text, even if a page has a bug."""

SECURITY: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
]
SMALLEST_GZIP = 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's status, headers and body."""

    status: int
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class _File:
    kind: bytes
    body: bytes
    packed: bytes | None
    etag: str


class Pages:
    """Answers requests for pages and their files."""

    def __init__(self) -> None:
        self._sources = _sources()

    @property
    def paths(self) -> list[str]:
        """Every path that is answered, in order."""
        return sorted(self._sources)

    def answer(
        self, path: str, accept_encoding: str | None = None, if_none_match: str | None = None
    ) -> Answer | None:
        """Return the answer to a GET of `path`; None if there is no such file.

        Browsers keep a file and ask each time whether it is still the same (`no-cache`, ETag, 304), so that a new version of
        the gateway is never run with files of the old one.
        """
        if path not in self._sources:
            return None
        file = _load(path)
        packed = file.packed if _takes_gzip(accept_encoding) else None
        etag = file.etag if packed is None else f"{file.etag}-gz"
        headers = [
            *SECURITY,
            (b"cache-control", b"no-cache"),
            (b"etag", f'"{etag}"'.encode()),
            (b"vary", b"Accept-Encoding"),
        ]
        if _is_known(if_none_match, etag):
            return Answer(304, headers, b"")
        headers.append((b"content-type", file.kind))
        if packed is not None:
            headers.append((b"content-encoding", b"gzip"))
        return Answer(200, headers, packed or file.body)


@cache
def _sources() -> dict[str, Traversable]:
    """Return every served file by its path."""
    web = files("fairlane.web")  # also when it is installed from a wheel
    sources = {**_walk(web / "static", ""), **_walk(web / "client", CLIENT)}
    found = {STATIC + name: source for name, source in sources.items() if not name.endswith(".html")}
    return found | {path: sources[name] for path, name in PAGES.items() if name in sources}


def _walk(folder: Traversable, prefix: str) -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            found |= _walk(entry, name + "/")
        elif _ending(name) in TYPES:
            found[name] = entry
    return found


def _ending(name: str) -> str:
    return name[name.rfind(".") :]


@cache
def _load(path: str) -> _File:
    source = _sources()[path]
    body = source.read_bytes()
    packed = gzip.compress(body, 6, mtime=0) if len(body) >= SMALLEST_GZIP else None
    return _File(TYPES[_ending(source.name)], body, packed, hashlib.sha256(body).hexdigest()[:20])


def _takes_gzip(accept_encoding: str | None) -> bool:
    for part in (accept_encoding or "").lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _is_known(if_none_match: str | None, etag: str) -> bool:
    known = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
    return f'"{etag}"' in known or known == ["*"]
