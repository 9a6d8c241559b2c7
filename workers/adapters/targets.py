"""URLs of other people's interfaces, parsed so strictly that every parser agrees, and the patterns that they
must match. Pure; the gateway looks at a URL with it when a task comes, and the worker before it calls.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote_to_bytes

MAX_URL_CHARS = 8192
PORTS = {"http": 80, "https": 443}
"""The schemes there are, with the port of each."""

_PARTS = re.compile(
    r"(?P<scheme>[A-Za-z]+)://(?P<authority>[^/?]*)(?P<path>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL
)
_AUTHORITY = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>.*))?", re.DOTALL)
_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
_PATH = re.compile(r"(?:/(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*")
_QUERY = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]-]|%[0-9A-Fa-f]{2})*")
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class BadTarget(ValueError):
    """A rejected URL or pattern, with a message."""


@dataclass(frozen=True, slots=True)
class Target:
    """A URL in its one form: scheme and host in lower case, the port always given, nothing encoded that need not be."""

    scheme: str
    host: str
    """A name, an IPv4 address, or an IPv6 address in brackets."""
    port: int
    path: str
    query: str = ""

    @property
    def origin(self) -> str:
        """Return scheme, host and port, without the default port of the scheme."""
        port = "" if self.port == PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}"

    @property
    def url(self) -> str:
        """Return the URL to call, in place of the client's spelling."""
        return f"{self.origin}{self.path}" + (f"?{self.query}" if self.query else "")


def read_target(url: str) -> Target:
    """The target of a URL. Raise BadTarget for whatever two programs may read differently: a user in it, a fragment,
    a backslash, control characters, dot segments (also encoded, also encoded twice), encoded slashes, empty segments, hosts that
    are not plain ASCII, addresses in odd forms, ports in odd forms."""
    if len(url) > MAX_URL_CHARS:
        raise BadTarget(f"a URL may have {MAX_URL_CHARS} characters, not {len(url)}")
    if not url.isascii():
        raise BadTarget(
            "a URL must be ASCII: percent-encode its path and query, and write its host in its xn-- form"
        )
    if "#" in url:
        raise BadTarget("a URL must have no fragment (#…): it would never reach the server")
    if "\\" in url:
        raise BadTarget("a URL must have no backslash")
    parts = _PARTS.fullmatch(url)
    if parts is None or parts["scheme"].lower() not in PORTS:
        raise BadTarget("a URL must be absolute, such as https://host/path, with http or https")
    scheme = parts["scheme"].lower()
    host, port = _authority(scheme, parts["authority"])
    query = parts["query"] or ""
    if not _QUERY.fullmatch(query):
        raise BadTarget("the query of a URL holds characters that must be percent-encoded")
    return Target(scheme, host, port, _path(parts["path"] or "/"), query)


def _authority(scheme: str, authority: str) -> tuple[str, int]:
    if "@" in authority:
        raise BadTarget("a URL must name no user and no password")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None or not parts["host"]:
        raise BadTarget("a URL must name a host, such as https://host/path")
    port = PORTS[scheme]
    if parts["port"] is not None:
        if not _PORT.fullmatch(parts["port"]) or int(parts["port"]) > 65535:
            raise BadTarget("the port of a URL must be a number from 1 to 65535, without zeros before it")
        port = int(parts["port"])
    return _host(parts["host"].lower()), port


def _host(host: str) -> str:
    if host.startswith("["):
        try:
            address = ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise BadTarget("what stands in brackets must be an IPv6 address") from None
        if address.scope_id is not None:
            raise BadTarget("an IPv6 address in a URL must have no zone")
        return f"[{address.compressed}]"
    if _NUMBER.fullmatch(
        host.rpartition(".")[2]
    ):  # parsers that read the last label as a number read an address
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise BadTarget("an IPv4 address in a URL must be four plain numbers, such as 10.0.0.1") from None
    if not _NAME.fullmatch(host):
        raise BadTarget(
            "the host of a URL must be a plain name, such as api.example.com, without a dot at its end"
        )
    return host


def _path(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise BadTarget("the path of a URL holds characters that must be percent-encoded")
    decoded = unquote_to_bytes(path)
    if unquote_to_bytes(decoded) != decoded:  # servers behind servers may decode it more than once
        raise BadTarget("the path of a URL must not be percent-encoded twice")
    if decoded.count(b"/") != path.count("/") or b"\\" in decoded:
        raise BadTarget("the path of a URL must have no encoded slash or backslash")
    if any(byte < 0x20 or byte == 0x7F for byte in decoded):
        raise BadTarget("the path of a URL must have no control characters")
    _check_segments(path)
    _check_segments(decoded.decode("latin-1"))
    return _ESCAPE.sub(_plain, path)


def _check_segments(path: str) -> None:
    segments = path.split("/")[1:]
    if "" in segments[:-1]:
        raise BadTarget("the path of a URL must have no empty segments (//)")
    for segment in segments:
        if segment.partition(";")[0].strip() in (".", ".."):
            raise BadTarget("the path of a URL must have no segments . and ..")


def _plain(escape: re.Match[str]) -> str:
    """What need not be encoded is plain, the rest in capitals: so a URL has one form."""
    char = chr(int(escape[1], 16))
    return char if char in _UNRESERVED else escape[0].upper()


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which URLs are meant: one origin, and a path in which `*` stands for one whole segment, or at its end for all that follows,
    also nothing. A query is always allowed. Reading one raises BadTarget."""

    text: str
    """Its one form."""
    origin: str
    """That of its targets."""
    segments: tuple[str, ...]
    """Of the path; `*` is any."""

    @classmethod
    def read(cls, text: str) -> Self:
        """The pattern of a text such as `https://host:8080/v1/images/*`."""
        if "?" in text:
            raise BadTarget("a pattern has no query: any query is allowed")
        target = read_target(text)
        segments = target.path.split("/")[1:]
        for segment in segments:
            if "*" in segment and segment != "*":
                raise BadTarget(
                    "in a pattern, * stands for a whole segment of the path, such as /users/*/images/*"
                )
        return cls(target.url, target.origin, tuple(segments))

    def matches(self, target: Target) -> bool:
        """Whether this URL is meant."""
        said = target.path.split("/")[1:]
        if self.segments[-1] == "*":
            said = [*said[: len(self.segments) - 1], "*"] if len(said) >= len(self.segments) else []
        return (
            target.origin == self.origin
            and len(said) == len(self.segments)
            and all(
                wanted == part or (wanted == "*" and part)
                for wanted, part in zip(self.segments, said, strict=True)
            )
        )

    @property
    def precision(self) -> tuple[bool, ...]:
        """Return a key for sorting: of two patterns that match the same URL, the greater one is more exact, segment by
        segment."""
        return (*(segment != "*" for segment in self.segments), self.segments[-1] != "*")
