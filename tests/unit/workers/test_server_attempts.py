"""What becomes of an attempt, step by step: the store is played by the test, nothing is on a wire."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.support.serving import until

from fairlane.queues.metrics import Recorder
from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import (
    Appended,
    Ended,
    Finished,
    Grant,
    Place,
    Rejection,
    RetryAt,
    State,
    Submitted,
    Taken,
    TaskSpec,
    Used,
)
from fairlane.streaming.structured.checker import Checker
from fairlane.workers.protocol import ErrorInfo, TaskProgress, TaskReject, TaskResult, from_worker
from fairlane.workers.server.dispatch import Dispatcher
from fairlane.workers.server.maintenance import RENEW_S, TICK_S, unacknowledged
from fairlane.workers.server.pool.suspects import Loss
from fairlane.workers.server.pool.worker import Worker
from fairlane.workers.server.settings import DispatchSettings, OutputLimits
from fairlane.workers.server.tasks import messages
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.results import provider_hold_ms

pytestmark = pytest.mark.anyio

LOSS = Loss(1006, "", False, 0)


def grant(task_id: str = "t1", attempt: int = 1, task_type: str = "openaiLike", model: str = "m") -> Grant:
    return Grant(
        task_id, attempt, attempt, f"token{task_id}{attempt}", model, "q", task_type, "u", "", True, 1000, attempt - 1,
        0, 1, True, "", 0, "{}",
    )  # fmt: skip


class Store:
    """A scheduler whose answers the test gives: each call waits in `calls` until it is answered."""

    replica = "r1"
    outbox_full = False

    def __init__(self) -> None:
        self.limits = Limits()
        self.metrics = Recorder()
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any], asyncio.Future[Any]]] = []
        self._number = 0

    def nonce(self) -> str:
        self._number += 1
        return str(self._number)

    def _call(self, name: str, *args: Any, **more: Any) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((name, args, more, reply))
        return reply

    def before_writing(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    @staticmethod
    def spans(_: object) -> bool:
        return False

    @staticmethod
    def grouped(items: list[Any], _: object) -> list[list[Any]]:
        return [items]

    def __getattr__(self, name: str) -> Any:
        if name == "parse_sent":
            return lambda reply: reply
        if name == "parse_take":
            return lambda reply: reply if isinstance(reply, Taken) else Taken(reply, ())
        if name in ("parse_submit", "parse_append", "parse_finish", "parse_offer", "parse_presence"):
            return lambda reply: reply
        return lambda *args, **more: self._call(name, *args, **more)

    async def answer(self, name: str, reply: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Answer the oldest call of a name; what it was called with."""
        for _ in range(20):
            for call in self.calls:
                if call[0] == name:
                    self.calls.remove(call)
                    call[3].set_result(reply)
                    for _ in range(5):
                        await asyncio.sleep(0)
                    return call[1], call[2]
            await asyncio.sleep(0)
        raise AssertionError(f"{name} was not called, but {[call[0] for call in self.calls]}")

    @property
    def asked(self) -> list[str]:
        return [call[0] for call in self.calls if call[0] not in ("offer", "update_presence")]


class Hub:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def deliver(self, task_id: str, events: Any) -> None:
        self.events += events

    def show(self, task_id: str, event: Any) -> None:
        self.events.append(event)


class Stage:
    """A dispatcher without a wire: workers are objects, the store is the test."""

    def __init__(self) -> None:
        self.store = Store()
        self.hub = Hub()
        self.dispatcher = Dispatcher(
            self.store,
            None,
            self.hub,
            DispatchSettings(),
            None,  # type: ignore[arg-type]
            Checker(),
        )
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.closed: dict[str, int] = {}

    def worker(self, name: str = "w", version: int = 2, slots: int = 1, **fields: Any) -> Worker:
        """A connected worker whose question for tasks is still open."""
        sent = self.sent.setdefault(name, [])
        worker = Worker(
            name, name, version, ["m"], slots,
            send=lambda frame: sent.append(json.loads(frame)),
            close=lambda code, _: self.closed.setdefault(name, code),
            **fields,
        )  # fmt: skip
        self.dispatcher.connected(worker)
        return worker

    def submit(self) -> Awaitable[Any]:
        """Submit a task."""
        task = TaskSpec(id="new", model="m", queue="q", user="u", payload=b"{}")
        return self.dispatcher.submit(task)

    async def submitted(self, later: RetryAt = ()) -> None:
        """Submit a task that must wait."""
        waiting = self.submit()
        await self.store.answer("submit", waits(later))
        await waiting

    async def started(self, worker: Worker, task: Grant | None = None) -> Attempt:
        """Answer the worker's open question with a task."""
        task = task or grant()
        self.dispatcher.payloads.put(task.task_id, b"{}")
        await self.store.answer("take", [task])
        return attempt_of(worker, task.task_id)


