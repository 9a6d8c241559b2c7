"""Models that may not start a task yet: throttled by requests per minute, or in the cooldown that their provider requested.

Instants are Redis's own, as the records keep them; what is compared with them is a lower bound, so that a slow machine changes
nothing.
"""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import respx
from tests.contract.store.store import OPERATOR
from tests.support.rawworkers import Callers, RawWorker, callers_of, key, until_workers, worker_v2
from tests.support.serving import Served, serving, until
from tests.support.stored import set_in_record

from fairlane.queues.overrides import OverrideStore
from fairlane.queues.rules import Value
from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.sdk import Worker

pytestmark = pytest.mark.anyio

REFUSED = {"code": "MODEL_TOO_BUSY", "retryable": True, "httpStatus": 429}


async def change(served: Served, model: str = "m", **values: Value) -> None:
    """Change a model's settings while the gateway runs."""
    await OverrideStore([served.gateway.link], lambda _: 0).set_settings("model", model, values, OPERATOR)


async def record(served: Served, task_id: str) -> dict[str, str]:
    found = await served.gateway.scheduler.position(task_id)
    assert found is not None
    return found.fields


async def granted_at(served: Served, task_ids: Iterable[str]) -> list[int]:
    """When the last attempt of each task began, ms, in order."""
    return sorted([int((await record(served, task_id))["granted_at"]) for task_id in task_ids])


def requeued_at(fields: dict[str, str]) -> int:
    """When a task last went back to its queue, ms."""
    ended: int = json.loads(fields["history"])[-1]["ended_at"]
    return ended


def count_scripts(served: Served) -> Counter[str]:
    """The scripts that this gateway runs from now on, by name."""
    counts: Counter[str] = Counter()
    link: Any = served.gateway.link

    def counting(run: Any, name: str, *args: Any) -> Any:
        counts[name] += 1
        return run(name, *args)

    link.run, link.run_with_others = partial(counting, link.run), partial(counting, link.run_with_others)
    return counts


async def until_swept(counts: Counter[str], times: int) -> None:
    """Let some maintenance pass."""
    enough = counts["sweep"] + times
    await until(lambda: counts["sweep"] >= enough, f"{times} sweeps")


async def answer_all(worker: RawWorker) -> None:
    """Answer whatever comes, at once and in full length, for as long as the connection lasts."""
    while True:
        frame = await worker.recv()
        if frame["type"] == "task":
            # more than was expected: what a task did not use is given back to the pace
            usage = {"inputTokens": 10, "outputTokens": frame["payload"].get("max_tokens", 1)}
            await worker.answer(frame, "done", lastSeq=0, usage=usage)


async def refuse(worker: RawWorker, task: dict[str, Any], retry_after_ms: int, **info: Any) -> None:
    """Say that the provider answered 429 and when to come again."""
    info = {**REFUSED, "retryAfterMs": retry_after_ms, **info}
    await worker.answer(task, None, lastSeq=0, error="the provider is busy", errorInfo=info)


class Answering:
    """Workers that answer everything until the block ends."""

    def __init__(self, *workers: RawWorker) -> None:
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(answer_all(worker)) for worker in self._workers]

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


# ---- pacing ----------


async def test_a_paced_model_starts_tasks_at_its_rate_and_nobody_polls(
    served: Served, callers: Callers
) -> None:
    await change(served, requests_per_minute=1200)
    async with worker_v2(served.ws, slots=4) as worker, Answering(worker):
        await until_workers(served, 1)
        counts = count_scripts(served)
        task_ids = [await callers.later() for _ in range(20)]
        for task_id in task_ids:
            await callers.until_status(task_id, "completed")
        instants = await granted_at(served, task_ids)
        gaps = [after - before for before, after in itertools.pairwise(instants)]
        assert min(gaps) >= 50, gaps  # so no window holds more than its share
        assert counts["take"] <= 2 * len(task_ids), counts
        assert counts["finish"] == len(task_ids)


