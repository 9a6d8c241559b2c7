"""The Fairlane API: `/api/openai`, `/api/tasks`, and a task's status, cancel and events."""

import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from fairlane.gateway.access import Access
from fairlane.gateway.accounts.callers import Caller, forbidden
from fairlane.gateway.api.answers import WholeAnswer, attach
from fairlane.gateway.api.idempotency import (
    FIELD,
    KEY_HEADER,
    REPLAYED,
    IdempotencyKey,
    read_idempotency,
    same_task_key,
    state_fields,
)
from fairlane.gateway.api.raw_routes import IDEMPOTENCY_KEY, Json, RawRoute, header, query
from fairlane.gateway.api.schemas import (
    REF,
    STRING,
    Accepted,
    Cancelled,
    NativeRequest,
    TaskRequest,
    TaskStatus,
    json,
)
from fairlane.gateway.attached import AnswerMode, NativeCall, NativeTask
from fairlane.gateway.audit.log import actor_of
from fairlane.gateway.core.bodies import RawObject, encode_members, has_image, value_of
from fairlane.gateway.core.poll import not_found, place_fields, plan_fields, poll_after, record_info
from fairlane.gateway.core.resume import read_cursor, resume
from fairlane.gateway.core.spec import (
    OWN_FIELDS,
    OWN_MEMBERS,
    TaskBuilder,
    read_flag,
    read_model,
    read_options,
    read_type,
)
from fairlane.gateway.core.submit import SubmittedTask
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.errors import DEFAULT_MODEL, ApiError, Headers, bad_request
from fairlane.gateway.http.request import JSON, SSE_HEADERS, Request
from fairlane.gateway.http.streams import OVERDUE_S, StreamAnswer
from fairlane.gateway.prompts.filling import FilledTemplate, fill_in
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.ids import could_be_ours, new_task_id
from fairlane.queues.tasks import PERMIT, ExistingTask, Record, State, TaskSpec
from fairlane.streaming.events import Event, bye_event, gap_event, overdue_event, queued_event, restart_event
from fairlane.streaming.hub import LiveLog, Reader
from fairlane.streaming.jsontext import kind_of
from fairlane.streaming.views.native import NativeStreamView
from fairlane.streaming.views.sse import KEEPALIVE, native_frame
from fairlane.streaming.views.task import TaskInfo


async def openai(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /api/openai: any JSON object is the payload of an `openaiLike` task."""
    body, fields = await tasks.bodies.read(request, tasks.current.settings.max_body_bytes)
    idempotency = None
    if KEY_HEADER in request.headers or FIELD in fields:
        idempotency = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=True)
    payload = body if OWN_MEMBERS.isdisjoint(fields) else encode_members(fields, OWN_FIELDS)
    task_id = new_task_id()
    call = NativeCall(request, caller, fields, task_id, idempotency.key if idempotency else task_id)
    native = _make(tasks, call, idempotency, "openaiLike", payload, own=OWN_FIELDS)
    del body, fields, payload, call  # the answer may take long
    await _answer(tasks, request, native)


async def submit_task(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /api/tasks: `{type, model, payload, …}` for any task type; or `{template, …}`, or `{chain, …}`."""
    await _answer(tasks, request, await _read_task(tasks, caller, request))


def _answer(tasks: Tasks, request: Request, native: NativeTask) -> Awaitable[None]:
    """Answer a request. Its body is no longer in memory, as the answer may take long."""
    if native.mode is AnswerMode.LATER:
        return _answer_later(tasks, request, native)
    if native.mode is AnswerMode.STREAM:
        return _stream(tasks, request, native.task)
    return WholeAnswer(tasks, request, native.task, failed=native.failed).write()


async def _read_task(tasks: Tasks, caller: Caller, request: Request) -> NativeTask:
    _, fields = await tasks.bodies.read(request, tasks.settings.max_body_bytes)
    idempotency = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=True)
    task_id = new_task_id()
    subject = idempotency.key if idempotency else task_id
    call = NativeCall(request, caller, fields, task_id, subject)
    for feature in tasks.attached:
        if feature.prepare is not None and (preparing := feature.prepare(call)) is not None:
            native = await preparing
            attach(native.task, request, idempotency)
            return native
    if kind_of(fields.get("chain") or b""):
        raise bad_request("This gateway has chains disabled", "chain")
    if kind_of(fields.get("template") or b""):
        filled = await fill_in(tasks.current, caller, fields, tasks.bodies, subject)
        if idempotency is None:
            idempotency = await same_task_key(request, tasks.settings, tasks.bodies, fields, filled)
        return _make(tasks, call, idempotency, "openaiLike", filled.payload, filled.fields, filled=filled)
    task_type = read_type(fields)
    payload = fields.get("payload")
    if payload is None:
        raise bad_request("payload is missing: the JSON that the worker gets", "payload")
    inner = await tasks.bodies.parse(payload, "The payload") if kind_of(payload) == "{" else {}
    named = value_of(inner, "model")
    if not isinstance(named, str):
        named = None
    else:  # a version 1 worker gets this one
        if not caller.may_use(named):
            raise forbidden(caller, named)
    return _make(tasks, call, idempotency, task_type, bytes(payload), inner, named=named)