def waits(later: RetryAt = ()) -> Submitted:
    """The answer to a task that must wait."""
    return Submitted(State.QUEUED, Place(1, 0, 0, 0), 0, [], later)


def held_by(worker: Worker) -> list[str]:
    """The tasks that it holds."""
    return [attempt.grant.task_id for attempt in worker.attempts.values()]


def attempt_of(worker: Worker, task_id: str) -> Attempt:
    """Its newest attempt of a task."""
    return [a for a in worker.attempts.values() if a.grant.task_id == task_id][-1]


def result(attempt: Attempt, text: Any = 1, **fields: Any) -> TaskResult:
    frame = {"type": "taskResult", "taskId": attempt.grant.task_id, "attempt": 1, "result": text, **fields}
    message = from_worker.decode(msgspec.json.encode(frame))
    assert isinstance(message, TaskResult)
    return message


def chunk(attempt: Attempt, seq: int, text: str) -> Any:
    frame = {"taskId": attempt.grant.task_id, "attempt": 1, "seq": seq, "deltas": [{"content": text}]}
    return from_worker.decode(msgspec.json.encode({"type": "taskChunk", **frame}))


async def test_the_slot_is_taken_until_the_store_has_the_end() -> None:
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    messages.result(attempt, result(attempt))
    assert (attempt.phase, worker.free(0)) == ("finishing", 0)
    args, _ = await stage.store.answer("finish", finished("ok"))
    assert (attempt.phase, worker.free(1e9)) == ("over", 1)
    assert (args[3].state, args[3].want) == ("completed", 1)
    assert stage.sent["w"][-1] == {
        "type": "resultAck", "taskId": "t1", "attempt": 1, "status": "accepted",
    }  # fmt: skip


def finished(outcome: str, *grants: Grant) -> Any:
    return Finished(outcome, "1-2", list(grants))


async def test_a_task_is_silent_since_its_worker_last_gave_a_sign_of_it() -> None:
    stage = Stage()
    now = 1000.0
    stage.dispatcher.pool.time = stage.dispatcher.time = stage.dispatcher._runner.time = lambda: now
    worker = stage.worker()

    def silent() -> tuple[Any, Any]:
        (row,) = stage.dispatcher.offers.presence()
        return row["taskSilentMs"], stage.dispatcher.silences().get("m")

    assert silent() == (None, None)
    attempt = await stage.started(worker)
    now += 8
    assert silent() == (8000, 8)
    messages.chunk(attempt, chunk(attempt, 1, "x"))
    now += 2
    assert silent() == (2000, 2)
    messages.progress(attempt, TaskProgress("t1", 1, pct=50))
    now += 1
    assert silent() == (1000, 1)
    messages.result(attempt, result(attempt, lastSeq=1))
    assert silent() == (None, None), "it has answered"


async def test_the_next_task_comes_with_the_end_of_the_last() -> None:
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    messages.result(attempt, result(attempt))
    stage.dispatcher.payloads.put("t2", b"{}")
    await stage.store.answer("finish", finished("ok", grant("t2")))
    assert held_by(worker) == ["t2"]
    assert stage.sent["w"][-1]["taskId"] == "t2"


async def test_the_first_end_counts() -> None:
    stage = Stage()
    attempt = await stage.started(stage.worker())
    messages.result(attempt, result(attempt))
    attempt.lost()
    attempt.stop("client")
    attempt.fail("WORKER_ERROR", "no", retryable=True)
    unacknowledged(attempt)
    assert stage.store.asked == ["finish"]


async def test_after_a_loss_nothing_that_comes_counts() -> None:
    stage = Stage()
    attempt = await stage.started(stage.worker())
    attempt.acknowledged()
    attempt.lost()
    messages.result(attempt, result(attempt))
    assert messages.chunk(attempt, chunk(attempt, 1, "late")) is None
    _, more = await stage.store.answer("requeue", Ended("queued"))
    assert (more["cause"], more["begun"]) == ("lost", True)
    assert "finish" not in stage.store.asked


async def test_a_task_that_was_sent_counts_a_try_although_its_worker_did_not_acknowledge_it() -> None:
    stage = Stage()
    attempt = await stage.started(stage.worker())
    attempt.lost()
    _, more = await stage.store.answer("requeue", Ended("queued"))
    assert (more["cause"], more["begun"]) == ("lost", True)


