"""The payload of a task of type `http`, as the gateway makes it: one call of an endpoint, and its rules. Pure."""

import re
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from fairlane.workers.adapters.endpoints.addresses import Network, read_networks
from fairlane.workers.adapters.endpoints.headers import Header, outgoing
from fairlane.workers.adapters.targets import BadTarget, Pattern, Target, read_target

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""A call by one of these may be made twice (RFC 9110, 9.2.2)."""
MAX_RESPONSE_BYTES = 16 * 1024 * 1024
WITH_BODIES = frozenset({"POST", "PUT", "PATCH"})
"""Servers know that their requests have a body (RFC 9110, 9.3)."""
_METHOD = re.compile(r"[A-Z][A-Z-]{0,31}", re.ASCII)
_NO_CALLS = frozenset({"CONNECT", "TRACE"})
"""One makes a proxy of the server, the other repeats its request, credentials included."""

_Text = Annotated[str, Meta(max_length=8192)]


class _Rules(msgspec.Struct, rename="camel"):
    pattern: _Text
    timeout_ms: Annotated[int, Meta(ge=1, le=24 * 3600 * 1000)]
    max_response_bytes: Annotated[int, Meta(ge=0, le=MAX_RESPONSE_BYTES)]
    allow_private: Annotated[list[_Text], Meta(max_length=64)] = []


class _Payload(msgspec.Struct, rename="camel"):
    endpoint: Annotated[str, Meta(max_length=200)]
    method: str
    url: _Text
    rules: _Rules
    headers: Annotated[list[tuple[str, str]], Meta(max_length=1024)] = []
    body: str | None = None
    body_base64: bytes | None = None


_decoder = msgspec.json.Decoder(_Payload)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to one place, and what holds for it."""

    endpoint: str
    method: str
    target: Target
    headers: tuple[Header, ...]
    body: bytes
    timeout_s: float
    max_response_bytes: int
    allowed: tuple[Network, ...]
    """Networks in which private addresses may be connected to."""

    @property
    def idempotent(self) -> bool:
        return self.method in IDEMPOTENT

    @property
    def last(self) -> bool:
        """Return whether its connection must serve no other call: a server that expects no body with this method would read the
        body as the next request, which is not checked."""
        return bool(self.body) and self.method not in WITH_BODIES


def read_call(payload: bytes) -> Call:
    """Return the call for a task. Raise ValueError, with a message, for an invalid or forbidden one, such as a URL that does not
    match the pattern of its endpoint."""
    try:
        asked = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # which quote no values
        raise ValueError(f"The payload is not one of a call: {error}") from error
    if not _METHOD.fullmatch(asked.method) or asked.method in _NO_CALLS:
        raise ValueError("The method is not allowed")
    if asked.body is not None and asked.body_base64 is not None:
        raise ValueError("The call has both body and bodyBase64")
    rules = asked.rules
    target, pattern = read_target(asked.url), Pattern.read(rules.pattern)
    if not pattern.matches(target):
        raise BadTarget("a URL must match the pattern of its endpoint")
    return Call(
        asked.endpoint,
        asked.method,
        target,
        tuple(outgoing(asked.headers)),
        asked.body_base64 or (asked.body or "").encode(),
        rules.timeout_ms / 1000,
        rules.max_response_bytes,
        read_networks(rules.allow_private),
    )
