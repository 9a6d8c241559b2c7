"""Carries out tasks of type `http`: one call of an endpoint each, at an address that was checked, within the endpoint's rules."""

import asyncio
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import h11

from fairlane.workers import protocol
from fairlane.workers.adapters.endpoints.calls import WITH_BODIES, Call, read_call
from fairlane.workers.adapters.endpoints.connections import Connections, public_authorities
from fairlane.workers.adapters.endpoints.exchange import Answer, Exchange
from fairlane.workers.adapters.endpoints.headers import first, wire
from fairlane.workers.adapters.endpoints.names import Resolve, SystemNames
from fairlane.workers.adapters.endpoints.outcomes import redirected, result
from fairlane.workers.adapters.endpoints.wire import AnyWire
from fairlane.workers.sdk import Context, Task, TaskError, Worker

AGENT = "fairlane"
LARGE_BYTES = 256 * 1024
"""It takes a while to make a result of a body that is larger, or compressed."""
FIRST_LOOK_S, LONGEST_LOOK_S = 0.001, 0.05
"""Between looks whether the other machine has a whole request."""


class HttpAdapter:
    """A handler of the calls of all endpoints.

    It retries nothing and follows redirects only within the endpoint's pattern. `resolve` tells a host's addresses, `tls` makes
    what decides whose certificates are believed. Proxies that the environment names are not used: they would connect to
    addresses that nobody here has checked.
    """

    def __init__(
        self, *, resolve: Resolve | None = None, tls: Callable[[], ssl.SSLContext] = public_authorities
    ) -> None:
        self._connections = Connections(resolve or SystemNames(), tls)

    def attach(self, worker: Worker) -> None:
        """Make this a handler of `worker` and let its connections end with the worker."""
        worker.handler(models=[protocol.ANY_ENDPOINT], task_types=[protocol.HTTP_TASK])(self)

        @worker.on_shutdown
        async def close(_: SimpleNamespace) -> None:
            self.close()

    def close(self) -> None:
        """Close the connections that no call uses; a later call opens new ones."""
        self._connections.close()

    async def __call__(self, task: Task, context: Context) -> dict[str, Any]:
        """Make one call. Raises `TaskError` with the codes of `outcomes`."""
        try:
            call = read_call(task.payload_bytes)
        except ValueError as error:
            raise TaskError("BAD_REQUEST", f"{error}.") from error
        try:
            answer = await self._answer(call, context, task)
            if len(answer.body) <= LARGE_BYTES and first(answer.headers, b"content-encoding") is None:
                return result(call, answer)
            return await asyncio.to_thread(result, call, answer)  # others go on meanwhile
        except TaskError as error:
            if error.code != "MODEL_TOO_BUSY" and not call.idempotent:
                error.retryable = False
            raise

    async def _answer(self, call: Call, context: Context, task: Task) -> Answer:
        """The answer behind all redirects. Raises TaskError."""
        loop = asyncio.get_running_loop()
        remaining = context.remaining()
        of_task = remaining <= call.timeout_s
        until = loop.time() + min(call.timeout_s, remaining)
        has_last = not call.follows  # of a call that may be redirected nobody knows which request is the last
        progress = _Progress(context.sent if task.tell_sent and has_last else None)
        try:
            async with asyncio.timeout_at(until):
                while True:
                    answer = await self._once(call, task.traceparent, progress)
                    further = redirected(call, answer)
                    if further is None:
                        return answer
                    call = further
        except TimeoutError as error:
            raise progress.late(call, of_task=of_task) from error

    async def _once(self, call: Call, traceparent: str | None, progress: "_Progress") -> Answer:
        """One hop: its address is checked, and the one that is connected to. Raises TaskError."""
        progress.began = progress.connected = False
        line = await self._connections.take(call)
        progress.connected = True
        exchange = Exchange(line, call.max_response_bytes, progress.first_byte)
        keep, watching = False, None
        try:
            exchange.send(call.method.encode(), _path(call), wire(_headers(call, traceparent)), call.body)
            if progress.tell_sent is not None:
                watching = asyncio.ensure_future(_tell_when_sent(line, progress.tell_sent))
            answer = await exchange.answer()
            keep = answer.reusable
        except h11.LocalProtocolError as error:
            raise TaskError("BAD_REQUEST", "The call cannot be said in HTTP/1.1.") from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise _broken(error, exchange.began) from error
        finally:
            if watching is not None:
                watching.cancel()
            if keep:
                self._connections.give_back(call, line)
            else:
                line.abort()
        return answer


class _Progress:
    """How far a call has come, for whoever has to say what took too long."""

    def __init__(self, tell_sent: Callable[[], None] | None) -> None:
        self.connected = False
        self.began = False
        self.tell_sent = tell_sent
        """Tells the gateway that the request has left, if it wants to know."""

    def first_byte(self) -> None:
        self.began = True
        if self.tell_sent is not None:
            self.tell_sent()

    def late(self, call: Call, *, of_task: bool) -> TaskError:
        """The failure for a time that is over. No retry helps where it is the task's own."""
        ms = round(call.timeout_s * 1000)
        if of_task:
            return TaskError("TOTAL_TIMEOUT", "The task's time was over before the endpoint's answer.")
        if not self.connected:
            return TaskError("CONNECT_TIMEOUT", f"The endpoint took no connection within {ms} ms.")
        if not self.began:
            return TaskError("FIRST_TOKEN_TIMEOUT", f"The endpoint did not begin to answer within {ms} ms.")
        return TaskError(
            "TOTAL_TIMEOUT", f"The endpoint's answer did not end within {ms} ms.", retryable=True
        )


async def _tell_when_sent(line: AnyWire, tell: Callable[[], None]) -> None:
    """Not when it is written: until the other machine has acknowledged all of it, it may still come late."""
    pause_s = FIRST_LOOK_S
    await asyncio.sleep(0)
    while not line.acknowledged:
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)
    tell()


def _path(call: Call) -> bytes:
    """What the request's first line asks for."""
    query = f"?{call.target.query}" if call.target.query else ""
    return f"{call.target.path}{query}".encode()


def _headers(call: Call, traceparent: str | None) -> list[tuple[str, str]]:
    """All that go out, in a good order."""
    given = {name for name, _ in call.headers}
    more = [("host", call.target.origin.partition("://")[2])]
    if "user-agent" not in given:
        more.append(("user-agent", AGENT))
    if "accept" not in given:
        more.append(("accept", "*/*"))
    more.append(("accept-encoding", "identity"))
    if traceparent and "traceparent" not in given:
        more.append(("traceparent", traceparent))
    if call.last:
        more.append(("connection", "close"))
    if (
        call.body or call.method in WITH_BODIES
    ):  # these say that there is no body, where there is none (RFC 9110, 8.6)
        more.append(("content-length", str(len(call.body))))
    return [*more, *call.headers]


def _broken(error: Exception, began: bool) -> TaskError:
    if isinstance(error, h11.RemoteProtocolError):
        sentence = "does not speak HTTP/1.1, or ended the connection"
    else:
        sentence = f"cannot be reached ({type(error).__name__})"
    if began:
        return TaskError("UPSTREAM_TRUNCATED", f"The endpoint's answer broke off: it {sentence}.")
    return TaskError("UPSTREAM_ERROR", f"The endpoint gave no answer: it {sentence}.")