def _make(
    tasks: Tasks,
    call: NativeCall,
    idempotency: IdempotencyKey | None,
    task_type: str,
    payload: bytes,
    members: RawObject | None = None,
    *,
    own: tuple[str, ...] = (),
    named: str | None = None,
    filled: FilledTemplate | None = None,
) -> NativeTask:
    """`members`: those of the payload, if they are not the call's. `named`: the model in the payload, which is the task's
    default. `filled`: the template that made the payload."""
    caller, fields = call.caller, call.fields
    if members is None:
        members = fields
    if caller.user_from:
        tasks.calls.name(call.request, caller)
    if filled is None:
        default = caller.only_model if caller.claims else None
        name = read_model(fields, named or default or DEFAULT_MODEL)
        plan = tasks.current.plan(caller, name, partial(has_image, members), call.subject)
    else:
        plan = filled.plan
    asynchronous = read_flag(fields, "async")
    stream = read_flag(fields, "stream") or (
        plan.rule is not None and plan.rule.stream and not kind_of(fields.get("stream") or b"")
    )
    options = read_options(fields, wait=not asynchronous, stream=stream)
    options.template = "" if filled is None else filled.template
    tell_model = plan.asked != DEFAULT_MODEL or plan.rule is not None
    builder = TaskBuilder(tasks.current.settings, caller, call.task_id, task_type, options, own, tell_model)
    task = builder.task(plan, payload, members)
    if not caller.may_use(plan.asked):
        raise forbidden(caller, plan.asked)
    attach(task, call.request, idempotency)
    if asynchronous:
        return NativeTask(task, AnswerMode.LATER)
    return NativeTask(task, AnswerMode.STREAM if stream else AnswerMode.WAIT)


# ---- answers ----------


async def _answer_later(tasks: Tasks, request: Request, native: NativeTask) -> None:
    task = native.task
    # (the client itself reports the end of a permit)
    if tasks.settings.has("webhooks") and task.task_type != PERMIT:
        task.extras["webhooks"] = True
    submitted = await tasks.submit(task)
    task_id, again = task.id, {}
    if isinstance(submitted, ExistingTask):
        assert request.caller is not None
        task_id, again = submitted.task_id, {"replay": True, "idemKey": task.idempotency_key}
        shown = await state_fields(submitted, tasks.poll, request.caller)
        plan = plan_fields(submitted.asked, submitted.model, submitted.template)
    else:
        shown = {"taskId": task_id, "status": "queued", **place_fields(submitted.place)}
        shown["pollAfterMs"] = poll_after(submitted.place.wait_ms)
        if native.accepted is not None:
            shown |= await native.accepted(submitted)
        plan = plan_fields(task.asked, submitted.model, task.template)
    links = {"streamUrl": tasks.links.url(task_id), "statusUrl": f"/api/task/{task_id}"}
    ids = [(b"x-task-id", task_id.encode()), (b"location", b"/api/task/" + task_id.encode())]
    body = msgspec.json.encode({**shown, **links, **plan, **again})
    await request.respond(202, body, [JSON, *ids, *(REPLAYED if again else ())])


