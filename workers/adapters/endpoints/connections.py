"""Connections to endpoints: opened to addresses that were checked, and used again for the same endpoint alone."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence

import httpx2

from fairlane.workers.adapters.endpoints.addresses import Address, Network, read_address, why_refused
from fairlane.workers.adapters.endpoints.calls import Call
from fairlane.workers.adapters.endpoints.names import Resolve
from fairlane.workers.adapters.endpoints.wire import AnyWire, SecureWire, Wire
from fairlane.workers.sdk.errors import TaskError

CONNECT_S = 10.0
"""For the name, the connection and TLS."""
MOST_TRIED = 4
"""Of a host's addresses."""
IDLE_S = 4.0
"""A connection that nobody uses is closed after so long: before servers do (5 s, most of them more), so that hardly a call meets
one that is just being closed."""
MOST_IDLE = 128
"""Of all endpoints together."""

_Key = tuple[str, str, tuple[Network, ...]]


class Connections:
    """Lends connections. One that was made for an endpoint serves no other, nor the same one under other rules: servers may know
    whose a connection is, and what one endpoint may reach another may not.
    """

    def __init__(self, resolve: Resolve, tls: Callable[[], ssl.SSLContext]) -> None:
        self._resolve = resolve
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[_Key, list[tuple[AnyWire, asyncio.TimerHandle]]] = {}

    async def take(self, call: Call) -> AnyWire:
        """A connection for this call, which the taker gives back or aborts. Raises TaskError."""
        key = _key(call)
        idle = self._idle.get(key, [])
        while idle:
            wire, timer = idle.pop()
            timer.cancel()
            if not idle:
                del self._idle[key]
            if wire.quiet:
                return wire
            wire.abort()
        return await self._open(call)

    def give_back(self, call: Call, wire: AnyWire) -> None:
        """The call is over, and the connection may serve another one."""
        if sum(len(wires) for wires in self._idle.values()) >= MOST_IDLE:
            wire.abort()
            return
        key = _key(call)
        timer = asyncio.get_running_loop().call_later(IDLE_S, self._expire, key, wire)
        self._idle.setdefault(key, []).append((wire, timer))

    def close(self) -> None:
        """Close those that nobody uses."""
        idle, self._idle = self._idle, {}
        for wires in idle.values():
            for wire, timer in wires:
                timer.cancel()
                wire.abort()

    def _expire(self, key: _Key, wire: AnyWire) -> None:
        left = [one for one in self._idle.get(key, []) if one[0] is not wire]
        if left:
            self._idle[key] = left
        else:
            self._idle.pop(key, None)
        wire.abort()

    # ---- new ones --------------------------------------------------------------------------------

    async def _open(self, call: Call) -> AnyWire:
        try:
            async with asyncio.timeout(CONNECT_S):
                addresses = await self._addresses(call)
                return await self._connect(call, addresses)
        except TimeoutError as error:
            sentence = f"The endpoint took no connection within {CONNECT_S:.0f} s."
            raise TaskError("CONNECT_TIMEOUT", sentence) from error
        except ssl.SSLError as error:
            why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
            raise TaskError(
                "UPSTREAM_ERROR", f"No TLS with the endpoint: {why or 'it broke off'}."
            ) from error
        except OSError as error:
            raise TaskError("UPSTREAM_ERROR", f"The endpoint cannot be reached: {_why(error)}.") from error

    async def _addresses(self, call: Call) -> list[Address]:
        """The host's addresses, all of them checked: one that may not be connected to refuses the call, whichever it is. Raises
        TaskError, OSError.
        """
        host = call.target.host.strip("[]")
        try:
            addresses = [read_address(host)]
        except ValueError:
            addresses = [read_address(text) for text in await self._resolve(host)]
        if not addresses:
            raise OSError(f"{host} has no address")
        for address in addresses:
            if why := why_refused(address, call.allowed):
                raise TaskError(
                    "ADDRESS_REFUSED",
                    f"The endpoint's host has an address that may not be called: {why}. An operator may allow its network "
                    "(allow_private).",
                )
        return addresses

    async def _connect(self, call: Call, addresses: Sequence[Address]) -> AnyWire:
        """To the first address that takes it. Raises OSError."""
        loop = asyncio.get_running_loop()
        until, tried = loop.time() + CONNECT_S, addresses[:MOST_TRIED]
        problem: OSError = OSError("no address")
        for number, address in enumerate(tried):
            share_s = (until - loop.time()) / (len(tried) - number)  # TimeoutError is an OSError
            try:
                async with asyncio.timeout(share_s):
                    wire = await Wire.open(address, call.target.port)
            except OSError as error:
                problem = error
                continue
            return (
                wire
                if call.target.scheme == "http"
                else await self._secured(wire, call.target.host.strip("[]"))
            )
        raise problem

    async def _secured(self, wire: Wire, host: str) -> SecureWire:
        """TLS with the name that was asked for, whatever address it has."""
        self._tls = self._tls or self._make_tls()
        secure = SecureWire(wire, self._tls, host)
        try:
            await secure.greet()
        except BaseException:
            wire.abort()
            raise
        return secure


def public_authorities() -> ssl.SSLContext:
    """Trusts whom the system's or certifi's list names; SSL_CERT_FILE and SSL_CERT_DIR name another."""
    context = httpx2.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _why(error: OSError) -> str:
    """In the system's words, without the address, which is nobody's business."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error) or "it broke off"
    return os.strerror(error.errno)


def _key(call: Call) -> _Key:
    return call.endpoint, call.target.origin, call.allowed
