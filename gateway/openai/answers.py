"""Submits the tasks of /v1, with Fairlane's options in headers, and answers with a body or a stream."""

import math
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.answers import WholeAnswer, attach, event_time
from fairlane.gateway.api.idempotency import OPTIONS, REPLAYED, IdempotencyKey
from fairlane.gateway.core.bodies import RawObject, parse_object
from fairlane.gateway.core.spec import Options, build_openai_task, check_metadata
from fairlane.gateway.core.submit import LOST, Accepted, SubmittedTask
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.errors import AnswerCut, ApiError, Headers, bad_request, gateway_failed, task_failed
from fairlane.gateway.http.request import SSE_HEADERS, Request
from fairlane.gateway.http.streams import OVERDUE_S, FailedBeforeStart, LogReader, StreamAnswer
from fairlane.queues.tasks import Place, State, TaskSpec
from fairlane.streaming.events import Event, read_error, read_queued
from fairlane.streaming.hub import Interrupted, Lost, Reader
from fairlane.streaming.views.media.speech import CutShort
from fairlane.streaming.views.result import ResultShapeError, ResultView
from fairlane.streaming.views.stream import StreamView
from fairlane.streaming.views.task import TaskInfo

QUEUE_CHUNK_S = 30.0
HOLD_HEAD_S = 1.0
"""The longest delay of a stream's head: afterwards the client would not learn that its request was accepted."""


def task_of(
    tasks: Tasks,
    caller: Caller,
    request: Request,
    task_type: str,
    body: bytes,
    fields: RawObject,
    idempotency: IdempotencyKey | None,
    stream: bool,
    *,
    wait: bool = True,
    task_id: str = "",
) -> TaskSpec:
    """Return the task of a request with this body, whose members are `fields`. `wait`: the client waits or reads. `task_id`:
    as in `build_openai_task`. Raise ApiError."""
    if caller.user_from:
        caller = caller.named(fields)
        tasks.calls.name(request, caller)
    options = options_of(request, stream=stream, wait=wait)
    subject = idempotency.key if idempotency else ""
    task = build_openai_task(
        *(tasks.current, caller, task_type, body, fields, options), subject=subject, task_id=task_id
    )
    attach(task, request, idempotency)
    return task


def options_of(request: Request, *, stream: bool, wait: bool = True) -> Options:
    """Return the options in a request's headers. Raise ApiError(400)."""
    if request.headers.keys().isdisjoint(OPTIONS):
        return Options(wait=wait, stream=stream, on_v1=True)
    return Options(
        wait=wait,
        stream=stream,
        timeout=_number(request, b"x-fairlane-timeout"),
        mode=request.header(b"x-fairlane-mode"),
        priority=_number(request, b"x-fairlane-priority"),
        on_disconnect=request.header(b"x-fairlane-on-disconnect"),
        result_ttl_ms=_number(request, b"x-fairlane-result-ttl"),
        metadata=_metadata(request),
        repair=_flag(request, b"x-fairlane-repair"),
        on_v1=True,
    )


def _number(request: Request, name: bytes) -> int | float | None:
    text = request.header(name)
    if text is None:
        return None
    try:
        number = float(text)
        whole = int(number)
    except (ValueError, OverflowError):  # also NaN and infinity
        raise bad_request(f"the header {name.decode()} must be a number", name.decode()) from None
    return whole if number == whole else number


def _flag(request: Request, name: bytes) -> bool | None:
    text = request.header(name)
    if text is None:
        return None
    if text not in ("1", "true", "0", "false"):
        raise bad_request(f"the header {name.decode()} must be 1 or 0", name.decode())
    return text in ("1", "true")


def _metadata(request: Request) -> bytes:
    text = request.header(b"x-fairlane-metadata")
    if text is None:
        return b""
    raw = text.encode("latin-1")
    check_metadata(raw)
    parse_object(raw, "The header X-Fairlane-Metadata")
    return raw


class OpenAIAnswer(WholeAnswer):
    """An answer with a body, as one of the APIs of /v1 shows it."""

    async def failure(self) -> ApiError:
        failure = self.end.error and self.end.error.in_words()
        took_ms = self.waited_ms + self.ran_ms
        return task_failed(failure, self.task_id, took_ms=took_ms, headers=self.headers)


class ParsedCall(NamedTuple):
    """A request: its task and the form of its answer."""

    task: TaskSpec
    streamed: Callable[[TaskInfo], StreamView] | None
    """None: the answer is a body."""
    whole: Callable[[TaskInfo], ResultView] | None
    """None: the answer is always a stream."""
    instead: Callable[[], Awaitable[None]] | None = None
    """Answers in place of both, without waiting."""
    kind: Headers = SSE_HEADERS
    """The headers of the stream's content type."""
    accepted: Accepted | None = None
    """Called before the views are made."""