async def test_while_a_model_waits_for_its_instant_nothing_is_asked(served: Served, callers: Callers) -> None:
    await change(served, requests_per_minute=1)
    async with worker_v2(served.ws, slots=2) as worker:
        await until_workers(served, 1)
        await callers.later()
        first = await worker.expect("task")
        waiting = await callers.later()
        await worker.answer(first, 1, lastSeq=0)
        await worker.expect("resultAck")
        counts = count_scripts(served)
        await until_swept(counts, 4)
        assert counts["take"] == 0, counts
        assert (await callers.status(waiting))["status"] == "queued"
        await worker.nothing_more()
        await change(served, requests_per_minute=None)
        await worker.expect("task", taskId=waiting)


async def test_a_model_with_windows_goes_on_when_its_requests_have_left_and_nobody_polls(
    served: Served, callers: Callers
) -> None:
    await change(served, windows="2/300ms")
    async with worker_v2(served.ws, slots=8) as worker:
        await until_workers(served, 1)
        task_ids = [await callers.later() for _ in range(6)]
        first, second = await worker.expect("task"), await worker.expect("task")
        assert first["tellSent"]
        counts = count_scripts(served)
        await until_swept(counts, 2)
        assert counts["take"] == 0, counts
        await worker.nothing_more()
        for task in (first, second):
            await worker.send("taskSent", **key(task))
        third, fourth = await worker.expect("task"), await worker.expect("task")
        for task in (third, fourth):  # one says nothing, and one answers
            await worker.answer(task, "done", lastSeq=0)
            await worker.expect("resultAck")
        for _ in range(2):
            task = await worker.expect("task")
            await worker.send("taskSent", **key(task))
        instants = await granted_at(served, task_ids)
        assert min(after - before for before, after in zip(instants, instants[2:], strict=False)) >= 299, (
            instants
        )
        assert counts["mark_sent"] <= 4, counts
        assert counts["take"] <= 6, counts


async def test_the_pace_holds_over_two_replicas(
    served: Served, second: Served, callers: Callers, elsewhere: Callers
) -> None:
    await change(served, requests_per_minute=1500)
    async with (
        worker_v2(served.ws, slots=2, instance="a") as a,
        worker_v2(second.ws, slots=2, instance="b") as b,
        Answering(a, b),
    ):
        await until_workers(served, 1)
        await until_workers(second, 1)
        task_ids = [await which.later() for _ in range(10) for which in (callers, elsewhere)]
        for task_id in task_ids:
            await callers.until_status(task_id, "completed")
        instants = await granted_at(served, task_ids)
        assert min(after - before for before, after in itertools.pairwise(instants)) >= 40, instants


async def test_a_replica_without_workers_wakes_the_other_when_the_instant_has_come(
    served: Served, second: Served, elsewhere: Callers
) -> None:
    await change(served, requests_per_minute=1200)
    async with worker_v2(served.ws) as worker, Answering(worker):
        await until_workers(served, 1)
        task_ids = [await elsewhere.later() for _ in range(8)]
        for task_id in task_ids:
            await elsewhere.until_status(task_id, "completed")
        instants = await granted_at(served, task_ids)
        assert min(after - before for before, after in itertools.pairwise(instants)) >= 50, instants


async def test_a_gateway_that_goes_forgets_its_timers(redis_url: str, tmp_path: Path) -> None:
    async with serving(redis_url, tmp_path) as served, callers_of(served) as callers:
        await change(served, requests_per_minute=1)
        async with worker_v2(served.ws) as worker, Answering(worker):
            await until_workers(served, 1)
            await callers.ask().ok()
            await callers.later()
            alarms = served.gateway.dispatcher._timers
            await until(lambda: len(alarms) == 1, "a timer")
    assert len(alarms) == 0


# ---- a provider that refuses ----------


async def test_a_refusal_holds_the_model_on_every_replica(
    served: Served, second: Served, callers: Callers, elsewhere: Callers
) -> None:
    async with (
        worker_v2(served.ws, instance="a", slots=2) as a,
        worker_v2(second.ws, instance="b", slots=2) as b,
    ):
        await until_workers(second, 1)
        task_id = await callers.later()
        task = await a.expect("task")
        await a.ack(task)
        await refuse(a, task, 600)
        await a.expect("resultAck", status="accepted")
        counts = [count_scripts(served), count_scripts(second)]
        later = [await callers.later(), await elsewhere.later()]
        await a.nothing_more()
        await b.nothing_more()
        assert [count["take"] for count in counts] == [0, 0]
        async with Answering(a, b):
            for each in (task_id, *later):
                await callers.until_status(each, "completed")
        fields = await record(served, task_id)
        instants = await granted_at(served, [task_id, *later])
        assert instants[0] >= requeued_at(fields) + 600
        assert instants[0] == int(fields["granted_at"]), "it has its old place"
        assert fields["attempt"] == "2"
        assert int(fields.get("tries", 0)) <= 1, "the refusal cost no try"