@pytest.mark.parametrize(
    ("info", "hold_ms"),
    [
        ({"retryAfterMs": 7000, "httpStatus": 429}, 7000),
        ({"retryAfterMs": 7000}, 7000),
        ({"retryAfterMs": 0}, 100),
        ({"retryAfterMs": 86_400_000}, 3_600_000),
        ({}, 0),
        ({"httpStatus": 429}, 0),
        ({"retryAfterMs": 7000, "httpStatus": 503}, 0),
        ({"retryAfterMs": 7000, "code": "UPSTREAM_ERROR"}, 0),
        ({"retryAfterMs": 7000, "retryable": False}, 0),
    ],
)
def test_a_provider_holds_its_model_by_saying_when_to_come_again(info: dict[str, Any], hold_ms: int) -> None:
    known = msgspec.convert({"code": "MODEL_TOO_BUSY", "retryable": True, **info}, ErrorInfo)
    assert provider_hold_ms(known) == hold_ms


# ---- windows ----------


async def test_that_requests_have_left_is_told_once_and_together() -> None:
    stage = Stage()
    worker = stage.worker(slots=3)
    tasks = [msgspec.structs.replace(grant(name), extras={"report_sent": name != "c"}) for name in "abc"]
    for task in tasks:
        stage.dispatcher.payloads.put(task.task_id, b"{}")
    await stage.store.answer("take", Taken(tasks, ()))
    assert [frame.get("tellSent") for frame in stage.sent["w"]] == [True, True, None]
    for task in tasks:
        attempt = attempt_of(worker, task.task_id)
        attempt.request_left()
        attempt.request_left()
        assert attempt.phase == "running", "it has begun, too"
    (told,), _ = await stage.store.answer("sent", (("m", 900),))
    assert [task.task_id for task in told] == ["a", "b"]
    assert "sent" not in stage.store.asked
    assert len(stage.dispatcher._timers) == 1, "it asks again when the window is over"


async def test_the_first_output_says_that_a_request_has_left() -> None:
    stage = Stage()
    attempt = await stage.started(
        stage.worker(), msgspec.structs.replace(grant(), extras={"report_sent": True})
    )
    messages.chunk(attempt, chunk(attempt, 1, "a"))
    messages.chunk(attempt, chunk(attempt, 2, "b"))
    (told,), _ = await stage.store.answer("sent", ())
    assert [task.task_id for task in told] == ["t1"]
    assert "sent" not in stage.store.asked


async def test_what_no_worker_has_begun_never_left() -> None:
    stage = Stage()
    rejected = await stage.started(stage.worker())
    messages.reject(rejected, TaskReject("t1", 1, "capacity"))
    _, more = await stage.store.answer("requeue", Ended("queued"))
    assert more["unsent"]

    stage = Stage()
    silent = await stage.started(stage.worker())
    unacknowledged(silent)
    _, more = await stage.store.answer("requeue", Ended("queued"))
    assert not more["unsent"], "its worker may have begun and not have said so yet"

    stage = Stage()
    begun = await stage.started(stage.worker())
    begun.acknowledged()
    messages.reject(begun, TaskReject("t1", 1, "capacity"))
    begun.lost()
    _, more = await stage.store.answer("requeue", Ended("queued"))
    assert not more["unsent"], "it had said that it had begun"


@pytest.mark.parametrize("how", ["it goes", "its result cannot be read"])
@pytest.mark.parametrize("chunks", [0, 3])
async def test_what_a_stopped_task_wrote_is_counted_though_its_worker_does_not_say(
    how: str, chunks: int
) -> None:
    stage = Stage()
    worker = stage.worker()
    await stage.store.answer("take", [grant()])
    await stage.store.answer("payload", b"x" * 40)
    attempt = attempt_of(worker, "t1")
    attempt.acknowledged()
    for seq in range(1, chunks):
        messages.chunk(attempt, chunk(attempt, seq, "word"))
    attempt.stop("client")
    if chunks:
        messages.chunk(attempt, chunk(attempt, chunks, "word"))  # until it stops
    if how == "it goes":
        stage.dispatcher.disconnected(worker, LOSS)
    else:
        messages.unreadable_result(attempt)
    args, _ = await stage.store.answer("finish", finished("late"))
    assert args[3].used == (Used(10, chunks, estimated=True) if chunks else Used())


