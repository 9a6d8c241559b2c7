"""Tasks on a connected worker: streams, results, failures, cancels, slots, backpressure."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from fairlane.workers.sdk import Context, Delta, Result, Stage, Task, TaskError, Usage, Worker
from fairlane.workers.testing import FakeGateway

from .sdk_bench import DEADLINE_S, serving

pytestmark = pytest.mark.anyio


async def test_a_generator_streams_and_ends_with_usage_and_result(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url)

    @worker.handler(models=["m"])
    async def words(task: Task, context: Context) -> AsyncIterator[Any]:
        yield task.payload["first"]
        yield ""
        yield Delta(content="b", index=1)
        yield Delta(finish_reason="stop", extra=msgspec.Raw(b'{"logprobs":{"x":1}}'))
        yield Usage(input_tokens=3, output_tokens=2, details={"cached": 1})
        yield Result({"done": True})

    async with serving(worker):
        outcome = await gateway.run("openaiLike", {"first": "a"}, model="m", stream=True)
    assert outcome.deltas == [
        {"content": "a"},
        {"index": 1, "content": "b"},
        {"finishReason": "stop", "extra": {"logprobs": {"x": 1}}},
    ]
    assert outcome.usage == {"inputTokens": 3, "outputTokens": 2, "cached": 1}
    assert (outcome.result, outcome.error) == ({"done": True}, None)
    assert outcome.timings is not None
    assert outcome.timings.keys() == {"ttftMs", "totalMs"}


async def test_coroutines_and_functions_return_the_result(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url)
    threads: list[bool] = []

    @worker.handler(models=["coroutine"])
    async def coroutine(task: Task, context: Context) -> Any:
        return msgspec.Raw(task.payload_bytes)

    @worker.handler(models=["function"])
    def function(task: Task, context: Context) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return [task.type, task.model, task.attempt > 0, context.remaining() > 0]

    async with serving(worker):
        assert (await gateway.run("x", {"n": 1.5}, model="coroutine")).result == {"n": 1.5}
        assert (await gateway.run("y", {}, model="function")).result == ["y", "function", True, True]
    assert threads == [False]


async def test_the_first_token_does_not_wait_for_the_second(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url)
    seen = asyncio.Event()

    @worker.handler(models=["m"])
    async def slow(task: Task, context: Context) -> AsyncIterator[str]:
        yield "first"
        await seen.wait()
        yield "second"

    async with serving(worker):
        await gateway.worker("m")
        given = await gateway.give("x", {}, model="m", stream=True)
        async with asyncio.timeout(DEADLINE_S):
            await given.first_output.wait()
        assert given.so_far.text == "first"
        seen.set()
        assert (await given.outcome()).text == "firstsecond"


async def test_a_gateway_that_does_not_read_suspends_the_handler(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url)
    piece = "x" * 100_000
    made = 0

    @worker.handler(models=["m"])
    async def flood(task: Task, context: Context) -> AsyncIterator[str]:
        nonlocal made
        for _ in range(300):
            made += 1
            yield piece

    async with serving(worker):
        link = await gateway.worker("m")
        given = await gateway.give("x", {}, model="m", stream=True)
        async with asyncio.timeout(DEADLINE_S):
            await given.first_output.wait()
            link.socket.transport.pause_reading()
            before = -1
            while made != before:  # until nothing has moved for a while
                before = made
                await asyncio.sleep(0.1)
        assert made < 300
        link.socket.transport.resume_reading()
        outcome = await given.outcome()
    assert len(outcome.deltas) == 300


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            TaskError("MODEL_TOO_BUSY", "later", retry_after_ms=50, http_status=429),
            {
                "code": "MODEL_TOO_BUSY",
                "retryable": True,
                "message": "later",
                "httpStatus": 429,
                "retryAfterMs": 50,
            },
        ),
        (ValueError("what"), {"code": "WORKER_ERROR", "message": "ValueError: what"}),
        (
            asyncio.CancelledError(),
            {"code": "WORKER_ERROR", "message": "The handler was cancelled from inside."},
        ),
    ],
)
async def test_a_failure_arrives_with_its_code(
    gateway: FakeGateway, error: BaseException, expected: dict[str, Any]
) -> None:
    worker = Worker(gateway=gateway.url)

    @worker.handler(models=["m"])
    async def fail(task: Task, context: Context) -> AsyncIterator[str]:
        context.set_usage(Usage(input_tokens=4))
        yield "some"
        raise error

    async with serving(worker):
        outcome = await gateway.run("x", {"secret": "payload"}, model="m", stream=True)
    assert outcome.error == expected["message"]
    assert outcome.error_info == expected
    assert outcome.usage == {"inputTokens": 4}
    assert outcome.text == "some"


async def test_of_many_failures_some_have_a_line_without_what_may_quote_the_request(
    gateway: FakeGateway, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(gateway=gateway.url)

    @worker.handler(models=["m"])
    async def fail(task: Task, context: Context) -> Any:
        raise TaskError("UPSTREAM_ERROR", "template failed on input: my secret")

    with caplog.at_level(logging.INFO, "fairlane.worker"):
        async with serving(worker):
            for _ in range(60):
                await gateway.run("x", {}, model="m")
    lines = [
        line for line in caplog.messages if "failed with UPSTREAM_ERROR: template failed on input" in line
    ]
    assert 20 <= len(lines) < 60
    assert "secret" not in caplog.text


@pytest.mark.parametrize("value", [object(), msgspec.Raw(b"{"), "\ud800", msgspec.Raw(b'"\xff"')])
async def test_a_result_that_is_not_json_fails_its_task_and_no_other(
    gateway: FakeGateway, value: Any
) -> None:
    worker = Worker(gateway=gateway.url)

    @worker.handler(models=["bad"])
    async def bad(task: Task, context: Context) -> Any:
        return value

    @worker.handler(models=["good"])
    async def good(task: Task, context: Context) -> Any:
        return 1

    async with serving(worker):
        outcome = await gateway.run("x", {}, model="bad")
        assert outcome.error_info is not None
        assert outcome.error_info["code"] == "WORKER_ERROR"
        assert (await gateway.run("x", {}, model="good")).result == 1
    assert len(gateway.from_workers("register")) == 1


async def test_progress_reaches_the_gateway_in_order(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url)

    @worker.handler(models=["m"])
    async def staged(task: Task, context: Context) -> AsyncIterator[str]:
        stage = Stage(name="load", index=1, of=2, status="done")
        await context.progress(pct=50, note="half", stage=stage, usage=Usage(input_tokens=3, output_tokens=1))
        yield "x"
        with pytest.raises(msgspec.ValidationError):
            await context.progress(pct=101)

    async with serving(worker):
        outcome = await gateway.run("x", {}, model="m")
    (progress,) = outcome.progress
    assert (progress["pct"], progress["note"]) == (50, "half")
    assert progress["stage"] == {"name": "load", "index": 1, "of": 2, "status": "done"}
    assert progress["usage"] == {"inputTokens": 3, "outputTokens": 1}


async def test_a_handler_says_once_that_its_request_has_left_and_only_if_asked(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url, slots=4)
    release = asyncio.Event()

    @worker.handler(models=["m"])
    async def calls(task: Task, context: Context) -> str:
        context.sent()
        context.sent()
        await release.wait()
        return "done"

    async with serving(worker):
        asked = await gateway.give("x", {}, model="m", tell_sent=True)
        async with asyncio.timeout(10):
            await asked.sent.wait()
        other = await gateway.give("x", {}, model="m")
        release.set()
        await asked.outcome()
        await other.outcome()
    assert len(gateway.from_workers("taskSent")) == 1


async def test_cancel_raises_in_the_handler_and_is_answered(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url)
    cancelled: list[str | None] = []

    @worker.handler(models=["m"])
    async def wait(task: Task, context: Context) -> AsyncIterator[str]:
        yield "x"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(context.cancelled.reason)
            raise

    async with serving(worker):
        given = await gateway.give("x", {}, model="m", stream=True)
        async with asyncio.timeout(DEADLINE_S):
            await given.first_output.wait()
        await given.cancel("timeout", grace_ms=60_000)
        outcome = await given.outcome()
        assert outcome.error
        assert cancelled == ["timeout"]
        assert (await gateway.worker("m")).tasks == {}


async def test_a_handler_that_ignores_its_cancel_is_answered_for_and_keeps_its_slot(
    gateway: FakeGateway,
) -> None:
    worker = Worker(gateway=gateway.url, slots=2)
    release = threading.Event()

    @worker.handler(models=["m"])
    def stubborn(task: Task, context: Context) -> bool:
        release.wait(DEADLINE_S)
        return bool(context.cancelled)

    async with serving(worker):
        given = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await given.acknowledged.wait()
        await given.cancel(grace_ms=50)
        outcome = await given.outcome()
        assert outcome.error
        other = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await other.acknowledged.wait()
        third = await gateway.give("x", {}, model="m", link=other.link)
        assert (await third.outcome()).rejected == "capacity"
        release.set()
        assert (await other.outcome()).result is False
        await gateway.until(lambda: gateway.from_workers("register")[-1].get("slots") == 2)


async def test_a_plain_function_can_see_that_it_is_cancelled(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url)
    seen: list[bool] = []

    @worker.handler(models=["m"])
    def look(task: Task, context: Context) -> None:
        until = time.monotonic() + DEADLINE_S
        while not context.cancelled and time.monotonic() < until:
            time.sleep(0.001)
        seen.append(bool(context.cancelled))

    async with serving(worker):
        given = await gateway.give("x", {}, model="m")
        async with asyncio.timeout(DEADLINE_S):
            await given.acknowledged.wait()
        await given.cancel()
        await given.outcome()
        assert seen == [True]


async def test_hooks_prepare_and_release_the_state(gateway: FakeGateway) -> None:
    worker = Worker(gateway=gateway.url)
    order: list[str] = []

    @worker.on_startup
    async def load(state: Any) -> None:
        state.model = "loaded"
        worker.on_shutdown(third)

    @worker.on_shutdown
    async def first(state: Any) -> None:
        order.append("first")
        raise ValueError("first")

    @worker.on_shutdown
    async def second(state: Any) -> None:
        order.append("second")

    async def third(state: Any) -> None:
        order.append("third")
        raise ValueError("third")

    @worker.handler(models=["m"])
    async def tell(task: Task, context: Context) -> Any:
        return context.state.model

    async with serving(worker) as running:
        assert (await gateway.run("x", {}, model="m")).result == "loaded"
        with pytest.raises(ValueError, match="third"):
            await running.stop()
    assert order == ["third", "second", "first"]


DEEP = msgspec.Raw(b'{"a":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")
"""Nested deeper than the gateway reads it, and not too deep for the worker."""


@pytest.mark.parametrize(
    "item",
    [
        Delta(index=-1, content="a"),
        Delta(index=1024, content="a"),
        Delta(content=5),  # type: ignore[arg-type]
        Delta(tool_calls=msgspec.Raw(b'{"a":1}')),
        Delta(extra=msgspec.Raw(b"[]")),
        Delta(extra=DEEP),
        Result(DEEP),
    ],
    ids=["index-below", "index-above", "content", "toolCalls", "extra", "deep-extra", "deep-result"],
)
async def test_what_the_gateway_could_not_read_fails_its_task_and_is_not_sent(
    gateway: FakeGateway, item: Any
) -> None:
    worker = Worker(gateway=gateway.url)

    @worker.handler(models=["m"])
    async def odd(task: Task, context: Context) -> AsyncIterator[Any]:
        yield item

    async with serving(worker):
        outcome = await gateway.run("openaiLike", {}, model="m", stream=True)
        assert (outcome.deltas, outcome.result) == ([], None)
        assert outcome.error_info is not None
        assert outcome.error_info["code"] == "WORKER_ERROR"
    assert len(gateway.from_workers("register")) == 1