async def respond(
    tasks: Tasks,
    caller: Caller,
    request: Request,
    read: Callable[[Tasks, Caller, Request], Awaitable[ParsedCall]],
) -> None:
    """Submit the task of a request, and wait for its end or stream it. Until the first byte, raise as `WholeAnswer.write`.

    One coroutine: a waiting stream keeps this frame, and nothing of the body.
    """
    task, streamed, whole, instead, kind, accepted = await read(tasks, caller, request)
    if instead is not None:
        await instead()
        return
    if streamed is None:
        assert whole is not None
        answer = OpenAIAnswer(tasks, request, task, whole, accepted=accepted)
        del task, read, streamed, whole, instead, accepted
        await answer.write()
        return
    # a client can return to a task with an idempotency key
    task_id, lingers, hub = task.id, task.linger_ms > 0 and not task.idempotency_key, tasks.hub
    came_to_end, give_up = False, math.inf
    try:
        follow = SubmittedTask(tasks.submit, hub, task, accepted)
        async with follow as submitted:
            feed, enqueued_ms, request.rate_limits = follow.feed, submitted.enqueued_ms, submitted.rate_limits
            give_up = hub.time() + task.timeout_ms / 1000 + OVERDUE_S
            place = None
            if submitted.state is State.QUEUED and feed.top == 0:
                place = submitted.place
                tasks.positions.add(feed, place)
            info, queue, model, joined = follow.info, task.queue, submitted.line, follow.joined_at is not None
            task_id = info.task_id
            headers = [*kind, *_ids(task_id), *(REPLAYED if joined else ())]
            shown = OpenAIStream(tasks, request, Reader(hub, feed, ephemerals=True), streamed(info), headers)
            shown.place, shown.give_up = place, give_up
            # an SSE stream reports its queue position immediately; a stream of bytes can report a failure by its status alone
            if kind is not SSE_HEADERS:
                shown.hold_s = math.inf
            elif place is None:
                shown.hold_s = min(HOLD_HEAD_S, tasks.settings.tuning.keepalive_ms / 1000)
            del (
                task,
                submitted,
                place,
                headers,
                read,
                streamed,
                whole,
                instead,
                accepted,
            )  # the stream can last long
            try:
                came_to_end = await shown.write()
            except FailedBeforeStart as failed:
                came_to_end = True
                failure = read_error(failed.end.data).in_words() if failed.end.type == "error" else None
                took_ms = max(event_time(failed.end) - enqueued_ms, 0)
                replayed = REPLAYED if joined else ()
                raise task_failed(failure, task_id, took_ms=took_ms, headers=replayed) from None
            except Lost:
                shown.was_lost = True
                raise gateway_failed("STORE_LOST", LOST, task_id) from None
            except Interrupted:
                raise tasks.lifecycle.rejection(task_id) from None
            except TimeoutError:
                raise gateway_failed("TOTAL_TIMEOUT", "Task timeout", task_id) from None
            except (ResultShapeError, CutShort) as error:
                came_to_end = shown.view.ended
                if request.started:
                    raise AnswerCut from None
                code = error.code if isinstance(error, CutShort) else "JSON_PARSE_FAILED"
                raise gateway_failed(code, str(error), task_id) from None
            finally:
                if shown.was_lost and not joined:
                    tasks.submit.lost(info, (queue, model), request.id.decode(), enqueued_ms)
    finally:
        if not came_to_end and lingers:  # the rest has no reader, also when the gateway stops
            tasks.cancel_soon(task_id, "client" if hub.time() < give_up else "timeout")


class OpenAIStream(StreamAnswer[StreamView]):
    """A stream of /v1, with reports of the queue position and keep-alives while its task waits."""

    __slots__ = ("_noticed_at", "_reported_at", "was_lost")

    def __init__(
        self, tasks: Tasks, request: Request, reader: LogReader, view: StreamView, headers: Headers
    ) -> None:
        super().__init__(tasks, request, reader, view, headers)
        self._reported_at = tasks.hub.time()
        self._noticed_at = -math.inf
        self.was_lost = False

    def opening(self) -> bytes:
        return self.view.open()

    def notice(self, event: Event) -> bytes:
        """Return a chunk for a new queue position."""
        if event.type != "queued":
            return b""
        self.place = read_queued(event.data)
        now = self.tasks.hub.time()
        if now - self._noticed_at < self.view.place_every_s:
            return b""
        self._noticed_at = now
        return self._report(self.place)

    def idle(self) -> bytes:
        if self.place and self.tasks.hub.time() - self._reported_at >= QUEUE_CHUNK_S:
            return self._report(self.place)
        return self.view.silence

    def _report(self, place: Place) -> bytes:
        self._reported_at = self.tasks.hub.time()
        return self.view.queue_chunk(place)

    def lost(self) -> bytes:
        self.was_lost = True
        return self.view.failed("The store lost a part of this stream", "STORE_LOST")

    def overdue(self) -> bytes:
        return self.view.failed("Task timeout", "TOTAL_TIMEOUT")

    def unread(self) -> bytes:
        return self.view.failed("Redis is unavailable; read the rest later", "STORE_UNAVAILABLE")

    def farewell(self) -> bytes:
        return self.view.failed("The gateway stops; please try again", "GATEWAY_STOPPING")

    def revoked(self) -> bytes:
        return self.view.failed("The key of this call is not valid any more", "UNAUTHORIZED")


def _ids(task_id: str) -> Headers:
    return [(b"x-task-id", task_id.encode())]