@pytest.mark.parametrize(("chunks", "used"), [(0, Used()), (3, Used(10, 3, estimated=True))])
async def test_a_failure_without_output_or_usage_costs_nothing(chunks: int, used: Used) -> None:
    stage = Stage()
    worker = stage.worker()
    await stage.store.answer("take", [grant()])
    await stage.store.answer("payload", b"x" * 40)
    attempt = attempt_of(worker, "t1")
    for seq in range(1, chunks + 1):
        messages.chunk(attempt, chunk(attempt, seq, "word"))
    messages.result(attempt, result(attempt, None, lastSeq=chunks, error="no"))
    if chunks:
        await stage.store.answer("append", [Appended("ok")])
    args, _ = await stage.store.answer("finish", finished("ok"))
    assert args[3].used == used


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    ("texts", "tokens"),
    [(["x" * 400], 100), (["x"] * 7, 2), (["\u4f60" * 40], 30), (["x" * 30, "x" * 11, "x"], 11)],
)
async def test_output_counts_by_its_length(texts: list[str], tokens: int, stopped: bool) -> None:
    stage = Stage()
    attempt = await stage.started(stage.worker())
    attempt.acknowledged()
    assert attempt.output_tokens == -1
    if stopped:
        attempt.stop("client")
    for seq, text in enumerate(texts, 1):
        messages.chunk(attempt, chunk(attempt, seq, text))
    assert attempt.output_tokens == tokens, "a renewal says the same"
    stage.dispatcher.disconnected(attempt.worker, LOSS)
    if not stopped:
        await stage.store.answer("append", [Appended("ok")])
    args, _ = await stage.store.answer("finish", finished("late" if stopped else "ok"))
    assert args[3].used == Used(0, tokens, estimated=True)


@pytest.mark.parametrize("grace_ms", [60_000, 2000])
async def test_who_does_not_stop_is_given_up_before_the_sweep_ends_the_task(grace_ms: int) -> None:
    """Else nobody would say what it used: the sweep does not know."""
    stage = Stage()
    stage.store.limits = replace(Limits(), stop_grace_ms=grace_ms)
    attempt = await stage.started(stage.worker())
    messages.chunk(attempt, chunk(attempt, 1, "some text"))
    await stage.store.answer("append", [Appended("ok")])
    began = stage.dispatcher.pool.time()
    attempt.stop("client")
    left_s = began + grace_ms / 1000 - attempt.stop_until
    assert left_s > min(RENEW_S + TICK_S, grace_ms / 5000), "it may have heard of it by a renewal alone"


async def test_an_answer_that_overtakes_the_stores_frees_the_slot_too() -> None:
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    attempt.acknowledged()
    attempt.broken("lost a part")
    messages.result(attempt, result(attempt))  # the worker answers the cancel before the store has the end
    await stage.store.answer("finish", finished("ok"))
    await stage.store.answer("finish", finished("late"))
    assert (attempt.phase, worker.free(1e9)) == ("over", 1)
    assert [frame["type"] for frame in stage.sent["w"]] == ["task", "cancel", "resultAck"]


async def test_a_task_cancelled_while_its_last_append_is_under_way_frees_its_slot() -> None:
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    messages.chunk(attempt, chunk(attempt, 1, "a"))
    messages.result(attempt, result(attempt))  # its end waits for the append
    await stage.store.answer("append", [("stale", 0)])  # somebody cancelled the task: its lease is still held
    await stage.store.answer("finish", finished("late"))
    assert (attempt.phase, worker.free(1e9)) == ("over", 1)


async def test_a_task_that_ends_before_it_was_sent_is_never_sent() -> None:
    stage = Stage()
    worker = stage.worker()
    await stage.store.answer("take", [grant()])  # its body is not at hand
    attempt = attempt_of(worker, "t1")
    stage.dispatcher.on_stop("t1", 1, "client")
    assert attempt.phase == "over"
    await stage.store.answer("payload", b"{}")
    await stage.store.answer("finish", finished("late"))
    assert stage.sent["w"] == []
    assert worker.free(1e9) == 1


# ---- an attempt whose task somebody else has now ----------


async def superseded(stage: Stage, worker: Worker, task: Grant | None = None) -> Attempt:
    """Grant a task anew that an attempt here still holds; the new attempt."""
    stage.dispatcher.fill(worker)
    return await stage.started(worker, task or grant("t1", 2))


