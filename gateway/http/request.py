"""Raw ASGI, as much of it as the hot calls need: headers, a bounded body, an answer in two messages."""

import asyncio
import os
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qs

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.no_auth import SPECIAL_HEADERS
from fairlane.gateway.errors import (
    ApiError,
    ClientGone,
    Headers,
    Unauthorized,
    bad_request,
    speaks_anthropic,
    too_large,
)
from fairlane.gateway.http.rate_limits import anthropic_limit_headers, limit_headers
from fairlane.queues.limits import RateLimitStatus
from fairlane.workers.decoding import Decoder, TooLargeError, coding_of
from fairlane.workers.tracing import Span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
NO_STORE: tuple[bytes, bytes] = (b"cache-control", b"no-store")
SSE_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
CODED = b"content-encoding"
BODY_S = 30.0
"""For a body that is held whole; for one that is not, between two parts of it."""
STREAMED_S = 3600.0
"""For a body that is not held."""
MAX_QUERY_FIELDS = 20
SAME_WORDS: Mapping[str, str] = {}
"""For requests that are no other API's: one object for all, as many requests wait."""
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
WRITE_CHUNK = 128 * 1024
"""Bytes of an answer that are written in one piece."""


CONNECTION = "fairlane.connection"
"""The key of the ASGI scope that holds the `WatchedConnection`."""


class WatchedConnection(Protocol):
    """A client's connection that reports its loss."""

    def watch(self, on_lost: Callable[[], None] | None) -> bool:
        """Call `on_lost` when the client is gone (None: stop). Return False if it is gone already."""
        ...