async def _stream(tasks: Tasks, request: Request, task: TaskSpec) -> None:
    came_to_end, give_up = False, math.inf
    follow = SubmittedTask(tasks.submit, tasks.hub, task)
    try:
        async with follow as submitted:
            give_up = tasks.hub.time() + task.timeout_ms / 1000 + OVERDUE_S
            feed, info, enqueued_ms = follow.feed, follow.info, submitted.enqueued_ms
            lane = (task.queue, submitted.line)
            reader = Reader(tasks.hub, feed, ephemerals=True)
            replayed = REPLAYED if follow.joined_at else ()
            answer = NativeAnswer(
                *(tasks, request, reader, _view_of(tasks, info, feed, "stage" in task.extras)),
                [*SSE_HEADERS, (b"x-task-id", info.task_id.encode()), *replayed],
            )
            answer.give_up = give_up
            if submitted.state is State.QUEUED and feed.top == 0:
                answer.first = native_frame(queued_event(info.task_id, now_ms(), submitted.place))
                tasks.positions.add(feed, submitted.place)
            del submitted  # the stream can last long
            came_to_end = await answer.write()
            if answer.was_lost and follow.joined_at is None and await _is_gone(tasks, info.task_id):
                tasks.submit.lost(info, lane, task.request_id, enqueued_ms)
    finally:
        no_linger = task.linger_ms and not tasks.settings.tuning.linger_ms and not task.idempotency_key
        if no_linger and not came_to_end and not follow.feed.keep_alive and not tasks.open_answers.now:
            tasks.cancel_soon(task.id, "client" if tasks.hub.time() < give_up else "timeout")


async def _is_gone(tasks: Tasks, task_id: str) -> bool:
    """Return whether Redis lost a task, and not only a part of its log, whose rest the client can still read."""
    try:
        await tasks.poll.record(task_id)
    except ApiError:
        return True
    except StoreError:
        pass
    return False


class NativeAnswer(StreamAnswer[NativeStreamView]):
    """The native stream of a task's log, with the events that are not logged."""

    __slots__ = ("was_lost",)
    resumable = True

    def __init__(
        self, tasks: Tasks, request: Request, reader: Reader, view: NativeStreamView, headers: Headers
    ) -> None:
        super().__init__(tasks, request, reader, view, headers)
        self.was_lost = False

    @property
    def waits_behind(self) -> int:
        return self.view.waits_behind if isinstance(self.view, StagedView) else 0

    @contextlib.asynccontextmanager
    async def ending(self) -> AsyncIterator[list[bytes]]:
        yield self.view.finish(await self.tasks.results.of(self.view.info))  # made of the log

    def notice(self, event: Event) -> bytes:
        return native_frame(event)

    def idle(self) -> bytes:
        return KEEPALIVE

    def lost(self) -> bytes:
        self.was_lost = True
        task_id, ts = self.view.info.task_id, now_ms()
        return (
            native_frame(gap_event(task_id, ts, "", "lost"))
            + native_frame(restart_event(task_id, ts, "the store lost events that were seen"))
            + native_frame(bye_event(task_id, ts, "gap", 1000))
        )

    def overdue(self) -> bytes:
        self.view.pending = None
        return self.view.feed(overdue_event(self.view.info.task_id, now_ms()))

    def unread(self) -> bytes:
        return _bye(self.view.info.task_id, "store")

    def farewell(self) -> bytes:
        return _bye(self.view.info.task_id, "drain")

    def revoked(self) -> bytes:
        return _bye(self.view.info.task_id, "revoked")