async def test_the_end_of_a_superseded_attempt_is_not_the_end_of_the_next() -> None:
    """The result of the first was on its way to the store when the task was granted anew."""
    stage = Stage()
    worker = stage.worker(slots=2)
    first = await stage.started(worker)
    messages.result(first, result(first))
    second = await superseded(stage, worker)
    await stage.store.answer("finish", finished("stale"))
    assert (first.phase, second.phase) == ("over", "sent")
    assert held_by(worker) == ["t1"]
    messages.result(second, result(second))
    await stage.store.answer("finish", finished("ok"))
    assert (held_by(worker), len(stage.dispatcher.attempts)) == ([], 0)


async def test_a_superseded_attempt_that_was_not_sent_yet_is_never_sent() -> None:
    stage = Stage()
    worker = stage.worker(slots=2)
    await stage.store.answer("take", [grant()])  # its body is not at hand
    await superseded(stage, worker)
    await stage.store.answer("payload", b"{}")
    await stage.store.answer("finish", finished("stale"))
    assert [frame["type"] for frame in stage.sent["w"]] == ["task"]
    assert held_by(worker) == ["t1"]


async def test_news_of_an_old_attempts_end_does_not_stop_the_new_one() -> None:
    stage = Stage()
    worker = stage.worker(slots=2)
    await stage.started(worker)
    second = await superseded(stage, worker)
    stage.dispatcher.on_stop("t1", 1, "client")
    assert second.phase == "sent"
    stage.dispatcher.on_stop("t1", 2, "client")
    assert second.phase == "stopping"
    await stage.dispatcher.close()


# ---- output that cannot be written ----------


async def test_an_end_that_the_store_refuses_for_good_frees_the_slot_here() -> None:
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    messages.result(attempt, result(attempt))
    for _ in range(2):  # the end, and the failure that says that it cannot be written
        reply = next(call for call in stage.store.calls if call[0] == "finish")
        stage.store.calls.remove(reply)
        reply[3].set_exception(ValueError("WRONGTYPE"))
        for _ in range(5):
            await asyncio.sleep(0)
    assert (attempt.phase, worker.free(1e9)) == ("over", 1)
    assert "finish" not in stage.store.asked


async def test_a_worker_that_was_told_to_stop_keeps_its_slot_though_somebody_else_ended_the_task() -> None:
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    messages.chunk(attempt, chunk(attempt, 1, "a"))
    attempt.broken("lost a part")  # its end waits for the append
    await stage.store.answer("append", [("stale", 0)])
    assert (attempt.phase, worker.free(1e9)) == ("stopping", 0)
    messages.result(attempt, result(attempt))
    await stage.store.answer("finish", finished("late"))
    assert worker.free(1e9) == 1


async def test_time_to_acknowledge_begins_when_the_task_is_sent() -> None:
    stage = Stage()
    worker = stage.worker()
    await stage.store.answer("take", [grant()])
    attempt = attempt_of(worker, "t1")
    assert attempt.sent_at is None
    await stage.store.answer("payload", b"{}")
    assert attempt.sent_at is not None
    stage.dispatcher.settings.ack_ms = -1
    stage.dispatcher.maintenance.check_limits()
    assert attempt.phase == "over"


async def test_the_store_that_lost_interest_stops_the_worker() -> None:
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    messages.chunk(attempt, chunk(attempt, 1, "a"))
    await stage.store.answer("append", [("stale", 0)])
    assert stage.sent["w"][-1]["type"] == "cancel"
    assert attempt.phase == "stopping"


@pytest.mark.parametrize("ended", ["cancelled", "lost", "completed"])
async def test_what_is_written_behind_the_usage_told_on_the_way_counts_too(ended: str) -> None:
    """Some upstreams tell the usage at the start, and its output is next to nothing then."""
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    messages.chunk(attempt, chunk(attempt, 1, "x"))
    told = {"inputTokens": 9, "outputTokens": 5}
    messages.progress(
        attempt,
        msgspec.convert(
            {"taskId": "t1", "attempt": 1, "usage": msgspec.Raw(msgspec.json.encode(told))}, TaskProgress
        ),
    )
    messages.chunk(attempt, chunk(attempt, 2, "x" * 4000))
    if ended == "cancelled":
        attempt.stop("client")
        messages.unreadable_result(attempt)
    elif ended == "lost":
        stage.dispatcher.disconnected(worker, LOSS)
    else:
        messages.result(attempt, result(attempt, None, lastSeq=2))
    if ended != "cancelled":
        await stage.store.answer("append", [Appended("ok")])
    args, _ = await stage.store.answer("finish", finished("late" if ended == "cancelled" else "ok"))
    assert args[3].used == Used(9, 5 + 1001 - 1, estimated=True)


