"""OpenAI's surface: chat completions, completions, embeddings, models. Official SDKs work unmodified."""

import math
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import msgspec

from fairlane.gateway.accounts.callers import Caller, check_model
from fairlane.gateway.calls.bodies import Members, has_image, parse_object, value_of
from fairlane.gateway.calls.http import JSON, Request
from fairlane.gateway.calls.idempotency import Said, name_task, read_idempotency
from fairlane.gateway.calls.intake import (
    Options,
    check_choices,
    check_metadata,
    make_task,
    read_flag,
    read_model,
)
from fairlane.gateway.calls.streams import Refused, serve
from fairlane.gateway.calls.tracing import follow as trace
from fairlane.gateway.errors import Headers, bad_request, gateway_failed, model_not_found, task_failed
from fairlane.gateway.tasks.replayed import HEADERS as REPLAYED
from fairlane.gateway.tasks.submit import LOST, ran_by
from fairlane.gateway.tasks.tasks import Tasks
from fairlane.gateway.tasks.wait import OVERDUE_S, event_time
from fairlane.queues.ids import new_task_id
from fairlane.queues.tasks import Place, State, TaskSpec
from fairlane.streaming.events import Event, read_error, read_queued
from fairlane.streaming.hub import Interrupted, Lost, Reader
from fairlane.streaming.jsontext import kind_of
from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.completions import CompletionBodyView, CompletionStreamView
from fairlane.streaming.views.embeddings import EmbeddingBodyView
from fairlane.streaming.views.openai_common import OpenAIBodyView, OpenAIStreamView
from fairlane.streaming.views.result import MisfitError
from fairlane.streaming.views.sse import KEEPALIVE, error_frame
from fairlane.streaming.views.task import TaskInfo

QUEUE_CHUNK_S = 30.0
HOLD_HEAD_S = 1.0
"""How long a stream may hold its head back; longer, and its caller would not know that it was accepted."""


