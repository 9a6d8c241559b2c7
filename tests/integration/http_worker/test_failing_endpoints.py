"""One endpoint that fails, beside others that the same worker calls."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.endpoints.calling import caller, reaches, response, submit
from tests.support.rawworkers import RawWorker
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
ENDPOINTS: dict[str, Any] = {
    "bad": {"url": "https://bad.example.com/*", "methods": ["GET"], "retries": 1},
    "good": {"url": "https://good.example.com/*", "methods": ["GET"]},
}
FAILED = {"code": "UPSTREAM_ERROR", "retryable": True, "httpStatus": 500}
BUSY = {"code": "MODEL_TOO_BUSY", "retryable": True, "retryAfterMs": 60_000}


async def test_a_worker_goes_on_with_other_endpoints_where_one_fails(gateway: Start) -> None:
    """One slot: a worker that rested would take nothing of either."""
    async with gateway(endpoints=ENDPOINTS) as talk, caller(talk, slots=1) as worker:
        bad = await submit(talk, target_url="https://bad.example.com/x", http_method="GET")
        for _ in range(2):
            await worker.answer(await worker.take(), error="no", errorInfo=FAILED)
            [mine] = talk.served.gateway.dispatcher.pool
            assert mine.hold_until == 0
        await reaches(talk, bad["task_id"], "failed")
        good = await submit(talk, target_url="https://good.example.com/x", http_method="GET")
        await worker.answer(await worker.take(), response("fine"))
        assert (await reaches(talk, good["task_id"], "completed"))["task_result"] == "fine"


async def test_an_endpoint_that_asks_to_wait_has_its_own_line_held_and_no_other(gateway: Start) -> None:
    async with gateway(endpoints=ENDPOINTS) as talk, caller(talk, slots=1) as worker:
        bad = await submit(talk, target_url="https://bad.example.com/x", http_method="GET")
        await worker.answer(await worker.take(), error="busy", errorInfo=BUSY)
        good = await submit(talk, target_url="https://good.example.com/x", http_method="GET")
        task = await worker.take()
        assert task["model"] == "http:good"
        await worker.answer(task, response("fine"))
        await reaches(talk, good["task_id"], "completed")
        await reaches(talk, bad["task_id"], "pending")
        [mine] = talk.served.gateway.dispatcher.pool
        assert mine.hold_until == 0


async def test_an_endpoint_that_fails_gives_no_worker_a_rest_and_is_called_as_often_as_it_says(
    gateway: Start,
) -> None:
    """Of two workers of all endpoints none rests because one of these fails, whose calls nobody makes once more for it."""
    bad = {"url": "https://bad.example.com/*", "methods": ["GET"], "retries": 0}
    begun = 0
    async with (
        gateway(endpoints={**ENDPOINTS, "bad": bad}) as talk,
        caller(talk, 1) as one,
        caller(talk, 1) as two,
    ):

        async def fail(worker: RawWorker) -> None:
            nonlocal begun
            while True:
                task = await worker.take()
                begun += 1
                await worker.answer(task, error="no", errorInfo=FAILED)

        working = [talk.later(fail(worker)) for worker in (one, two)]
        for number in range(1, 6):
            task = await submit(talk, target_url="https://bad.example.com/x", http_method="GET")
            await reaches(talk, task["task_id"], "failed")
            assert begun == number
        assert [(worker.failure_reason, worker.cap) for worker in talk.served.gateway.dispatcher.pool] == [
            ("", None)
        ] * 2
        for task_of in working:
            task_of.cancel()


async def test_a_worker_is_not_unhealthy_because_one_endpoint_fails(gateway: Start) -> None:
    """It rested for all endpoints while another one was there; one through which several fail is, as ever."""
    async with gateway(endpoints=ENDPOINTS) as talk, caller(talk, slots=1) as worker:
        [mine] = talk.served.gateway.dispatcher.pool
        for code in ("UPSTREAM_ERROR", "JSON_PARSE_FAILED", "UPSTREAM_AUTH", "JSON_PARSE_FAILED"):
            bad = await submit(talk, target_url="https://bad.example.com/x", http_method="GET")
            task = await worker.take()
            await worker.answer(task, error="no", errorInfo={"code": code, "retryable": False})
            await reaches(talk, bad["task_id"], "failed")
            assert (mine.unhealthy_reason, mine.failures) == ("", 1)
        for name in ("good", "bad"):
            failed = await submit(talk, target_url=f"https://{name}.example.com/x", http_method="GET")
            task = await worker.take()
            await worker.answer(task, error="no", errorInfo={"code": "JSON_PARSE_FAILED", "retryable": False})
            await reaches(talk, failed["task_id"], "failed")
        assert mine.unhealthy_reason