class StagedView(NativeStreamView):
    """The stream of a task that waits again between its stages."""

    waits_behind = 0

    def __init__(self, info: TaskInfo, waits: Callable[[int], None]) -> None:
        """`waits` is called with the number of an event after which the task waits for its next stage."""
        super().__init__(info)
        self._waits = waits

    def feed(self, event: Event) -> bytes:
        if event.type == "stage" and b'"status":"queued"' in event.data:
            self.waits_behind = event.seq
            self._waits(event.seq)
        return super().feed(event)


def _view_of(tasks: Tasks, info: TaskInfo, feed: LiveLog, has_stages: bool) -> NativeStreamView:
    return (
        StagedView(info, partial(tasks.positions.add, feed, None)) if has_stages else NativeStreamView(info)
    )


def _bye(task_id: str, reason: str) -> bytes:
    """Return the frame that asks a reader to reconnect, after a time that is spread so that not all come at the same time."""
    return native_frame(bye_event(task_id, now_ms(), reason, 500 + time.monotonic_ns() // 1000 % 2500))


# ---- one task ----------


async def status(tasks: Tasks, caller: Caller, request: Request) -> None:
    """GET /api/task/{taskId}: the status of a task, with its result when it is completed."""
    task_id = request.path_params["task_id"]
    headers = [JSON, (b"x-task-id", task_id.encode())]
    try:
        record = await tasks.poll.find(caller, task_id)
        parts = await tasks.poll.answer(task_id, record, tasks.links.url(task_id))
    except ApiError as error:
        if error.status != 404:
            raise
        archived = await tasks.poll.archived(task_id, caller)
        await request.respond_in_parts(200, [archived.answer], headers)
        return
    await request.respond_in_parts(200, parts, headers)
    del parts
    await tasks.poll.was_read(caller, task_id, record)


async def cancel(tasks: Tasks, caller: Caller, request: Request) -> None:
    """POST /api/task/{taskId}/cancel: succeeds also after the task's end."""
    task_id = request.path_params["task_id"]
    state = await cancelled_state(tasks, caller, request, task_id)
    body = msgspec.json.encode({"taskId": task_id, "status": state})
    await request.respond(200, body, [JSON, (b"x-task-id", task_id.encode())])


async def cancelled_state(tasks: Tasks, caller: Caller, request: Request, task_id: str) -> str:
    """Cancel a task that the caller may see. Return its status then; one that has ended does not change. Raise ApiError(404)."""
    try:
        record = await tasks.poll.find(caller, task_id)
    except ApiError as error:
        if error.status != 404:
            raise
        return (await tasks.poll.archived(task_id, caller)).state
    if caller.owns(record.fields.get("key_id", ""), record.fields["user"]):
        return await tasks.cancel.own(task_id, record)
    return await tasks.cancel.others(task_id, record, actor_of(caller, request.address))


async def events(tasks: Tasks, caller: Caller | None, request: Request) -> None:
    """GET /api/task/{taskId}/events and /api/sse-stream?taskId=: the log after a cursor, then live events.

    `caller` None: the client presented a ticket for this task instead of a key.
    """
    task_id = request.path_params["task_id"]
    if not could_be_ours(task_id, now_ms()):
        raise not_found(task_id)
    from_latest = request.query("fromLatest") in ("1", "true")
    try:
        ticket = None if caller else await tasks.links.use(request.query("token") or "", task_id)
        owner = None if caller is None or caller.sees_all else (caller.key_id, caller.user)
        async with tasks.hub.read(task_id, keep_alive=True, owner=owner) as found:
            if found is None:
                raise not_found(task_id)
            if ticket is not None:
                tasks.calls.enter_for_owner(
                    request, found[0].fields.get("key_id", ""), found[0].fields["user"]
                )
            answer = await _replay(tasks, request, task_id, *found, from_latest)
            del found  # the record is large, and the stream can last long
            with ticket or contextlib.nullcontext():
                await answer
    except StoreError:
        if request.started:
            raise
        await _ask_to_reconnect(request, task_id)


async def _ask_to_reconnect(request: Request, task_id: str) -> None:
    """Answer a reader while Redis is down: a browser's EventSource never retries after a 503, but reconnects after a `bye`."""
    await request.respond(200, _bye(task_id, "store"), [*SSE_HEADERS, (b"x-task-id", task_id.encode())])


async def _replay(
    tasks: Tasks, request: Request, task_id: str, record: Record, reader: Reader, from_latest: bool
) -> Awaitable[object]:
    """Return the answer to a reader of a task's log. Raise StoreError."""
    # Last-Event-ID takes precedence over ?after=; an invalid one is no error, as EventSource never retries after a 400
    seen = request.header(b"last-event-id") or request.query("after") or request.query("lastEventId")
    start = await resume(tasks.hub, reader, record, read_cursor(seen), from_latest)
    if start.seen_all:
        return request.respond(204, b"", [(b"x-task-id", task_id.encode())])
    first = b""
    if start.missing:
        ts = now_ms()
        first = native_frame(gap_event(task_id, ts, start.asked, start.missing))
        first += native_frame(restart_event(task_id, ts, "the events that were seen are not in the log"))
    view = _view_of(tasks, record_info(task_id, record), reader.feed, "stage" in record.fields)
    replay_from = b"%d-%d" % start.after if start.after else b"0-0"
    if record.state is State.QUEUED and record.place.position:
        first += native_frame(queued_event(task_id, now_ms(), record.place))
        tasks.positions.add(reader.feed, record.place, reader.feed.top)
    headers = [*SSE_HEADERS, (b"x-task-id", task_id.encode()), (b"x-replay-from", replay_from)]
    answer = NativeAnswer(tasks, request, reader, view, headers)
    answer.first = first
    return answer.write()


_WAYS = "The call waits for the result; with `async` it returns a task id, with `stream` the task's events."
_TASK_EVENTS = {"text/event-stream": {"itemSchema": {"$ref": REF.format(name="NativeEvent")}}}
_AFTER = (
    query("after", "the id of the last event seen"),
    query("fromLatest", "1: only later events"),
    query("token", "of a `streamUrl`, instead of a key"),
    header("last-event-id", "takes precedence over `after`"),
)


def _task(path: str, call: Any, id_: str, summary: str, body: Any) -> RawRoute:
    return RawRoute(
        *("POST", path, call, id_, summary),
        access=Access.TASKS,
        description=f"{summary}. {_WAYS}",
        submits=True,
        parameters=(IDEMPOTENCY_KEY,),
        body=json(body),
        answer=json({}) | _TASK_EVENTS,
        answers={"202": {"description": "With `async`", "content": json(Accepted)}},
    )


def _events(path: str, id_: str, summary: str, *parameters: Json) -> RawRoute:
    return RawRoute(
        *("GET", path, events, id_, summary),
        access=Access.READER,
        description=f"{summary}: past events, or those after one, then new ones as they arrive.",
        parameters=(*parameters, *_AFTER),
        answer=_TASK_EVENTS,
        answers={"204": {"description": "The last event was seen"}},
    )


_TASK_ID = {"in": "query", "name": "taskId", "required": True, "schema": STRING}

ROUTES = (
    _task("/api/openai", openai, "tasks.create_chat", "Create a chat task", NativeRequest),
    _task("/api/tasks", submit_task, "tasks.create", "Create a task", TaskRequest),
    _events(
        "/api/sse-stream",
        "tasks.events_by_query",
        "Stream a task's events, with the id in the query",
        _TASK_ID,
    ),
    RawRoute(
        *("GET", "/api/task/{task_id}", status, "tasks.get", "Get a task"),
        access=Access.TASKS,
        description="Its position and estimated wait while it waits, its result when it is completed.",
        answer=json(TaskStatus),
    ),
    RawRoute(
        *("POST", "/api/task/{task_id}/cancel", cancel, "tasks.cancel", "Cancel a task"),
        access=Access.TASKS,
        description="A task that has ended does not change; the answer has its status.",
        answer=json(Cancelled),
    ),
    _events("/api/task/{task_id}/events", "tasks.events", "Stream a task's events"),
)