async def test_the_type_of_embeddings_makes_no_output_free() -> None:
    stage = Stage()
    attempt = await stage.started(stage.worker(), grant(task_type="openaiEmbedding"))
    messages.chunk(attempt, chunk(attempt, 1, "x" * 4000))
    messages.result(attempt, result(attempt, None, lastSeq=1, usage={"inputTokens": 9}))
    await stage.store.answer("append", [Appended("ok")])
    args, _ = await stage.store.answer("finish", finished("ok"))
    assert args[3].used == Used(9, 1000, estimated=False)


# ---- bringing tasks to workers ----------


async def test_a_wake_up_that_overtakes_an_empty_answer_is_not_lost() -> None:
    stage = Stage()
    stage.worker()
    stage.dispatcher.on_wake("m", targeted=True)  # the only slot is reserved for the question under way
    assert stage.store.asked == ["take", "take"]  # the second one hands the wake-up on
    await stage.store.answer("take", [])
    assert stage.store.asked == ["take", "take"]
    await stage.store.answer("take", [])
    args, _ = await stage.store.answer("take", [])
    assert args[1] == 1
    assert stage.store.asked == []


@pytest.mark.parametrize("under_way", ["take", "submit", "finish"])
async def test_a_worker_that_changes_its_models_while_a_slot_is_asked_for_is_asked_for_the_new_ones(
    under_way: str,
) -> None:
    """The store knows of no free slot for these, and wakes nobody before the next sweep."""
    stage = Stage()
    worker = stage.worker()
    if under_way == "finish":
        attempt = await stage.started(worker)
        messages.result(attempt, result(attempt))
    elif under_way == "submit":
        await stage.store.answer("take", [])
        stage.submit()
    worker.set_models(["n"])
    stage.dispatcher.changed(worker)
    assert stage.store.asked == [under_way], "its only slot is taken"
    replies = {"take": [], "finish": finished("ok"), "submit": waits()}
    await stage.store.answer(under_way, replies[under_way])
    args, _ = await stage.store.answer("take", [])
    assert args[:2] == (("n",), 1)
    assert stage.store.asked == [], "once"


async def test_a_worker_that_changes_its_models_just_before_a_task_comes_is_asked_for_the_new_ones() -> None:
    stage = Stage()
    worker = stage.worker()
    worker.set_models(["n"])
    stage.dispatcher.changed(worker)
    await stage.store.answer("take", [grant()])
    await stage.store.answer("requeue", Ended("queued"))
    args, _ = await stage.store.answer("take", [])
    assert args[:2] == (("n",), 1)
    assert stage.sent["w"] == []


async def test_of_the_instants_in_the_answers_the_earlier_one_asks_again() -> None:
    stage = Stage()
    stage.worker()
    await stage.store.answer("take", Taken([], (("m", 60_000),)))
    assert stage.store.asked == []
    stage.dispatcher.ask_later((("m", 0),))
    args, _ = await stage.store.answer("take", Taken([grant()], (("m", 60_000),)))
    assert (args[0], args[1]) == (("m",), 1)
    assert len(stage.dispatcher._timers) == 1


async def test_a_timer_without_a_free_slot_hands_its_wake_up_on() -> None:
    stage = Stage()
    await stage.started(stage.worker())
    await stage.submitted(later=(("m", 0),))
    args, _ = await stage.store.answer("take", Taken([], (("m", 60_000),)))
    assert args[:2] == (["m"], 0)
    assert len(stage.dispatcher._timers) == 1


async def test_a_wake_up_that_overtakes_the_answer_to_a_result_is_not_lost() -> None:
    stage = Stage()
    attempt = await stage.started(stage.worker())
    messages.result(attempt, result(attempt))
    stage.dispatcher.on_wake("m", targeted=False)
    await stage.store.answer("finish", finished("ok"))
    assert stage.store.asked == ["take"]


async def test_a_task_for_a_worker_that_has_gone_meanwhile_goes_to_another() -> None:
    stage = Stage()
    gone, other = stage.worker("gone"), stage.worker("other")
    await stage.store.answer("take", [])  # gone's
    await stage.store.answer("take", [])  # other's
    stage.dispatcher.fill(gone)
    stage.dispatcher.disconnected(gone, LOSS)
    stage.dispatcher.payloads.put("t1", b"{}")
    await stage.store.answer("take", [grant()])
    assert held_by(other) == ["t1"]
    assert stage.sent["gone"] == []


