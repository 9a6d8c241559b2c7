"""HTTP/1.1 requests to addresses that were checked: httpcore2's connections, with a network backend that opens no others."""

import asyncio
import functools
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2

from fairlane.workers.adapters.endpoints.addresses import Address, Network, read_address, why_refused
from fairlane.workers.adapters.endpoints.headers import Header
from fairlane.workers.adapters.targets import Target
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.threads import in_thread

CONNECT_S = 10.0
"""For the name, the connection and TLS."""
MAX_ADDRESSES = 4
"""Addresses of a host that are tried."""
MAX_IDLE = 16
"""Idle connections that are kept for one endpoint."""
IDLE_S = 4.0
"""An idle connection is not used after this time: most servers close theirs after 5 s."""
MAX_LOOKUPS = 64
"""Names that are looked up at the same time, each in a thread."""

Resolve = Callable[[str], Awaitable[list[str]]]
"""Return a host's addresses, as texts; [] for none. Raise OSError if the lookup fails."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered, unchanged."""

    status: int
    headers: httpx2.Headers
    body: bytes


@dataclass(slots=True)
class Request:
    """One request, the networks of private addresses that it may reach, how large a body its answer can have, and how far it has
    got, which decides what its failure is."""

    method: str
    target: Target
    headers: list[Header]
    body: bytes
    allowed: tuple[Network, ...]
    max_body: int | None
    """Bytes; None: the body is not read."""
    on_sent: Callable[[], None] | None = None
    """Called when the whole request has been handed to the socket."""
    connected: bool = False
    began: bool = False
    """Whether the head of the answer has arrived."""

    async def trace(self, event: str, info: dict[str, Any]) -> None:  # noqa: ARG002 - as httpcore2 calls it
        if event == "http11.send_request_headers.started":
            self.connected = True
        elif event == "http11.send_request_body.complete" and self.on_sent is not None:
            self.on_sent()
        elif event == "http11.receive_response_headers.complete":
            self.began = True


class Client:
    """Sends requests to checked addresses. Follows no redirects, uses no proxies of the environment, decodes no bodies.

    `keep_alive`: whether connections are used again. A connection then serves requests of one owner under the same rules
    only: what one endpoint may reach, another may not.
    """

    def __init__(self, resolve: Resolve, tls: Callable[[], ssl.SSLContext], *, keep_alive: bool) -> None:
        self._resolve = resolve
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._max_idle = MAX_IDLE if keep_alive else 0
        self._pools: dict[tuple[str, tuple[Network, ...], bool], httpcore2.AsyncConnectionPool] = {}

    async def aclose(self) -> None:
        """Close all connections; a later request opens new ones."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            await pool.aclose()

    async def send(self, request: Request, owner: str = "") -> Answer:
        """Return the whole answer. Raise TaskError. The caller sets the deadline."""
        target = request.target
        path = f"{target.path}?{target.query}" if target.query else target.path
        asked = httpcore2.Request(
            request.method,
            httpcore2.URL(scheme=target.scheme, host=target.host.strip("[]"), port=target.port, target=path),
            headers=[(name.encode("ascii"), value.encode("latin-1")) for name, value in request.headers],
            content=request.body,
            extensions={"timeout": {"connect": CONNECT_S}, "trace": request.trace},
        )
        try:
            response = await self._pool(owner, request).handle_async_request(asked)
            try:
                if response.status < 200:
                    raise httpcore2.RemoteProtocolError("the server switched to another protocol")
                has_body = request.method != "HEAD" and response.status not in (204, 304)
                body = await _read(response, request.max_body, has_body=has_body)
            finally:
                await response.aclose()
        except httpcore2.ConnectTimeout as error:
            sentence = f"The endpoint accepted no connection within {CONNECT_S:.0f} s."
            raise TaskError("CONNECT_TIMEOUT", sentence) from error
        except httpcore2.ConnectError as error:
            raise _unreachable(error) from error
        except httpcore2.LocalProtocolError as error:
            raise TaskError("BAD_REQUEST", "The call is not valid HTTP/1.1.") from error
        except (httpcore2.ProtocolError, httpcore2.NetworkError) as error:
            if request.began:
                raise TaskError("UPSTREAM_TRUNCATED", "The endpoint's answer stopped midway.") from error
            sentence = "The endpoint gave no answer: it broke off the connection, or does not speak HTTP/1.1."
            raise TaskError("UPSTREAM_ERROR", sentence) from error
        return Answer(response.status, httpx2.Headers(response.headers), body)

    def _pool(self, owner: str, request: Request) -> httpcore2.AsyncConnectionPool:
        is_secure = request.target.scheme == "https"
        key = (owner, request.allowed, is_secure)
        pool = self._pools.get(key)
        if pool is None:
            if is_secure and self._tls is None:  # making it takes long
                self._tls = self._make_tls()
                self._tls.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # Python sets it; see `_check_end`
            pool = self._pools[key] = httpcore2.AsyncConnectionPool(
                ssl_context=self._tls,
                max_connections=None,
                max_keepalive_connections=self._max_idle,
                keepalive_expiry=IDLE_S,
                network_backend=_CheckedBackend(self._resolve, request.allowed),
            )
        return pool


class _CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects only to addresses that the rules allow, by the address that was checked: a second answer of the name server
    changes nothing."""

    def __init__(self, resolve: Resolve, allowed: tuple[Network, ...]) -> None:
        self._resolve = resolve
        self._allowed = allowed
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 - CONNECT_S, which it is, holds for all addresses together
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        until = loop.time() + CONNECT_S
        try:
            async with asyncio.timeout_at(until):
                addresses = (await self._addresses(host))[:MAX_ADDRESSES]
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout from error
        except OSError as error:
            raise httpcore2.ConnectError from error
        problem: Exception = httpcore2.ConnectError(f"{host} has no address")
        for number, address in enumerate(addresses):
            share_s = max(0.0, until - loop.time()) / (len(addresses) - number)
            try:
                return await self._network.connect_tcp(
                    str(address), port, share_s, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                problem = error
        raise problem

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str) -> list[Address]:
        """Return the host's addresses. Raise TaskError if one of them may not be connected to, whichever it is, and OSError."""
        try:
            addresses = [read_address(host)]
        except ValueError:
            addresses = [read_address(text) for text in await self._resolve(host)]
        for address in addresses:
            if why := why_refused(address, self._allowed):
                raise TaskError(
                    "ADDRESS_REFUSED",
                    f"The endpoint's host has a forbidden address: {why}. An operator can allow its network "
                    "(allow_private).",
                )
        return addresses


