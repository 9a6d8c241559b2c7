"""Answers of calls that submit a task and wait for its end."""

from collections.abc import Awaitable, Callable
from typing import Any

from fairlane.gateway.api.idempotency import REPLAYED, IdempotencyKey, name_task, read_log
from fairlane.gateway.core.submit import LOST, Accepted, SubmittedTask
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.errors import ApiError, Headers, gateway_failed, task_failed
from fairlane.gateway.http.request import DisconnectWatcher, Request
from fairlane.gateway.http.streams import OVERDUE_S
from fairlane.gateway.http.tracing import follow
from fairlane.queues.tasks import TERMINAL, Submitted, TaskSpec
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Interrupted, Lost, Reader
from fairlane.streaming.views.result import ResultShapeError, ResultView
from fairlane.streaming.views.task import TaskInfo

LOOK_S = 5.0
"""How often a call that waits looks at its deadline."""


def attach(task: TaskSpec, request: Request, key: IdempotencyKey | None) -> None:
    """Give a task the id, the trace and the idempotency key of its request."""
    task.request_id = request.id.decode()
    if key is not None:
        name_task(task, key)
    if request.span is not None or b"traceparent" in request.headers:
        follow(request, task)


class WholeAnswer:
    """An answer with a body: it submits a task, or joins the one that its idempotency key names, and waits for its end.

    A disconnect cancels the task, unless the request says otherwise; so does a gateway that stops before the end. A client with
    an idempotency key may come back: its task lingers, and ends by itself if no client does. At its deadline the call is
    answered, also if the end is unknown. This class answers native calls; `OpenAIAnswer` (`openai/answers.py`) those of /v1.
    """

    joined = False
    """The task had been submitted before (`SubmittedTask`)."""
    final = False
    """It had ended before this call: the next call with the key gets the same answer."""
    waited_ms = 0
    """How long it waited until its last attempt began, by the store's clock, like the events that say so."""
    ran_ms = 0
    """How long it ran from there to its end, by this replica's clock: the worker's replica stamps the end with its own."""
    end: ResultView
    """The view of its terminal event, maybe without its output."""

    def __init__(
        self,
        tasks: Tasks,
        request: Request,
        task: TaskSpec,
        view: Callable[[TaskInfo], ResultView] = ResultView,
        accepted: Accepted | None = None,
        failed: Callable[[str, str], Awaitable[dict[str, Any]]] | None = None,
    ) -> None:
        """`view`: made once the task is accepted. `accepted`: as `Submit` has it; `failed`: as `NativeTask`."""
        self.tasks = tasks
        self.request = request
        self.task = task
        self._view = view
        self._submission = SubmittedTask(tasks.submit, tasks.hub, task, accepted)
        self._failed = failed

    async def write(self) -> None:
        """Wait, and answer. Raise ApiError, StoreError, DatabaseUnavailable, and `Request.gone()`."""
        submission = self._submission
        async with submission as submitted:
            self.request.rate_limits = submitted.rate_limits
            self.joined = submission.joined_at is not None
            await self._wait(submitted)
        if self.end.status != "completed":
            raise await self.failure()
        try:
            if not self.joined:
                kind, body = _typed_body(self.end)
            else:
                reading = self.tasks.results.shown(submission.info, self._view, _typed_body)
                kind, body = await read_log(self.task_id, reading)
        except ResultShapeError as error:
            raise gateway_failed("JSON_PARSE_FAILED", str(error), self.task_id) from None
        await self.request.respond(200, body, [(b"content-type", kind), *self.ids, *self.headers])

    async def _wait(self, submitted: Submitted) -> None:
        """Feed the view with the task's events until its end."""
        tasks, task, hub, joined = self.tasks, self.task, self.tasks.hub, self._submission.joined_at
        feed, info = self._submission.feed, self._submission.info
        if joined is None:
            self.end = end = self._view(info)
            reader, started_ms = Reader(hub, feed), 0
        elif submitted.state in TERMINAL:
            self.end = await read_log(info.task_id, tasks.results.end(info))
            self.final = True
            began_ms = joined.granted_ms or joined.ended_ms
            self.waited_ms = max(began_ms - submitted.enqueued_ms, 0)
            self.ran_ms = max(joined.ended_ms - began_ms, 0)
            return
        else:
            self.end = end = ResultView(info)
            reader, started_ms = Reader(hub, feed, joined.epoch, joined.top), joined.granted_ms
        leaving = DisconnectWatcher(self.request, reader.interrupt)
        tasks.open_answers.add(reader.interrupt, feed)
        begun, interrupted = hub.time(), False
        give_up = begun + task.timeout_ms / 1000 + OVERDUE_S
        try:
            while True:
                try:
                    events = await reader.next(min(LOOK_S, max(give_up - hub.time(), 0.1)))
                except Lost:
                    self._cancel()  # it may be queued there again
                    if joined is None:
                        lane = task.queue, submitted.line
                        tasks.submit.lost(info, lane, task.request_id, submitted.enqueued_ms)
                    raise gateway_failed("STORE_LOST", LOST, info.task_id) from None
                except Interrupted:
                    interrupted, events = True, []
                for event in events:
                    if joined is None or event.terminal or event.type == "start":
                        end.feed(event)
                    if event.type == "start":
                        started_ms, begun = event_time(event), hub.time()
                if events and events[-1].terminal:
                    if end.error and end.error.waited_for not in ("", "model"):
                        started_ms = 0  # its last worker gave it back
                    self.ran_ms = round((hub.time() - begun) * 1000) if started_ms else 0
                    began_ms = started_ms or event_time(events[-1])
                    self.waited_ms = max(began_ms - submitted.enqueued_ms, 0)
                    return
                if interrupted or leaving.gone:
                    self._cancel()
                    raise self.request.gone() if leaving.gone else tasks.lifecycle.rejection(info.task_id)
                if hub.time() > give_up:
                    if joined is None:
                        tasks.cancel_soon(info.task_id, "timeout")
                    raise gateway_failed("TOTAL_TIMEOUT", "Task timeout", info.task_id)
        finally:
            leaving.close()
            tasks.open_answers.discard(reader.interrupt)

    def _cancel(self) -> None:
        """Cancel the task, for which no client waits now, unless it lingers for a client that may come back."""
        if self.task.linger_ms > 0 and not self.task.idempotency_key:
            self.tasks.cancel_soon(self.task_id, "client")

    @property
    def task_id(self) -> str:
        return self._submission.info.task_id

    @property
    def ids(self) -> Headers:
        """The task, and the model that answered, if the request named a route."""
        ids = [(b"x-task-id", self.task_id.encode())]
        if self.task.asked:
            ids.append((b"x-fairlane-model", self.end.info.model.encode("latin-1", "replace")))
        return ids

    @property
    def headers(self) -> Headers:
        """What is said of the task's way, also with a failure."""
        headers = [
            (b"x-fairlane-waited-ms", b"%d" % self.waited_ms),
            (b"x-fairlane-ran-ms", b"%d" % self.ran_ms),
        ]
        if self.joined:
            headers += REPLAYED
        if self.final and self.end.status != "completed":
            headers.append((b"x-should-retry", b"false"))
        return headers

    async def failure(self) -> ApiError:
        """Return the error of a task that did not complete."""
        error = task_failed(self.end.error, self.task_id, headers=self.headers)
        if self._failed is not None:
            error.chain = await self._failed(self.task_id, self.task.user)
        return error


def _typed_body(view: ResultView) -> tuple[bytes, bytes]:
    """Return the content type of an answer, and its body. Raise ResultShapeError."""
    return view.content_type, view.body()


def event_time(event: Event) -> int:
    """Return the `ts` of an event, ms."""
    at = event.data.find(b'"ts":')
    digits = event.data[at + 5 : at + 20].partition(b",")[0].partition(b"}")[0]
    return int(digits) if digits.isdigit() else 0