async def test_a_slot_whose_task_went_to_another_worker_asks_again_only_if_it_must() -> None:
    stage = Stage()
    first, second = stage.worker("first"), stage.worker("second")
    await stage.store.answer("take", [])  # first's
    stage.dispatcher.payloads.put("t1", b"{}")
    await stage.store.answer("take", [grant("t1")])  # second's, but it is first's turn
    assert (held_by(first), held_by(second)) == (["t1"], [])
    assert stage.store.asked == []  # first had asked for the same: the store knows of a free slot here

    third = stage.worker("third")
    second.rest_until = stage.dispatcher.pool.time() + 60  # it asks for nothing
    stage.dispatcher.payloads.put("t2", b"{}")
    third.avoided.put("t2", True)
    await stage.store.answer("take", [grant("t2")])  # third's
    assert held_by(second) == ["t2"]
    assert stage.store.asked == ["take"]


async def test_a_task_for_the_only_worker_that_has_gone_is_given_back() -> None:
    stage = Stage()
    worker = stage.worker()
    stage.dispatcher.disconnected(worker, LOSS)
    await stage.store.answer("take", [grant()])
    _, more = await stage.store.answer("requeue", Ended("queued"))
    assert (more["cause"], more["begun"]) == ("declined", False)
    assert not stage.dispatcher.attempts


async def test_readers_here_see_the_end_of_a_task_that_could_not_be_given_back() -> None:
    stage = Stage()
    stage.dispatcher.disconnected(stage.worker(), LOSS)
    await stage.store.answer("take", [grant()])
    await stage.store.answer("requeue", Ended("ended", "failed", "2-2", "error", b"{}"))
    assert [(event.type, event.epoch, event.seq) for event in stage.hub.events] == [("error", 2, 2)]


async def test_a_task_that_arrives_after_the_worker_said_it_drains_is_given_back() -> None:
    stage = Stage()
    worker = stage.worker()
    worker.draining = True
    await stage.store.answer("take", [grant()])
    await stage.store.answer("requeue", Ended("queued"))
    assert stage.sent["w"] == []


async def test_a_repeated_answer_starts_nothing_twice() -> None:
    stage = Stage()
    worker = stage.worker(slots=2)
    await stage.started(worker)
    stage.dispatcher.fill(worker)
    await stage.store.answer("take", [grant()])
    assert len(stage.sent["w"]) == 1


async def test_a_refused_submit_frees_the_reserved_slot() -> None:
    stage = Stage()
    worker = stage.worker()
    await stage.store.answer("take", [])
    task = TaskSpec(id="t1", model="m", queue="q", user="u", payload=b"{}")
    waiting = stage.dispatcher.submit(task)
    assert worker.free(1e9) == 0
    await stage.store.answer("submit", Rejection("full"))
    assert isinstance(await waiting, Rejection)
    assert worker.free(1e9) == 1


async def test_a_submit_may_bring_another_task_than_its_own() -> None:
    stage = Stage()
    worker = stage.worker()
    await stage.store.answer("take", [])
    waiting = stage.dispatcher.submit(TaskSpec(id="new", model="m", queue="q", user="u", payload=b"{}"))
    stage.dispatcher.payloads.put("older", b"{}")
    await stage.store.answer("submit", Submitted(State.QUEUED, Place(1, 0, 0, 0), 0, [grant("older")]))
    assert (await waiting).place.position == 1  # type: ignore[union-attr]
    assert held_by(worker) == ["older"]


async def test_a_slot_is_not_reserved_for_a_type_that_its_worker_does_not_take() -> None:
    stage = Stage()
    worker = stage.worker(task_types=["chat"])
    await stage.store.answer("take", [])
    stage.dispatcher.submit(TaskSpec(id="t", model="m", queue="q", user="u", payload=b"", task_type="embed"))
    assert worker.free(1e9) == 1
    stage.dispatcher.submit(TaskSpec(id="t", model="m", queue="q", user="u", payload=b"", task_type="chat"))
    assert worker.free(1e9) == 0


async def test_two_workers_that_are_granted_each_others_types_both_get_to_work() -> None:
    stage = Stage()
    a, b = stage.worker("a", task_types=["a"]), stage.worker("b", task_types=["b"])
    await stage.store.answer("take", [grant("for b", task_type="b")])  # b's own question is still open
    assert not a.attempts
    stage.dispatcher.payloads.put("for a", b"{}")
    await stage.store.answer("take", [grant("for a", task_type="a")])
    assert held_by(a) == ["for a"]
    assert stage.sent["a"][0]["taskType"] == "a"
    await stage.store.answer("requeue", Ended("queued"))
    stage.dispatcher.payloads.put("for b", b"{}")
    await stage.store.answer("take", [grant("for b", 2, task_type="b")])
    assert held_by(b) == ["for b"]