class AnswerBroken(Exception):
    """An answer that has begun and cannot continue; its cause says why."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"the answer to {request_id} cannot continue")
        self.request_id = request_id


class DirectExchange:
    """The object behind `receive` and `send` where no middleware wraps them: it passes bodies whole."""

    __slots__ = ()

    def take_body(self) -> bytes | None:
        """Return the body, if all of it has come and none of it was received."""
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
        """Whether the answer has begun, and its client reads."""
        raise NotImplementedError

    def write_more(self, body: bytes) -> None:
        """Write a part of the answer, while it may be written."""
        raise NotImplementedError


class Request:
    """An HTTP request."""

    __slots__ = (
        "_query",
        "began",
        "caller",
        "direct",
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
        "words",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        whole = getattr(send, "__self__", None)
        self.direct = whole if isinstance(whole, DirectExchange) else None
        """The object behind `receive` and `send`; None if middleware wraps it."""
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.path_params: dict[str, str] = {}
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        """By their names in lower case."""
        self.plain = SPECIAL_HEADERS.isdisjoint(self.headers)
        """Whether it has none of SPECIAL_HEADERS."""
        given = self.headers.get(b"x-request-id")  # the caller's own id, if a log line may hold it
        if given is None or not _REQUEST_ID.fullmatch(given):
            given = b"req_" + os.urandom(12).hex().encode()
        self.id = given
        self.started = False
        self.status = 499
        """Of the answer; 499 until it begins, as if the client had left."""
        self.began = time.monotonic()
        self.span: Span | None = None
        """The request's span, if traces are made."""
        self.rate_limits: RateLimitStatus | None = None
        """What is left of the caller's limits, for headers of OpenAI's calls."""
        self.route = "other"
        """The path's pattern, when there is such a call."""
        self.words = SAME_WORDS
        """The names in the request of members of its chat request."""
        self.submits = False
        """Whether the call submits a task."""
        self.caller: Caller | None = None
        """The caller, while the call is open (`InFlightRequests`)."""
        self.owner_key: tuple[str | None, str] | None = None
        self.link_owner: tuple[str | None, str] | None = None
        """The owner of the task whose link is read: the call counts for that owner, too."""
        self.revoked = False
        """Whether the caller's key was removed while the call was open."""
        self.on_revoked: Callable[[], None] | None = None
        self._query: dict[str, list[str]] | None = None

    def complete(self, headers: Headers) -> Headers:
        """Return the headers of an answer with those that every answer has: the request's id; `no-store`, unless the answer has a
        rule for caches of its own, as static files have; on OpenAI's calls also the time taken so far, ms."""
        complete = [*headers, (b"x-request-id", self.id)]
        if NO_STORE[0] not in [name for name, _ in headers]:
            complete.append(NO_STORE)
        if not self.path.startswith("/v1/"):
            return complete
        left = self.rate_limits
        if left is not None:
            complete += limit_headers(left)
        if not self.anthropic:
            took = round((time.monotonic() - self.began) * 1000)
            return [*complete, (b"openai-processing-ms", b"%d" % took)]
        more = [] if left is None else anthropic_limit_headers(left, time.time())
        return [*complete, (b"request-id", self.id), *more]

    @property
    def anthropic(self) -> bool:
        """Whether the client speaks Anthropic's Messages API."""
        return speaks_anthropic(self.path, self.header(b"anthropic-version"))

    @property
    def key_header(self) -> str | None:
        """The header `authorization`; on /v1 also `x-api-key`, which Anthropic's clients send."""
        value = self.header(b"authorization")
        if value is not None or not self.path.startswith("/v1/"):
            return value
        key = self.header(b"x-api-key")
        return None if key is None else f"Bearer {key}"

    def proof(self, name: bytes) -> str | None:
        """Return a header's value, as `header`, but for `authorization`: that is `key_header`."""
        return self.key_header if name == b"authorization" else self.header(name)

    @property
    def address(self) -> str:
        """The client's address; '' on a Unix socket."""
        return str((self.scope.get("client") or ("",))[0])

    def header(self, name: bytes) -> str | None:
        """Return a header's value; `name` in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self, name: str) -> str | None:
        """Return the last value of a parameter. Raise ApiError(400) when there are absurdly many."""
        values = self._parameters().get(name)
        return values[-1] if values else None

    def check_query(self, *known: str) -> None:
        """Raise ApiError(400) for other parameters than these, and for one that is given twice: without it the call would do more
        than was requested."""
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
        value = self.headers.get(b"content-type", b"")
        if value != JSON[1]:
            content_type = value.decode("latin-1").partition(";")[0].strip().lower()
            if content_type != "application/json" and not content_type.endswith("+json"):
                raise ApiError(
                    415, "UNSUPPORTED_MEDIA_TYPE", "Send JSON with the header Content-Type: application/json"
                )
        body = None if self.direct is None or CODED in self.headers else self.direct.take_body()
        if body is None:
            try:
                async with asyncio.timeout(BODY_S):
                    body = b"".join([part async for part in self.body_parts(limit)])
            except TimeoutError:
                raise _too_slow(f"The body did not arrive within {BODY_S:.0f} s") from None
        if len(body) > limit:
            raise too_large(limit)
        if self.revoked:
            raise Unauthorized
        return body

    async def body_parts(self, limit: int) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives, decoded, reading no faster than the consumer.

        Raise ApiError (413, 408; 400 and 415 for its coding; 401 if the key was removed) or ClientGone.
        """
        self._check_length(limit)
        coding = self._coding() if CODED in self.headers else ""
        decoder = Decoder(coding, limit) if coding else None
        end, size, more = time.monotonic() + STREAMED_S, 0, True
        while more:
            patience = min(BODY_S, end - time.monotonic())
            try:
                async with asyncio.timeout(patience):
                    message = await self.receive()
            except TimeoutError:
                if patience < BODY_S:
                    raise _too_slow(f"The body did not arrive within {STREAMED_S:.0f} s") from None
                raise _too_slow(f"Nothing of the body came for {BODY_S:.0f} s") from None
            if message["type"] == "http.disconnect":
                raise ClientGone
            if self.revoked:
                raise Unauthorized
            part: bytes = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > limit:
                raise too_large(limit)
            if decoder is None:
                yield part
                continue
            try:
                for piece in decoder.feed(part):
                    yield piece
                    await asyncio.sleep(0)  # a long body is decoded in many steps
                if not more:
                    decoder.end()
            except TooLargeError:
                raise too_large(limit) from None
            except ValueError as error:
                raise bad_request(f"The body cannot be decoded: {error}") from None

    def _coding(self) -> str:
        """Return the coding of the body. Raise ApiError(415) if it is unknown."""
        values = [value.decode("latin-1") for name, value in self.scope["headers"] if name == CODED]
        coding = coding_of(values)
        if coding is None:
            raise ApiError(
                415,
                "UNSUPPORTED_MEDIA_TYPE",
                f"The Content-Encoding {','.join(values)[:100]!r} is not supported: send gzip, deflate or zstd",
                headers=[(b"accept-encoding", b"gzip, deflate, zstd")],
            )
        return coding

    def _check_length(self, limit: int) -> None:
        length = self.headers.get(b"content-length", b"")
        if length.isdigit() and (len(length) > 18 or int(length) > limit):
            raise too_large(limit)

    def revoke(self) -> None:
        """End the answer, once: the caller's key was removed."""
        self.revoked = True
        on_revoked, self.on_revoked = self.on_revoked, None
        if on_revoked is not None:
            on_revoked()

    def gone(self) -> Exception:
        """Return why a `DisconnectWatcher` ended the wait for an answer: the client left, or its key was removed."""
        return Unauthorized() if self.revoked else ClientGone()

    async def start(self, status: int, headers: Headers) -> None:
        """Begin the answer."""
        self.started = True
        self.status = status
        await self.send({"type": "http.response.start", "status": status, "headers": self.complete(headers)})

    def begin(self, status: int, headers: Headers) -> bool:
        """Begin the answer if that needs no waiting; the head leaves with the first part. Return False if nothing was done."""
        if self.direct is None or not self.direct.begin(status, self.complete(headers)):
            return False
        self.started, self.status = True, status
        return True

    def forget_head(self) -> None:
        """Drop the headers and the query, and the scope where it is ours: a long answer needs them no more."""
        self.headers = {}
        self._query = None
        if self.direct is not None:
            self.direct.forget_head()
        else:
            self.scope["headers"].clear()

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Answer with a whole body."""
        if len(body) > WRITE_CHUNK:
            await self.respond_in_parts(status, [body], headers)
            return
        length = (b"content-length", b"%d" % len(body))
        if self.direct is not None:
            self.started, self.status = True, status
            fields = headers if status in (204, 304) else [*headers, length]
            if self.direct.respond(status, self.complete(fields), body):
                return
        await self.start(status, headers if status in (204, 304) else [*headers, length])
        await self.send({"type": "http.response.body", "body": body})

    async def respond_in_parts(self, status: int, parts: list[bytes], headers: Headers) -> None:
        """Answer with a body in parts, without joining them, as fast as the client reads: meanwhile the call counts as open."""
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


def _too_slow(sentence: str) -> ApiError:
    return ApiError(408, "REQUEST_TIMEOUT", sentence)


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