async def test_another_worker_takes_over_where_one_server_is_overloaded(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="a") as a, worker_v2(served.ws, instance="b") as b:
        await until_workers(served, 2)
        answer = callers.ask()
        await refuse(a, await a.expect("task"), 60_000, httpStatus=503)
        await b.answer(await b.expect("task"), "b", lastSeq=0)
        assert await answer.ok() == "b"
        answer = callers.ask()
        await b.answer(await b.skip_to("task"), "b again", lastSeq=0)
        assert await answer.ok() == "b again"


async def test_a_refusal_without_end_ends_the_task_after_a_thousand_attempts(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.skip_to("task")
        await refuse(worker, task, 500)

        async def waits() -> bool:
            return (await record(served, task["taskId"]))["state"] == "queued"

        await until(waits, "the task to be back in its queue")
        await set_in_record(served.gateway, task["taskId"], attempt=997)
        for attempt in (998, 999, 1000):
            task = await worker.skip_to("task")
            assert (await record(served, task["taskId"]))["attempt"] == str(attempt)
            await refuse(worker, task, 100)
        body = await answer.error("MODEL_TOO_BUSY")
        assert body["error"] == "the provider is busy"
        assert len((await record(served, body["taskId"]))["history"]) <= 4000
        assert not served.gateway.dispatcher.attempts


@pytest.mark.parametrize("fields", [{}, {"upstream": "up"}], ids=["model", "upstream"])
async def test_a_task_whose_time_ends_before_the_cooldown_fails_immediately_with_the_reason(
    served: Served, callers: Callers, fields: dict[str, Any]
) -> None:
    async with worker_v2(served.ws, **fields) as worker:
        first, waiting = callers.ask(timeout=60_000), callers.ask(timeout=1500)
        await refuse(worker, await worker.expect("task"), 3_600_000)
        body = await first.error("MODEL_TOO_BUSY")
        assert (body["error"], body["retryAfterMs"]) == ("the provider is busy", 3_600_000)
        assert (await first.response()).headers["retry-after"] == "3600"
        later = await callers.ask(timeout=60_000).error("WAIT_TOO_LONG", 503)
        assert later["retryAfterMs"] > 3_500_000
        body = await waiting.error("MODEL_TOO_BUSY")
        assert body["retryAfterMs"] > 3_500_000
        assert body["waitedFor"] == "cooldown"
        assert (await waiting.response()).headers["x-fairlane-ran-ms"] == "0"
        await worker.expect("resultAck")
        await worker.nothing_more()


async def test_a_provider_s_429_is_waited_out_and_the_caller_gets_the_answer(
    served: Served, callers: Callers
) -> None:
    upstream = respx.MockRouter(assert_all_called=False)
    upstream.get("http://provider.test/v1/models").respond(json={"data": []})
    route = upstream.post("http://provider.test/v1/chat/completions")
    route.side_effect = [
        httpx2.Response(429, json={"error": {"message": "slow down"}}, headers={"retry-after-ms": "250"}),
        httpx2.Response(200, json={"choices": [{"message": {"role": "assistant", "content": "here"}}]}),
    ]
    adapter = PROVIDERS["openai"].adapter(
        base_url="http://provider.test/v1", models=["m"], transport=httpx2.MockTransport(upstream.handler)
    )
    worker = Worker(gateway=served.url)
    adapter.attach(worker)
    stop = asyncio.Event()
    serve = asyncio.create_task(worker.serve(stop))
    try:
        await until_workers(served, 1)
        body = await callers.ask(messages=[]).ok()
        assert body["choices"][0]["message"]["content"] == "here"
    finally:
        stop.set()
        await serve
    assert route.call_count == 2


# ---- streams that are longer than was expected ----------
