"""Runs handlers: one asyncio task per running handler, from `Start` to its result."""

import asyncio
import base64
import contextlib
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

from msgspec import Raw

from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.logs.redaction import unquoted
from fairlane.workers import protocol
from fairlane.workers.sdk.context import Context
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.handlers import Registry
from fairlane.workers.sdk.session.session import Session, Start, check_delta
from fairlane.workers.sdk.values import Delta, Key, Result, Task, Usage, as_json
from fairlane.workers.tracing import Attributes, Span, Tracer, read_traceparent

NULL = Raw(b"null")
GRACE_SHARE = 0.8
"""Part of a cancel's grace that a handler gets; the rest is for the answer's way back."""
MAX_PIECE = 36 * 1024
"""Bytes in one delta, which is then 48 KiB of text: an event of 64 KiB would be brought to other replicas in two steps."""


class Pool:
    """All running handlers of a worker, over all its connections.

    A handler is owned by this pool until it has ended, also when its task has ended before (a cancel that it
    ignores, a lost connection); its slot stays busy as long. `on_change` is called when a handler has ended.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        state: SimpleNamespace,
        on_change: Callable[[], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._registry = registry
        self._state = state
        self._on_change = on_change
        self._failures = RateLimitedLogger()
        self._running: dict[tuple[Session, Key], _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, session: Session, start: Start) -> None:
        """Begin a task that `session` has accepted."""
        running = _Running(self, session, start)
        self._running[session, start.output.key] = running
        running.begin()

    def stop(self, session: Session, cancel: protocol.Cancel) -> None:
        """Cancel one handler. Its task is answered when it ends, or shortly before the grace is over."""
        running = self._running.get((session, (cancel.task_id, cancel.attempt)))
        if running is not None:
            running.stop(cancel.reason, cancel.grace_ms / 1000 * GRACE_SHARE)

    def stop_session(self, session: Session, reason: str) -> None:
        """Cancel the handlers of one connection, without waiting for them."""
        for (owner, _), running in list(self._running.items()):
            if owner is session:
                running.stop(reason, None)

    def stop_all(self, reason: str, grace_s: float) -> None:
        """Cancel every handler; tasks whose connection is open are answered within `grace_s`."""
        for running in list(self._running.values()):
            running.stop(reason, grace_s)

    async def ended(self, timeout_s: float) -> bool:
        """Wait for all handlers to end, at most for `timeout_s`. Return whether they did."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if not tasks:
            return True
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        return not late

    def _forget(self, session: Session, key: Key) -> None:
        self._running.pop((session, key), None)
        self._on_change()


