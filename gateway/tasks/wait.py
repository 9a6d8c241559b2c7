"""Waits for the end of a task on behalf of a client that may disconnect."""

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol, TypeVar

from fairlane.gateway.calls.streams import OVERDUE_S, OpenAnswers
from fairlane.gateway.chains.requests import Submission
from fairlane.gateway.errors import Headers, gateway_failed
from fairlane.gateway.lifecycle import Lifecycle
from fairlane.gateway.tasks.idempotent_replay import HEADERS, read_log
from fairlane.gateway.tasks.pending_response import PendingResponse
from fairlane.gateway.tasks.submit import LOST, JoinPoint, Submit
from fairlane.queues.limits import RateLimitStatus
from fairlane.queues.tasks import TERMINAL, TaskSpec
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Hub, Interrupted, Lost, Reader
from fairlane.streaming.results import Results
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo


class DisconnectWatch(Protocol):
    """Notices that a client left."""

    gone: bool

    def close(self) -> None: ...


class Waiter(Protocol):
    """The call that waits."""

    def watch_disconnect(self, on_gone: Callable[[], None]) -> DisconnectWatch:
        """Call `on_gone` once when the client has left."""
        ...

    def gone(self) -> Exception:
        """Why the wait is over."""
        ...

    rate_limits: RateLimitStatus | None
    """Set when the task is accepted: what is left of the caller's limits."""


class Timing(NamedTuple):
    """The time that a task waited until its last attempt began, and ran from there to its end, ms."""

    waited_ms: int
    """By the store's clock, like the events that say so."""
    ran_ms: int
    """By this replica's clock: the worker's replica stamps the end with its own."""

    @property
    def headers(self) -> Headers:
        return [
            (b"x-fairlane-waited-ms", b"%d" % self.waited_ms),
            (b"x-fairlane-ran-ms", b"%d" % self.ran_ms),
        ]


View = TypeVar("View", bound=ResultView)


class Waited(NamedTuple):
    """A task that was waited for until its end."""

    end: ResultView
    """The view of its terminal event, maybe without its output."""
    took: Timing
    joined: bool
    """It had been submitted before (`SubmittedTask`)."""
    final: bool
    """It had ended before this call: the next call with the key gets the same answer."""
    answer: Callable[[], Awaitable[bytes]]
    """Makes the body of a completed one. Raises ResultShapeError; of one that was joined also ApiError(410) and StoreError."""

    @property
    def task_id(self) -> str:
        return self.end.info.task_id

    @property
    def headers(self) -> Headers:
        hopeless = self.final and self.end.status != "completed"
        retry = [(b"x-should-retry", b"false")] if hopeless else []
        return [*self.took.headers, *(HEADERS if self.joined else ()), *retry]


class Wait:
    """Submits tasks and waits for their ends."""

    def __init__(
        self,
        submit: Submit,
        hub: Hub,
        results: Results,
        open_answers: OpenAnswers,
        cancel_soon: Callable[[str, Literal["client", "timeout"]], None],
        lifecycle: Lifecycle,
    ) -> None:
        self._submit = submit
        self._hub = hub
        self._results = results
        self._open_answers = open_answers
        self._cancel_soon = cancel_soon
        self._lifecycle = lifecycle

    async def __call__(
        self,
        waiter: Waiter,
        task: TaskSpec,
        make_view: Callable[[TaskInfo], View],
        show: Callable[[View], bytes],
        chain: Submission | None = None,
        keep: PendingResponse | None = None,
    ) -> Waited:
        """Submit a task, or join the one that its idempotency key names, and wait for its end. `show` makes the body of a view
        that was fed all events; a call that joins reads only the end.
        `keep`: as `Submit` has it; views are made behind that.

        A disconnect cancels the task, unless the request says otherwise; so does a gateway that stops before the end. A client
        with an idempotency key may come back: its task lingers, and ends by itself if no client does. At its deadline the call is
        answered, also if the end is unknown. Raise ApiError, StoreError, DatabaseUnavailable, and `waiter.gone()`.
        """
        hub = self._hub
        followed = self._submit.open_task(task, chain, keep)
        async with followed as submitted:
            waiter.rate_limits = submitted.rate_limits
            info, earlier = followed.info, followed.joined_at
            task_id, cancels = info.task_id, task.linger_ms > 0 and not task.idempotency_key
            if earlier is None:
                view = make_view(info)
                end: ResultView = view
                reader = Reader(hub, followed.feed)
                started_ms = 0

                async def answer() -> bytes:
                    return show(view)

            else:

                async def answer() -> bytes:
                    return await read_log(task_id, self._results.shown(info, make_view, show))

                if submitted.state in TERMINAL:
                    end = await read_log(task_id, self._results.end(info))
                    return Waited(end, _took(earlier, submitted.enqueued_ms), True, True, answer)
                end = ResultView(info)
                reader = Reader(hub, followed.feed, earlier.epoch, earlier.top)
                started_ms = earlier.granted_ms
            interrupt = reader.interrupt
            leaving = waiter.watch_disconnect(interrupt)
            self._open_answers.add(interrupt, followed.feed)
            give_up = hub.time() + task.timeout_ms / 1000 + OVERDUE_S
            begun, interrupted = hub.time(), False
            try:
                while True:
                    try:
                        events = await reader.next(min(5.0, max(give_up - hub.time(), 0.1)))
                    except Lost:
                        if cancels:  # it may be queued there again
                            self._cancel_soon(task_id, "client")
                        if earlier is None:
                            lane = (task.queue, submitted.line)
                            self._submit.lost(info, lane, task.request_id, submitted.enqueued_ms)
                        raise gateway_failed("STORE_LOST", LOST, task_id) from None
                    except Interrupted:
                        interrupted, events = True, []
                    for event in events:
                        if earlier is None or event.terminal or event.type == "start":
                            end.feed(event)
                        if event.type == "start":
                            started_ms, begun = event_time(event), hub.time()
                    if events and events[-1].terminal:
                        if end.error and end.error.waited_for not in ("", "model"):
                            started_ms = 0  # its last worker gave it back
                        ran_ms = round((hub.time() - begun) * 1000) if started_ms else 0
                        began_ms = started_ms or event_time(events[-1])
                        took = Timing(max(began_ms - submitted.enqueued_ms, 0), ran_ms)
                        return Waited(end, took, earlier is not None, False, answer)
                    if interrupted or leaving.gone:
                        if cancels:
                            self._cancel_soon(task_id, "client")
                        raise waiter.gone() if leaving.gone else self._lifecycle.rejection(task_id)
                    if hub.time() > give_up:
                        if earlier is None:
                            self._cancel_soon(task_id, "timeout")
                        raise gateway_failed("TOTAL_TIMEOUT", "Task timeout", task_id)
            finally:
                leaving.close()
                self._open_answers.discard(interrupt)


def _took(earlier: JoinPoint, enqueued_ms: int) -> Timing:
    """Return how long a task took that had ended before it was joined."""
    began_ms = earlier.granted_ms or earlier.ended_ms
    return Timing(max(began_ms - enqueued_ms, 0), max(earlier.ended_ms - began_ms, 0))


def event_time(event: Event) -> int:
    """Return the `ts` of an event, ms."""
    at = event.data.find(b'"ts":')
    digits = event.data[at + 5 : at + 20].partition(b",")[0].partition(b"}")[0]
    return int(digits) if digits.isdigit() else 0