def too_large(limit: int) -> TaskError:
    """Return the failure for an answer that is larger than its endpoint's may be."""
    return TaskError("RESPONSE_TOO_LARGE", f"The endpoint's answer has more than {limit} bytes.")


def public_authorities() -> ssl.SSLContext:
    """Return a context that trusts the system's authorities; SSL_CERT_FILE and SSL_CERT_DIR name others."""
    return httpx2.create_ssl_context()


class SystemResolver:
    """Looks names up with the system's resolver, in daemon threads: a lookup may take half a minute and cannot be stopped."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_LOOKUPS)

    async def __call__(self, host: str) -> list[str]:
        await self._free.acquire()
        found = in_thread(functools.partial(_look_up, host), "resolver")
        found.add_done_callback(lambda _: self._free.release())
        return await asyncio.shield(found)


def _look_up(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that is too long
        raise OSError("no such name") from None
    return list(dict.fromkeys(str(row[4][0]) for row in found))


async def _read(response: httpcore2.Response, limit: int | None, *, has_body: bool) -> bytes:
    """Return the body. Raise TaskError for one of more than `limit` bytes, and httpcore2's errors."""
    if limit is None:
        return b""
    headers = httpx2.Headers(response.headers)
    if has_body and int(headers.get("content-length", "0")[:20]) > limit:
        raise too_large(limit)
    body = bytearray()
    async for part in response.aiter_stream():
        body += part
        if len(body) > limit:
            raise too_large(limit)
    if has_body and headers.keys().isdisjoint(("content-length", "transfer-encoding")):
        _check_end(response)
    return bytes(body)


def _check_end(response: httpcore2.Response) -> None:
    """Raise RemoteProtocolError if TLS ended without the server's closing alert: such an answer without a length was cut off.
    httpcore2 treats both ends in the same way."""
    tls = response.extensions["network_stream"].get_extra_info("ssl_object")
    try:
        if tls is not None:
            tls.read(1)  # b"" after the alert
    except ssl.SSLError as error:
        raise httpcore2.RemoteProtocolError("TLS ended without an alert") from error


def _unreachable(error: BaseException) -> TaskError:
    """Return the failure in the system's words, without the address, which clients must not see."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            why: str | None = cause.reason
            if isinstance(cause, ssl.SSLCertVerificationError):
                why = cause.verify_message
            return TaskError("UPSTREAM_ERROR", f"No TLS with the endpoint: {why or 'it broke off'}.")
        if isinstance(cause, OSError) and cause.errno:
            is_lookup = isinstance(cause, socket.gaierror)
            why = cause.strerror if is_lookup else os.strerror(cause.errno)
            return TaskError("UPSTREAM_ERROR", f"The endpoint cannot be reached: {why}.")
        cause = cause.__cause__ or cause.__context__
    return TaskError("UPSTREAM_ERROR", "The endpoint cannot be reached: the connection broke.")
