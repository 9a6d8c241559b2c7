"""Carries out tasks of type `http`: one call of an endpoint each, at an address that was checked, within the endpoint's rules."""

import asyncio
import ssl
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fairlane.workers import protocol
from fairlane.workers.adapters.endpoints.calls import WITH_BODIES, Call, read_call
from fairlane.workers.adapters.endpoints.client import (
    Answer,
    Client,
    Request,
    Resolve,
    SystemResolver,
    public_authorities,
)
from fairlane.workers.adapters.endpoints.outcomes import result
from fairlane.workers.sdk import Context, Task, TaskError, Worker

AGENT = "fairlane"
LARGE_BYTES = 256 * 1024
"""It takes a while to make a result of a body that is larger, or compressed."""


class HttpAdapter:
    """A handler of the calls of all endpoints.

    It retries nothing and follows no redirects. `resolve` returns a host's addresses, `tls` makes
    what decides whose certificates are believed. Proxies that the environment names are not used: they would connect to
    addresses that are not checked here.
    """

    def __init__(
        self, *, resolve: Resolve | None = None, tls: Callable[[], ssl.SSLContext] = public_authorities
    ) -> None:
        self._client = Client(resolve or SystemResolver(), tls, keep_alive=True)

    def attach(self, worker: Worker) -> None:
        """Make this a handler of `worker` and let its connections end with the worker."""
        worker.handler(models=[protocol.ANY_ENDPOINT], task_types=[protocol.HTTP_TASK])(self)

        @worker.on_shutdown
        async def close(_: SimpleNamespace) -> None:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._client.aclose()

    async def __call__(self, task: Task, context: Context) -> dict[str, Any]:
        """Make one call. Raise `TaskError` with the codes of `outcomes`."""
        try:
            call = read_call(task.payload_bytes)
        except ValueError as error:
            raise TaskError("BAD_REQUEST", f"{error}.") from error
        try:
            answer = await self._answer(call, context, task)
            if len(answer.body) <= LARGE_BYTES and "content-encoding" not in answer.headers:
                return result(call, answer)
            return await asyncio.to_thread(result, call, answer)  # other calls continue meanwhile
        except TaskError as error:
            if error.code != "MODEL_TOO_BUSY" and not call.idempotent:
                error.retryable = False
            raise

    async def _answer(self, call: Call, context: Context, task: Task) -> Answer:
        """Send the request and return the answer. Raise TaskError."""
        loop = asyncio.get_running_loop()
        remaining = context.remaining()
        of_task = remaining <= call.timeout_s
        request = Request(
            call.method,
            call.target,
            _headers(call, task.traceparent),
            call.body,
            call.allowed,
            call.max_response_bytes,
            context.sent if task.tell_sent else None,
        )
        try:
            async with asyncio.timeout_at(loop.time() + min(call.timeout_s, remaining)):
                return await self._client.send(request, call.endpoint)
        except TimeoutError as error:
            raise _late(call, request, of_task=of_task) from error


def _late(call: Call, request: Request, *, of_task: bool) -> TaskError:
    """Return the failure for a time that is over. No retry helps where it is the task's own."""
    ms = round(call.timeout_s * 1000)
    if of_task:
        return TaskError("TOTAL_TIMEOUT", "The task timed out before the endpoint answered.")
    if not request.connected:
        return TaskError("CONNECT_TIMEOUT", f"The endpoint accepted no connection within {ms} ms.")
    if not request.began:
        return TaskError("FIRST_TOKEN_TIMEOUT", f"The endpoint did not begin to answer within {ms} ms.")
    sentence = f"The endpoint's answer did not end within {ms} ms."
    return TaskError("TOTAL_TIMEOUT", sentence, retryable=True)


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