def chat_completions(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/chat/completions."""
    return _answer(tasks, caller, request, _CHAT)


def completions(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/completions."""
    return _answer(tasks, caller, request, _COMPLETION)


async def embeddings(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /v1/embeddings."""
    task, encoding = await _read_embedding(tasks, caller, request)
    await _wait(tasks, request, task, partial(EmbeddingBodyView, encoding_format=encoding))


async def models(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/models: what is configured or offered now."""
    data = list((await tasks.models.rows(caller)).values())
    request.standing = await tasks.allowances.standing(caller)
    await request.respond(200, msgspec.json.encode({"object": "list", "data": data}), [JSON])


async def model(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /v1/models/{model}."""
    name = request.path_params["model"]
    row = (await tasks.models.rows(caller)).get(name)
    if row is None:
        raise model_not_found(name)
    request.standing = await tasks.allowances.standing(caller)
    await request.respond(200, msgspec.json.encode(row), [JSON])


# ---- the way of a request ----------


class _Call(NamedTuple):
    """What differs between the calls that may stream: the type of their tasks, a member they must have, and their views."""

    task_type: str
    member: str
    kind: str
    """What it begins with; '' = with anything."""
    sentence: str
    streamed: Callable[[TaskInfo, bool], OpenAIStreamView]
    whole: Callable[[TaskInfo], OpenAIBodyView]


_CHAT = _Call(
    "openaiLike", "messages", "[", "messages must be a list of messages", ChatStreamView, ChatBodyView
)
_COMPLETION = _Call(
    "openaiCompletion", "prompt", "", "You must provide a prompt", CompletionStreamView, CompletionBodyView
)


async def _read(tasks: Tasks, caller: Caller, request: Request, call: _Call) -> tuple[TaskSpec, bool, bool]:
    """The task that a request asks for, whether to stream it, and whether the stream tells the usage. Nothing else of the body is
    left."""
    body = await request.json_body(tasks.settings.max_body_bytes, tasks.bodies.arriving)
    fields = await tasks.bodies.parse(body, caller=request.opener)
    member = fields.get(call.member)
    if member is None or (call.kind and kind_of(member) != call.kind):
        raise bad_request(call.sentence, call.member)
    check_choices(fields)
    stream = read_flag(fields, "stream")
    said = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    task = _task(tasks, caller, request, call.task_type, body, fields, said, stream)
    return task, stream, stream and _include_usage(fields)


async def _read_embedding(tasks: Tasks, caller: Caller, request: Request) -> tuple[TaskSpec, str]:
    body = await request.json_body(tasks.settings.max_body_bytes, tasks.bodies.arriving)
    fields = await tasks.bodies.parse(body, caller=request.opener)
    if "input" not in fields:
        raise bad_request("You must provide an input", "input")
    wanted = value_of(fields, "encoding_format") if "encoding_format" in fields else "float"
    if wanted not in ("float", "base64"):
        raise bad_request("encoding_format must be float or base64", "encoding_format")
    said = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    return _task(tasks, caller, request, "openaiEmbedding", body, fields, said, stream=False), wanted


def _include_usage(fields: Members) -> bool:
    options = value_of(fields, "stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise bad_request("stream_options must be an object", "stream_options")
    value = options.get("include_usage")
    if value is not None and not isinstance(value, bool):
        raise bad_request("include_usage must be true or false", "include_usage")
    return bool(value)


def _task(
    tasks: Tasks,
    caller: Caller,
    request: Request,
    task_type: str,
    body: bytes,
    fields: Members,
    said: Said | None,
    stream: bool,
) -> TaskSpec:
    name, caller = read_model(fields, caller.only_model), caller.named(fields)
    tasks.calls.name(request, caller)
    check_model(caller, name)
    options = Options(
        wait=True,
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
    task_id = new_task_id(time.time_ns() // 1_000_000)
    task = make_task(
        tasks.settings,
        caller,
        tasks.current.plan(caller, name, partial(has_image, fields), said.key if said else task_id),
        task_id=task_id,
        task_type=task_type,
        payload=body,
        fields=fields,
        options=options,
        tell_model=True,
    )
    name_task(task, said)
    trace(request, task)
    return task


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


_Body = OpenAIBodyView | EmbeddingBodyView


async def _wait(
    tasks: Tasks, request: Request, task: TaskSpec, make_view: Callable[[TaskInfo], _Body]
) -> None:
    waited = await tasks.wait(request, task, make_view, _show)
    if waited.end.status != "completed":
        raise task_failed(waited.end.error, waited.task_id, took_ms=sum(waited.took), headers=waited.headers)
    try:
        result = await waited.answer()  # held until it is written: others may share it
    except MisfitError as misfit:
        raise gateway_failed("JSON_PARSE_FAILED", str(misfit), waited.task_id) from None
    ids = [JSON, *_ids(waited.task_id), *ran_by(task, waited.end.info)]
    await request.respond(200, result.json, [*ids, *waited.headers])


def _show(view: _Body) -> bytes:
    return view.body()


async def _answer(tasks: Tasks, caller: Caller, request: Request, call: _Call) -> None:
    """Submit what a request asks for, and wait for its end or stream it. One coroutine: a stream that waits keeps its frame."""
    task, streamed, usage = await _read(tasks, caller, request, call)
    if not streamed:
        await _wait(tasks, request, task, call.whole)
        return
    # one with an idempotency key may be come back to
    task_id, lingers, hub = task.id, task.linger_ms > 0 and not task.idempotency, tasks.hub
    came_to_end, give_up = False, math.inf
    try:
        follow = tasks.submit.followed(task)
        async with follow as submitted:
            feed, enqueued_ms, request.standing = follow.feed, submitted.enqueued_ms, submitted.standing
            give_up = hub.time() + task.timeout_ms / 1000 + OVERDUE_S
            place = None
            if submitted.state is State.QUEUED and feed.top == 0:
                place = submitted.place
                tasks.watch.add(feed, place)
            info, queue, model, joined = follow.info, task.queue, submitted.line, follow.earlier is not None
            task_id = info.task_id
            stream = OpenAIStream(call.streamed(info, usage), hub.time, place)
            reader = Reader(hub, feed, notices=True)
            keepalive_s = tasks.settings.keepalive_ms / 1000
            # one that waits in the queue says so at once
            hold_s = 0.0 if place else min(HOLD_HEAD_S, keepalive_s)
            del task, submitted, place  # it may be long
            try:
                came_to_end = await serve(
                    request,
                    reader,
                    stream,
                    tasks.closing,
                    headers=[*_ids(task_id), *(REPLAYED if joined else ())],
                    keepalive_s=keepalive_s,
                    hold_s=hold_s,
                    give_up=give_up,
                    overdue=stream.overdue,
                )
            except Refused as refused:
                came_to_end = True
                failure = read_error(refused.end.data) if refused.end.type == "error" else None
                took_ms = max(event_time(refused.end) - enqueued_ms, 0)
                replayed = REPLAYED if joined else ()
                raise task_failed(failure, task_id, took_ms=took_ms, headers=replayed) from None
            except Lost:
                stream.was_lost = True
                raise gateway_failed("STORE_LOST", LOST, task_id) from None
            except Interrupted:
                raise tasks.going.refusal(task_id) from None
            finally:
                if stream.was_lost and not joined:
                    tasks.submit.lost(info, (queue, model), request.id.decode(), enqueued_ms)
    finally:
        if not came_to_end and lingers:  # nobody can read the rest here, also when the gateway stops
            tasks.cancel_soon(task_id, "client" if hub.time() < give_up else "timeout")


class OpenAIStream:
    """An OpenAI stream that may wait in the queue: the view, and what keeps clients from giving up meanwhile."""

    __slots__ = ("_place", "_time", "_told_at", "_view", "was_lost")
    waits_behind = 0

    def __init__(self, view: OpenAIStreamView, time: Callable[[], float], place: Place | None) -> None:
        self._view = view
        self._time = time
        self._told_at = time()
        self._place = place
        self.was_lost = False

    pending = None

    @property
    def ended(self) -> bool:
        return self._view.ended

    def feed(self, event: Event) -> bytes:
        self._place = None
        return self._view.feed(event)

    def notice(self, event: Event) -> bytes:
        """A new place in the queue, as a chunk that says nothing else."""
        if event.type != "queued":
            return b""
        self._place = read_queued(event.data)
        return self._tell()

    def idle(self) -> bytes:
        if self._place and self._time() - self._told_at >= QUEUE_CHUNK_S:
            return self._tell()
        return KEEPALIVE

    def _tell(self) -> bytes:
        assert self._place is not None
        self._told_at = self._time()
        return self._view.queue_chunk(self._place)

    def lost(self) -> bytes:
        self.was_lost = True
        return error_frame("The store lost a part of this stream", "STORE_LOST")

    def overdue(self) -> bytes:
        return error_frame("Task timeout", "TOTAL_TIMEOUT")

    def farewell(self) -> bytes:
        return error_frame("The gateway stops; please try again", "GATEWAY_STOPPING")

    def revoked(self) -> bytes:
        return error_frame("The key of this call is not valid any more", "UNAUTHORIZED")


def _ids(task_id: str) -> Headers:
    return [(b"x-task-id", task_id.encode())]