async def test_closing_forgets_every_attempt_and_calls_nobody() -> None:
    stage = Stage()
    worker = stage.worker()
    attempt = await stage.started(worker)
    messages.chunk(attempt, chunk(attempt, 1, "a"))
    await stage.dispatcher.close()
    assert attempt.phase == "over"
    assert not stage.dispatcher.attempts
    assert "finish" not in stage.store.asked


@pytest.mark.parametrize("begun", [False, True], ids=["first_output_ms", "silence_ms"])
async def test_a_models_limits_on_silence_need_no_maintenance_to_fire(begun: bool) -> None:
    stage = Stage()  # its maintenance was not started
    stage.dispatcher.settings.output_limits = {
        "m": OutputLimits(None if begun else 20, 20 if begun else None)
    }
    attempt = await stage.started(stage.worker())
    attempt.acknowledged()
    if begun:
        messages.chunk(attempt, chunk(attempt, 1, "and then"))
    await until(lambda: attempt.end is not None, "the limit to end it")
    assert attempt.end is not None
    assert attempt.end.code == ("STREAM_STALLED" if begun else "FIRST_TOKEN_TIMEOUT")


@pytest.mark.parametrize("begun", [False, True], ids=["first_output_ms", "silence_ms"])
async def test_limits_that_come_while_a_task_runs_reach_it(begun: bool) -> None:
    stage = Stage()
    attempt = await stage.started(stage.worker())
    attempt.acknowledged()
    if begun:
        messages.chunk(attempt, chunk(attempt, 1, "and then"))
    assert attempt.timer is None
    stage.dispatcher.settings.output_limits = {"m": OutputLimits(20, 20)}
    stage.dispatcher.maintenance.check_limits()
    await until(lambda: attempt.end is not None, "the limit to end it")
    assert attempt.end is not None
    assert attempt.end.code == ("STREAM_STALLED" if begun else "FIRST_TOKEN_TIMEOUT")


async def test_limits_that_come_between_the_beginning_and_the_first_output_hold_from_there_on() -> None:
    stage = Stage()
    attempt = await stage.started(stage.worker())
    attempt.acknowledged()
    stage.dispatcher.settings.output_limits = {"m": OutputLimits(60_000, 20)}
    messages.chunk(attempt, chunk(attempt, 1, "and then"))
    await until(lambda: attempt.end is not None, "the limit to end it")
    assert attempt.end is not None
    assert attempt.end.code == "STREAM_STALLED"


async def test_an_attempt_that_is_over_has_no_timer() -> None:
    stage = Stage()
    stage.dispatcher.settings.output_limits = {"m": OutputLimits(60_000, 60_000)}
    attempt = await stage.started(stage.worker())
    assert attempt.timer is not None
    attempt.lost()
    assert attempt.timer is None


async def test_a_worker_that_fails_three_tasks_in_a_row_is_unhealthy_until_one_completes() -> None:
    stage = Stage()
    worker, ended = stage.worker(), stage.dispatcher.health.ended
    with capture_logs() as logs:
        for code in ("WORKER_ERROR",) * 2 + ("BAD_REQUEST",) + ("UPSTREAM_ERROR",) * 15:
            ended(worker, "m", State.FAILED, code, "why")
        ended(worker, "m", State.FAILED, "NO_WORKER", "not its fault")
        ended(worker, "m", State.CANCELLED, "CANCELLED", "")
        told = [(line["event"], line["in_a_row"]) for line in logs]
        assert told == [("worker is unhealthy", 3)]
        assert worker.unhealthy_reason == "why"
        ended(worker, "m", State.COMPLETED, "", "")
    assert [line["event"] for line in logs[1:]] == ["worker is healthy again"]
    assert (worker.unhealthy_reason, worker.cap) == ("", None)


@pytest.mark.parametrize(
    ("code", "sentence", "ailment"),
    [
        ("UPSTREAM_AUTH", "The upstream answered 401: Ann Beck has", "The upstream answered 401"),
        ("UPSTREAM_ERROR", '"Ann Beck has"', "UPSTREAM_ERROR"),
    ],
)
async def test_what_ails_a_worker_quotes_no_request(code: str, sentence: str, ailment: str) -> None:
    stage = Stage()
    worker = stage.worker()
    for _ in range(3):
        stage.dispatcher.health.ended(worker, "m", State.FAILED, code, sentence)
    assert worker.unhealthy_reason == ailment
