"""Raw ASGI, as much of it as the hot calls need: headers, a bounded body, an answer in two messages."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qs

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.limits import anthropic_limit_headers, limit_headers
from fairlane.gateway.accounts.no_auth import SPECIAL_HEADERS
from fairlane.gateway.errors import (
    ApiError,
    ClientGone,
    Headers,
    bad_request,
    speaks_anthropic,
    too_large,
    unauthorized,
)
from fairlane.queues.limits import RateLimitStatus
from fairlane.workers.tracing import Span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
NO_STORE: tuple[bytes, bytes] = (b"cache-control", b"no-store")
SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
BODY_S = 30.0
"""For a body that is held whole; for one that is not, between two parts of it."""
STREAMED_S = 3600.0
"""For a body that is not held."""
MAX_QUERY_FIELDS = 20
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
WRITE_CHUNK = 128 * 1024
"""Bytes of an answer that are written at once."""


CONNECTION = "fairlane.connection"
"""Where the ASGI scope holds the `WatchedConnection`."""


class WatchedConnection(Protocol):
    """A client's connection that reports its loss."""

    def watch(self, on_lost: Callable[[], None] | None) -> bool:
        """Call `on_lost` when the client is gone (None: stop). Return False if it is gone already."""
        ...


class AnswerBroken(Exception):
    """An answer that has begun and cannot go on; its cause says why."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"the answer to {request_id} cannot go on")
        self.request_id = request_id


class Whole:
    """Whoever `receive` and `send` belong to when the server is ours and nothing stands between: takes and gives bodies whole."""

    __slots__ = ()

    def take_body(self) -> bytes | None:
        """The body, if all of it has come and none of it was received."""
        raise NotImplementedError

    def respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Write the answer in one piece. False: it cannot be written now, nothing was done."""
        raise NotImplementedError

    def begin(self, status: int, headers: Headers) -> bool:
        """Begin the answer, whose head leaves with its first part. False: it cannot be written now, nothing was done."""
        raise NotImplementedError

    def forget_head(self) -> None:
        """Drop what is left of the request's head, the ASGI scope too: the answer has begun and will take long."""
        raise NotImplementedError

    @property
    def may_write(self) -> bool:
        """Whether the answer has begun and its client reads what is written."""
        raise NotImplementedError

    def write_more(self, body: bytes) -> None:
        """Write a part of the answer, while it may be written."""
        raise NotImplementedError


