"""The class a worker author uses."""

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import TypeVar

import msgspec

from fairlane import __version__
from fairlane.workers import protocol
from fairlane.workers.sdk.address import DEFAULT_GATEWAY, websocket_url
from fairlane.workers.sdk.connection import MAX_FRAME_BYTES
from fairlane.workers.sdk.errors import shorten
from fairlane.workers.sdk.handlers import Handler, Registry
from fairlane.workers.sdk.supervisor import Supervisor
from fairlane.workers.secrets import check_secret
from fairlane.workers.tracing import ENDPOINT_VARIABLE, Tracer, TracingUnavailable, open_tracer

Hook = Callable[[SimpleNamespace], Awaitable[None]]
AnyHandler = TypeVar("AnyHandler", bound=Handler)
AnyHook = TypeVar("AnyHook", bound=Hook)

MAX_SLOTS = 1024
MAX_UNHEALTHY_CHARS = 500
MAX_TAG_CHARS = 200


class Worker:
    """Runs tasks that a gateway sends.

        worker = Worker(slots=4)

        @worker.handler(models=["my-model"])
        async def answer(task, context):
            for word in task.payload["messages"][-1]["content"].split():
                yield word + " "

        worker.run()

    `gateway` is `http://host:port` or `ws://host:port/ws` (default: FAIRLANE_GATEWAY, else this machine),
    `token` its worker token (default: FAIRLANE_WORKER_TOKEN), `name` what people see (default: the host's
    name), `slots` how many tasks run at a time (1 to 1024), `drain_ms` how long running tasks may continue after
    the first signal (default 30 s). All may be changed until the worker runs. It reconnects by itself; tasks
    that ran on a lost connection are cancelled, because the gateway gives them to others. With
    OTEL_EXPORTER_OTLP_ENDPOINT set and the extra `otel` installed, each task has a span under the gateway's.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        gateway: str | None = None,
        token: str | None = None,
        slots: int = 1,
        drain_ms: int = 30_000,
        tags: dict[str, str] | None = None,
        upstream: str | None = None,
    ) -> None:
        self.name = name or socket.gethostname() or "worker"
        self.gateway = gateway or os.environ.get("FAIRLANE_GATEWAY") or DEFAULT_GATEWAY
        self.token = token or os.environ.get("FAIRLANE_WORKER_TOKEN") or None
        self.slots = slots
        self.drain_ms = drain_ms
        self.tags = tags
        self.upstream = upstream
        self.wants_user = False
        """Whether tasks come with their user's name."""
        self.state = SimpleNamespace()
        """What start-up hooks put here, handlers find in `context.state`."""
        self.registry = Registry()
        self._startup: list[Hook] = []
        self._shutdown: list[Hook] = []
        self._instance_id = str(uuid.uuid4())
        self._unhealthy: str | None = None
        self._model_info: dict[str, protocol.ModelInfo] = {}
        self._supervisor: Supervisor | None = None

    # ---- what it runs ----------------------------------------------------------------------------

    def handler(
        self, models: Iterable[str], task_types: Iterable[str] | None = None
    ) -> Callable[[AnyHandler], AnyHandler]:
        """Register a handler of a task and a context, for these models (`"*"`: any) and task types (left out, or `"*"`: any but
        those of media, see `sdk/media.py`).

        An async generator streams what it yields: text, bytes (of speech), `Delta`, `Usage`, and last, if it has one, `Result`.
        A coroutine function returns the result, any JSON value. A plain function does too and runs in a
        thread.
        """

        def register(function: AnyHandler) -> AnyHandler:
            self.registry.add(function, models, task_types)
            return function

        return register

    def on_startup(self, hook: AnyHook) -> AnyHook:
        """Run `await hook(state)` before the first connection; what it raises ends the worker."""
        self._startup.append(hook)
        return hook

    def on_shutdown(self, hook: AnyHook) -> AnyHook:
        """Run `await hook(state)` at the end, last registered first, also after a failure."""
        self._shutdown.append(hook)
        return hook

    # ---- running it ------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until SIGTERM or SIGINT. The first signal drains, the second cancels what still runs.

        Uses uvloop where it is installed. Raise what `serve` raises.
        """
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve_until_signal())

    async def serve(self, stop: asyncio.Event | None = None, abort: asyncio.Event | None = None) -> None:
        """Work until `stop` is set, then drain; `abort` cancels what still runs. For tests and for embedding.

        Raise `ValueError` (`BadAddressError`) for settings that cannot work, and `GatewayRefusedError` when
        the gateway will not have this worker. Cancelling this call stops immediately.
        """
        self.check()
        async with self.started(), _tracer() as tracer:
            self._supervisor = Supervisor(
                url=websocket_url(self.gateway),
                token=self.token,
                make_register=self._register,
                registry=self.registry,
                slots=self.slots,
                drain_ms=self.drain_ms,
                state=self.state,
                rng=random.Random(),  # noqa: S311 (spreads reconnects, guards nothing)
                tracer=tracer,
            )
            await self._supervisor.run(stop or asyncio.Event(), abort or asyncio.Event())

    def report(self, unhealthy: str | None) -> None:
        """Say that this worker cannot do its work now, and why (500 characters); None: it can again.

        While others offer all of its models, the gateway gives it nothing until it says that it is well; operators see the
        sentence. May be called at any time on the worker's event loop, also before it runs.
        """
        printable = "".join(c if c.isprintable() else " " for c in unhealthy or "")
        self._unhealthy = shorten(printable, MAX_UNHEALTHY_CHARS) or None
        self._changed()

    def describe(self, model: str, *, context_length: int | None = None, owned_by: str | None = None) -> None:
        """Say what callers find in `/v1/models` of a model that this worker runs: how many tokens its input and output may have
        together, and whose it is (100 characters). May be called as `report` may. Raise `ValueError`.
        """
        info = protocol.ModelInfo(context_length, owned_by)
        try:
            self._model_info[model] = msgspec.convert(msgspec.to_builtins(info), protocol.ModelInfo)
        except msgspec.ValidationError as error:
            raise ValueError(f"{model}: invalid description: {error}") from error
        self._changed()

    def tag(self, name: str, value: str) -> None:
        """Set one of the `tags` that operators see (200 characters). May be called as `report` may."""
        self.tags = {**(self.tags or {}), name: shorten(value, MAX_TAG_CHARS)}
        self._changed()

    def _changed(self) -> None:
        if self._supervisor is not None:
            self._supervisor.on_change()

    def check(self) -> None:
        """Raise `ValueError` with a sentence if the settings cannot work. `serve` and `run` begin so."""
        websocket_url(self.gateway)
        check_secret(self.token or "", "The worker token")
        if not self.registry.models:
            raise ValueError("This worker has no handler: add one with @worker.handler(models=[...]).")
        if len(self.upstream or "") > protocol.MAX_UPSTREAM_CHARS or not (self.upstream or "").isprintable():
            raise ValueError(
                f"upstream must be at most {protocol.MAX_UPSTREAM_CHARS} printable characters: it names the server "
                "behind this worker."
            )
        if not 1 <= self.slots <= MAX_SLOTS:
            raise ValueError(f"slots is {self.slots}; it must be between 1 and {MAX_SLOTS}.")
        if not 0 <= self.drain_ms <= 24 * 3600 * 1000:
            raise ValueError(f"drain_ms is {self.drain_ms}; it must be between 0 and a day.")

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Between the start-up and the shutdown hooks, without a gateway: to run handlers by hand."""
        try:
            for hook in self._startup:
                await hook(self.state)
            yield
        finally:
            failed: Exception | None = None
            for hook in reversed(self._shutdown):
                try:
                    await hook(self.state)
                except Exception as error:  # the other hooks still have things to release
                    failed = failed or error
            if failed is not None:
                raise failed

    async def _serve_until_signal(self) -> None:
        stop, abort = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            (abort if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        try:
            await self.serve(stop, abort)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _register(self) -> protocol.Register:
        return protocol.Register(
            limits=protocol.Limits(MAX_FRAME_BYTES),
            instance_id=self._instance_id,
            name=self.name[:200],
            models=self.registry.models,
            slots=self.slots,
            task_types=self.registry.task_types,
            unhealthy=self._unhealthy,
            upstream=self.upstream or None,
            model_info=dict(self._model_info) or None,
            wants_user=self.wants_user,
            sdk=protocol.Sdk(name=protocol.SDK_NAME, version=__version__),
            tags=self.tags,
        )


@contextlib.asynccontextmanager
async def _tracer() -> AsyncIterator[Tracer | None]:
    """A tracer where OTEL_EXPORTER_OTLP_ENDPOINT asks for traces; a warning where OpenTelemetry is not installed."""
    endpoint = os.environ.get(ENDPOINT_VARIABLE)
    if not endpoint:
        yield None
        return
    try:
        tracer = open_tracer(endpoint, "fairlane-worker", __version__)
    except TracingUnavailable as error:
        logging.getLogger("fairlane.worker").warning("no traces are sent: %s", error)
        yield None
        return
    try:
        yield tracer
    finally:
        await tracer.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 (not there on every platform)
    except ImportError:
        return None
    return uvloop.new_event_loop