class _Running:
    """One handler at work."""

    def __init__(self, pool: Pool, session: Session, start: Start) -> None:
        self.task: asyncio.Task[None] | None = None
        self._pool = pool
        self._session = session
        self._output = start.output
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._started = self._loop.time()
        self._first_output: float | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        message = start.task
        self._task = Task(
            task_id=message.task_id,
            type=message.task_type,
            model=message.model,
            payload_bytes=bytes(message.payload),
            attempt=message.attempt,
            stream=message.stream,
            traceparent=message.traceparent,
            tell_sent=message.tell_sent,
            user=message.user,
        )
        self._span = None if pool._tracer is None else _begin_span(pool._tracer, self._task)
        self._context = Context(
            self._task,
            state=pool._state,
            deadline=self._started + message.timeout_ms / 1000 if message.timeout_ms > 0 else None,
            send_progress=self._send_progress,
            send_sent=self._send_sent if self._task.tell_sent else None,
        )

    def begin(self) -> None:
        self.task = self._loop.create_task(self._run(), name=f"fairlane task {self._task.task_id}")
        self.task.add_done_callback(self._on_done)

    def stop(self, reason: str, answer_after_s: float | None) -> None:
        """Cancel the handler (once) and, if wanted, answer for it after this many seconds."""
        if not self._context.cancelled and self.task is not None:
            self._context.cancelled.set(reason)
            self.task.cancel()
        if answer_after_s is not None and self._answer_timer is None:
            self._answer_timer = self._loop.call_later(answer_after_s, self._answer_for_handler)

    def _answer_for_handler(self) -> None:
        if self._finish(self._cancellation()):
            self._context.log.warning(
                "the handler ignores its cancellation; its slot stays busy until it ends"
            )

    def _on_done(self, _: asyncio.Task[None]) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        # a task that was cancelled before its first step has not answered yet
        self._finish(self._cancellation())
        self._pool._forget(self._session, self._output.key)

    async def _run(self) -> None:
        value, failure = NULL, None
        try:
            value = await self._produce()
        except asyncio.CancelledError:
            failure = self._cancellation()
        except TaskError as error:
            # without what may quote the request
            self._pool._failures.log(self._tell, f"failed with {error.code}: {unquoted(error.message)}")
            failure = error
        except Exception as error:
            # The edge of the handler: its task ends as failed, the worker continues.
            self._context.log.exception("the handler failed")
            failure = TaskError("WORKER_ERROR", f"{type(error).__name__}: {error}")
        self._finish(failure, value)

    async def _produce(self) -> Raw:
        """Send what the handler yields. Return its result."""
        route = self._pool._registry.find(self._task.model, self._task.type)
        if route is None:
            raise TaskError("WORKER_ERROR", "The handler has ended.")
        stream = route.open(self._task, self._context)
        result, binary = NULL, Base64Pieces()
        async with contextlib.aclosing(stream):
            async for item in stream:
                if isinstance(item, str):
                    if item:
                        await self._emit(Delta(content=item))
                elif isinstance(item, bytes):
                    for text in binary.add(item):
                        await self._emit(Delta(content=text))
                elif isinstance(item, Delta):
                    await self._emit(item)
                elif isinstance(item, Usage):
                    self._context.set_usage(item)
                elif isinstance(item, Result):
                    result = _json_result(item.value)
                else:
                    raise TypeError(
                        f"A handler yields str, bytes, Delta, Usage or Result, not {type(item).__name__}."
                    )
        if text := binary.rest():
            await self._emit(Delta(content=text))
        return result

    async def _emit(self, delta: Delta) -> None:
        if self._context.cancelled:  # the handler has swallowed its cancellation and continues
            raise asyncio.CancelledError
        encoded = protocol.encoder.encode(delta)
        try:
            check_delta(encoded)
        except (ValueError, RecursionError) as error:
            raise TaskError("WORKER_ERROR", f"The gateway would reject this delta: {error}") from error
        if len(encoded) > self._session.max_delta_bytes:
            raise TaskError(
                "WORKER_ERROR",
                f"One delta has {len(encoded)} bytes; the limit is {self._session.max_delta_bytes}.",
            )
        if self._first_output is None:
            self._first_output = self._loop.time()
            if self._span is not None:
                self._span.event("first_output")
        if not self._session.emit(self._output, encoded):
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        """Return when the output is not full; ends by cancellation when the connection does."""
        while self._output.full:
            room = asyncio.Event()
            self._output.on_room = room.set
            await room.wait()

    async def _send_progress(self, message: protocol.TaskProgress) -> None:
        if not self._session.progress(self._output, message):
            await self._wait_for_room()

    def _send_sent(self) -> None:
        """Report it immediately on the event loop, or in its next tick from the thread of a plain function."""
        if threading.get_ident() == self._thread:
            self._session.sent(self._output)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._session.sent, self._output)

    def _tell(self, line: str, and_others_before: int = 0) -> None:
        self._context.log.info(
            f"{line} ({and_others_before} others failed before it)" if and_others_before else line
        )

    def _cancellation(self) -> TaskError:
        """Return the failure of a handler that was cancelled."""
        reason = self._context.cancelled.reason
        if reason == "shutdown":
            return TaskError("WORKER_ERROR", "The worker is shutting down.", retryable=True)
        why = f"Cancelled ({reason})." if reason else "The handler was cancelled from inside."
        return TaskError("WORKER_ERROR", why)

    def _finish(self, failure: TaskError | None, value: Raw = NULL) -> bool:
        """End the task with a failure or a result. The first call counts; return whether it was this one."""
        first, now = self._first_output, self._loop.time()
        result = protocol.TaskResult(
            self._task.task_id,
            self._task.attempt,
            result=value,
            usage=self._context.usage_json,
            timings=protocol.Timings(
                None if first is None else _ms(first - self._started), _ms(now - self._started)
            ),
        )
        if failure is not None:
            result.error = failure.message
            result.error_info = protocol.ErrorInfo(
                failure.code, failure.retryable, failure.message, failure.http_status, failure.retry_after_ms
            )
        if self._span is not None:
            self._span.end("" if failure is None else failure.code)
        return self._session.finish(self._output, result)


class Base64Pieces:
    """Encodes pieces so that their texts together are the base64 of all bytes: each but the last has whole groups of three."""

    def __init__(self) -> None:
        self._left = b""

    def add(self, data: bytes) -> Iterator[str]:
        """The texts that these bytes bring, often one."""
        data = self._left + data
        whole = len(data) - len(data) % 3
        self._left = data[whole:]
        for at in range(0, whole, MAX_PIECE):
            yield base64.b64encode(data[at : min(at + MAX_PIECE, whole)]).decode()

    def rest(self) -> str:
        """Return the text of the remaining bytes, or ''."""
        data, self._left = self._left, b""
        return base64.b64encode(data).decode()


def _begin_span(tracer: Tracer, task: Task) -> Span:
    """The span of a task on this worker; what its handler calls with `task.traceparent` belongs to it."""
    attributes: Attributes = {
        "gen_ai.request.model": task.model,
        "fairlane.task.id": task.task_id,
        "fairlane.task.type": task.type,
        "fairlane.attempt": task.attempt,
    }
    span = tracer.span(f"handle {task.model}", "consumer", read_traceparent(task.traceparent), attributes)
    task.traceparent = span.traceparent
    return span


def _json_result(value: object) -> Raw:
    try:
        return as_json(value)
    except (TypeError, ValueError) as error:
        raise TaskError("WORKER_ERROR", f"The handler's result is not JSON: {error}") from error


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