class Request:
    """One HTTP request."""

    __slots__ = (
        "_query",
        "began",
        "caller",
        "headers",
        "id",
        "link_owner",
        "method",
        "on_revoked",
        "owner_key",
        "path",
        "path_params",
        "plain",
        "rate_limits",
        "receive",
        "revoked",
        "route",
        "scope",
        "send",
        "span",
        "started",
        "status",
        "submits",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.path_params: dict[str, str] = {}
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        """By their names in lower case."""
        self.plain = SPECIAL_HEADERS.isdisjoint(self.headers)
        """Whether it has none of SPECIAL_HEADERS."""
        self.id = self._said_id() or b"req_" + os.urandom(12).hex().encode()
        self.started = False
        self.status = 499
        """Of the answer; 499 until it begins: the caller left before."""
        self.began = time.monotonic()
        self.span: Span | None = None
        """Where traces are made; the tasks of the request belong to it."""
        self.rate_limits: RateLimitStatus | None = None
        """What is left of the caller's limits: answers of OpenAI's calls tell it, whatever they are."""
        self.route = "other"
        """The path's pattern, when there is such a call."""
        self.submits = False
        """Whether the call submits a task."""
        self.caller: Caller | None = None
        """Whose call it is, while it is open (`InFlightRequests`)."""
        self.owner_key: tuple[str | None, str] | None = None
        self.link_owner: tuple[str | None, str] | None = None
        """Who else it counts for: the owner of the task whose link is read."""
        self.revoked = False
        """Whether the caller's key was taken away while the call was open."""
        self.on_revoked: Callable[[], None] | None = None
        self._query: dict[str, list[str]] | None = None

    def own_headers(self) -> Headers:
        """What each answer has: the request's id; on OpenAI's calls also how long it took until now, ms, as there."""
        named = (b"x-request-id", self.id)
        if not self.path.startswith("/v1/"):
            return [named]
        if self.anthropic:
            return [named, (b"request-id", self.id), *self._limits(), *self._anthropic_limits()]
        took = (b"openai-processing-ms", b"%d" % round((time.monotonic() - self.began) * 1000))
        return [named, took, *self._limits()]

    def _limits(self) -> Headers:
        on_v1 = self.rate_limits is not None and self.path.startswith("/v1/")
        return limit_headers(self.rate_limits) if on_v1 and self.rate_limits else []

    def _anthropic_limits(self) -> Headers:
        return [] if self.rate_limits is None else anthropic_limit_headers(self.rate_limits, time.time())

    @property
    def anthropic(self) -> bool:
        """Whether the client speaks Anthropic's Messages API."""
        return speaks_anthropic(self.path, self.header(b"anthropic-version"))

    @property
    def key_header(self) -> str | None:
        """What the header `authorization` says; on /v1 a key may stand in `x-api-key`, too, where Anthropic's clients put it."""
        said = self.header(b"authorization")
        if said is not None or not self.path.startswith("/v1/"):
            return said
        key = self.header(b"x-api-key")
        return None if key is None else f"Bearer {key}"

    def proof(self, name: bytes) -> str | None:
        """A header's value, as `header`, but for `authorization`: that is `key_header`."""
        return self.key_header if name == b"authorization" else self.header(name)

    @property
    def address(self) -> str:
        """Of the client that connected; '' where there is none, as on a Unix socket."""
        return str((self.scope.get("client") or ("",))[0])

    def header(self, name: bytes) -> str | None:
        """A header's value; `name` in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def says_any_of(self, names: Collection[bytes]) -> bool:
        """Whether it has any of these headers; `names` in lower case."""
        return not self.headers.keys().isdisjoint(names)

    def _said_id(self) -> bytes | None:
        """The caller's own id of the request, if it is one that a log line may hold."""
        said = self.headers.get(b"x-request-id")
        return said if said is not None and _REQUEST_ID.fullmatch(said) else None

    def query(self, name: str) -> str | None:
        """The last value of a parameter. Raises ApiError(400) when there are absurdly many."""
        values = self._parameters().get(name)
        return values[-1] if values else None

    def check_query(self, *known: str) -> None:
        """Refuse other parameters than these, and any that is given twice: for calls that would do or tell more than was
        asked for. Raises ApiError(400)."""
        for name, values in self._parameters().items():
            if name not in known:
                raise bad_request(f"there is no parameter {name}: {', '.join(known)}", name)
            if len(values) > 1:
                raise bad_request(f"{name} is given twice", name)

    def _parameters(self) -> dict[str, list[str]]:
        if self._query is None:
            text = self.scope["query_string"].decode("latin-1")
            try:
                self._query = parse_qs(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
            except ValueError:
                raise bad_request(f"The query may hold at most {MAX_QUERY_FIELDS} parameters") from None
        return self._query

    async def json_body(self, limit: int) -> bytes:
        """Return the whole body, which must say that it is JSON. Raise ApiError (415, 413, 408) or ClientGone."""
        said = self.headers.get(b"content-type", b"")
        if said != JSON[1]:
            content_type = said.decode("latin-1").partition(";")[0].strip().lower()
            if content_type != "application/json" and not content_type.endswith("+json"):
                raise ApiError(
                    415, "UNSUPPORTED_MEDIA_TYPE", "Send JSON with the header Content-Type: application/json"
                )
        length = self.headers.get(b"content-length")
        if length is not None and length.isdigit() and (len(length) > 18 or int(length) > limit):
            raise too_large(limit)
        whole = getattr(self.receive, "__self__", None)
        if isinstance(whole, Whole) and (body := whole.take_body()) is not None:
            if len(body) > limit:
                raise too_large(limit)
            if self.revoked:
                raise unauthorized()
            return body
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S):
                more = True
                while more:
                    message = await self._next()
                    part: bytes = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise too_large(limit)
                    parts.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise ApiError(408, "REQUEST_TIMEOUT", f"The body did not arrive within {BODY_S:.0f} s") from None
        if self.revoked:
            raise unauthorized()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def body_parts(self, limit: int) -> AsyncGenerator[bytes, None]:
        """The body as it comes: nothing of it is held, and no more of it is read than whoever asks takes.

        Raises ApiError (413, 408; 401 where the key was taken away) or ClientGone.
        """
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and (len(length) > 18 or int(length) > limit):
            raise too_large(limit)
        end, size, more = time.monotonic() + STREAMED_S, 0, True
        while more:
            patience = min(BODY_S, end - time.monotonic())
            try:
                async with asyncio.timeout(patience):
                    message = await self._next()
            except TimeoutError:
                raise _too_slow(patience) from None
            if self.revoked:
                raise unauthorized()
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > limit:
                raise too_large(limit)
            yield part

    async def _next(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message

    def revoke(self) -> None:
        """The caller's key was taken away: whoever makes the answer is told once, and ends it."""
        self.revoked = True
        on_revoked, self.on_revoked = self.on_revoked, None
        if on_revoked is not None:
            on_revoked()

    def watch_disconnect(self, on_gone: Callable[[], None]) -> "DisconnectWatcher":
        """Notice when the caller leaves; whoever asks closes what is given."""
        return DisconnectWatcher(self, on_gone)

    def gone(self) -> Exception:
        """Why a `DisconnectWatcher` ended the wait for an answer: the client left, or its key was taken away."""
        return unauthorized() if self.revoked else ClientGone()

    async def start(self, status: int, headers: Headers) -> None:
        """Begin the answer."""
        self.started = True
        self.status = status
        await self.send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *self.own_headers()]}
        )

    def begin(self, status: int, headers: Headers) -> bool:
        """Begin the answer where that can be done at once; the head leaves with the first part. False: nothing was done."""
        whole = getattr(self.send, "__self__", None)
        if not isinstance(whole, Whole):
            return False
        if not whole.begin(status, [*headers, *self.own_headers()]):
            return False
        self.started, self.status = True, status
        return True

    def forget_head(self) -> None:
        """Drop the headers and the query, and the scope where it is ours: a long answer needs them no more."""
        self.headers = {}
        self._query = None
        whole = getattr(self.send, "__self__", None)
        if isinstance(whole, Whole):
            whole.forget_head()
        else:
            self.scope["headers"].clear()

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Answer with a whole body."""
        if len(body) > WRITE_CHUNK:
            await self.respond_in_parts(status, [body], headers)
            return
        length = (b"content-length", b"%d" % len(body))
        whole = getattr(self.send, "__self__", None)
        if isinstance(whole, Whole):
            self.started, self.status = True, status
            fields = headers if status in (204, 304) else [*headers, length]
            if whole.respond(status, [*fields, *self.own_headers()], body):
                return
        await self.start(status, headers if status in (204, 304) else [*headers, length])
        await self.send({"type": "http.response.body", "body": body})

    async def respond_in_parts(self, status: int, parts: list[bytes], headers: Headers) -> None:
        """Answer with a body in parts, which is not put together, and is written as fast as it is read: what is not read counts
        for its caller, whose call is still open.
        """
        size = sum(map(len, parts))
        if size <= WRITE_CHUNK:
            await self.respond(status, b"".join(parts), headers)
            return
        await self.start(status, [*headers, (b"content-length", b"%d" % size)])
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(part), WRITE_CHUNK):
                piece = bytes(view[at : at + WRITE_CHUNK])
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.send({"type": "http.response.body", "body": b""})


def _too_slow(waited_s: float) -> ApiError:
    if waited_s < BODY_S:
        return ApiError(408, "REQUEST_TIMEOUT", f"The body did not arrive within {STREAMED_S:.0f} s")
    return ApiError(408, "REQUEST_TIMEOUT", f"Nothing of the body came for {BODY_S:.0f} s")


class DisconnectWatcher:
    """Notices that a client left while the answer is being prepared, or that its key was removed (`Request.gone` says which).
    `on_gone` is called once, from the event loop: the client's connection calls it (connections/http.py).
    """

    __slots__ = ("_connection", "_handle", "_on_gone", "_request", "gone")

    def __init__(self, request: Request, on_gone: Callable[[], None]) -> None:
        self.gone = False
        self._on_gone = on_gone
        self._handle: asyncio.Handle | None = None
        self._connection: WatchedConnection = request.scope[CONNECTION]
        self._request = request
        request.on_revoked = self._left
        if not self._connection.watch(self._left) or request.revoked:
            self._handle = asyncio.get_running_loop().call_soon(self._left)

    def _left(self) -> None:
        if not self.gone:
            self.gone = True
            self._on_gone()

    def close(self) -> None:
        """Stop watching."""
        self._request.on_revoked = None
        self._connection.watch(None)
        if self._handle:
            self._handle.cancel()
