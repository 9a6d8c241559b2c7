"""What a scrape tells of tasks that really went through the gateway."""

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.support.rawworkers import RawWorker
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.talk import Talk

from .scraping import scrape, scrape_when

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
USAGE = {"prompt_tokens": 7, "completion_tokens": 21}


async def submit(talk: Talk, **body: Any) -> str:
    answer = await talk.http.post("/api/openai", json={"model": "m", "async": True, **body})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["taskId"])


async def fail(worker: RawWorker, task: dict[str, Any], code: str, **info: Any) -> None:
    error = {"code": code, "message": "it failed", **info}
    await worker.answer(task, None, error="it failed", errorInfo=error)


async def test_a_task_is_counted_from_its_submission_to_its_end(here: Talk) -> None:
    async with here.worker2(["m"]) as worker:
        calling = here.later(here.http.post("/v1/chat/completions", json=CHAT))
        task = await worker.take()
        await worker.chunk(task, "one")
        await worker.answer(task, {"content": "one"}, usage=USAGE)
        assert (await calling).status_code == 200
        seen = await scrape(here.http, strict=True)
    where = {"queue": "free_stream", "model": "m", "process": "0"}
    assert seen.value("fairlane_tasks_accepted_total", **where) == 1
    assert seen.value("fairlane_tasks_ended_total", **where, status="completed", code="") == 1
    assert seen.value("fairlane_task_queue_seconds_count", **where) == 1
    assert seen.value("fairlane_task_run_seconds_count", **where, status="completed") == 1
    model = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "m", "gen_ai_provider_name": "fairlane"}
    assert seen.value("gen_ai_server_request_duration_seconds_count", **model, error_type="") == 1
    assert seen.value("gen_ai_server_time_to_first_token_seconds_count", **model) == 1
    assert seen.value("gen_ai_server_time_per_output_token_seconds_count", **model) == 1
    assert seen.value("gen_ai_client_token_usage_sum", **model, gen_ai_token_type="input") == 7
    assert seen.value("gen_ai_client_token_usage_sum", **model, gen_ai_token_type="output") == 21
    call = {"route": "/v1/chat/completions", "method": "POST", "status": "200"}
    assert seen.value("fairlane_http_request_duration_seconds_count", **call) == 1
    assert seen.value("fairlane_redis_reply_seconds_count") > 5
    assert seen.value("fairlane_redis_connections_total") == 1
    assert seen.value("fairlane_connected_workers") == 1
    assert seen.value("fairlane_ready") == 1
    assert seen.value("process_resident_memory_bytes") > 1e6


async def test_the_page_on_metrics_lists_what_a_scrape_holds(here: Talk) -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", page.partition("## Alerts")[0], re.MULTILINE))
    seen = await scrape(here.http)
    assert {name.removesuffix("_total") for name in listed} == {
        name.removesuffix("_total") for name in seen.types
    }


async def test_what_waits_runs_and_is_limited_is_what_redis_says(here: Talk, there: Talk) -> None:
    await here.http.patch("/api/admin/models/m", json={"concurrency": 2})
    await here.http.patch("/api/admin/queues/free_stream", json={"paused": True})
    async with there.worker2(["m"], slots=3) as worker:
        tasks = [await submit(here) for _ in range(5)]
        for _ in range(2):
            await worker.take()
        lane = {"queue": "free_batch", "model": "m"}
        seen = await scrape_when(here.http, 3, "fairlane_tasks_waiting", **lane)
        assert seen.value("fairlane_tasks_waiting", **lane) == 3
        assert seen.value("fairlane_tasks_running", **lane) == 2
        assert seen.value("fairlane_users_waiting", **lane) == 1
        assert 0 < seen.value("fairlane_oldest_wait_seconds", **lane) < 60
        assert seen.value("fairlane_charged_cost", **lane) > 0
        assert seen.value("fairlane_queue_service_share", queue="free_batch") == 1
        assert seen.value("fairlane_queue_paused", queue="free_stream") == 1
        assert seen.value("fairlane_queue_paused", queue="free_batch") == 0
        assert seen.value("fairlane_queue_weight", queue="paid_stream") == 8
        assert seen.value("fairlane_model_slots_used", model="m") == 2
        assert seen.value("fairlane_model_slots_limit", model="m") == 2
        assert seen.value("fairlane_model_worker_slots", model="m") == 3
        assert seen.value("fairlane_workers", status="ready") == 1
        assert seen.value("fairlane_replicas") == 2
        assert not seen.values("fairlane_task_silence_seconds"), "no worker of this replica has one"
        assert (await scrape(there.http)).value("fairlane_task_silence_seconds", model="m") > 0
        await scrape_when(there.http, 3, "fairlane_tasks_waiting", **lane)
        for task in tasks:
            await here.http.post(f"/api/task/{task}/cancel")
        seen = await scrape(here.http)
        ended = {"queue": "free_batch", "model": "m", "status": "cancelled"}
        assert seen.value("fairlane_tasks_ended_total", **ended) == 5
        assert not (await scrape(there.http)).values("fairlane_tasks_ended_total")


async def test_refusals_are_counted_by_reason_and_invented_models_are_not_told_apart(gateway: Start) -> None:
    async with gateway(max_queue_length=1) as talk:
        for number in range(30):
            answer = await talk.http.post("/api/openai", json={"model": f"invented-{number}"})
            assert answer.status_code == 503
        async with talk.worker2(["m"]) as worker:
            await submit(talk)
            await worker.take()
            await submit(talk)
            assert (
                await talk.http.post("/api/openai", json={"model": "m", "async": True})
            ).status_code == 503
            for path in ("/nowhere", "/nowhere/else", "/api/task/x"):
                await talk.http.get(path)
            await talk.http.request("PROPFIND", "/api/openai")
            seen = await scrape(talk.http)
    refused = "fairlane_tasks_rejected_total"
    assert seen.value(refused, model="other", code="NO_WORKER", queue="free_stream") == 30
    assert seen.value(refused, model="m", code="QUEUE_FULL", queue="free_batch") == 1
    requests = "fairlane_http_request_duration_seconds_count"
    assert seen.value(requests, route="/api/openai", status="503") == 31
    assert seen.value(requests, route="other", method="GET", status="404") == 2
    assert seen.value(requests, route="/api/task/{task_id}", status="404") == 1
    assert seen.value(requests, method="other", status="405") == 1


async def test_nobody_without_an_admin_key_reads_metrics(gateway: Start) -> None:
    from hashlib import sha256

    keys = [
        {
            "id": name,
            "sha256": sha256(name.encode()).hexdigest(),
            "scopes": ["admin" if name == "prometheus" else "call"],
        }
        for name in ("prometheus", "caller")
    ]
    async with gateway(keys=keys) as talk:
        assert (await talk.http.get("/metrics")).status_code == 401
        async with talk.client("caller") as caller:
            assert (await caller.get("/metrics")).status_code == 403
        async with talk.client("prometheus") as prometheus:
            seen = await scrape(prometheus)
            assert seen.value("fairlane_survey_success") == 1


async def test_users_and_tasks_are_never_named(here: Talk) -> None:
    async with here.worker2(["m"]) as worker:
        here.http.headers["X-Fairlane-User"] = "u5er-77"
        task_id = await submit(here)
        await worker.answer(await worker.take(), {})
        await here.reaches(task_id, "completed")
        text = (await here.http.get("/metrics")).text
    assert "u5er" not in text
    assert task_id not in text


async def test_without_redis_a_gateway_tells_what_it_knows_itself(here: Talk, redis_server: Server) -> None:
    async with here.worker2(["m"]) as worker:
        calling = here.later(here.http.post("/v1/chat/completions", json=CHAT))
        await worker.answer(await worker.take(), {}, usage=USAGE)
        await calling
        with redis_server.frozen():
            await until(lambda: not here.served.gateway.link.up, "the loss of Redis")
            await here.http.post("/v1/chat/completions", json=CHAT)
            seen = await scrape(here.http)
        await until(lambda: here.served.gateway.link.up, "the way back to Redis")
        after = await scrape(here.http)
    assert seen.value("fairlane_survey_success") == seen.value("fairlane_redis_connected") == 0
    assert seen.value("fairlane_ready") == 0
    assert not seen.values("fairlane_tasks_waiting")
    assert seen.value("fairlane_tasks_accepted_total", model="m") == 1
    assert seen.value("fairlane_tasks_rejected_total", model="m", code="STORE_UNAVAILABLE") == 1
    assert after.value("fairlane_survey_success") == 1
    assert after.value("fairlane_redis_connections_total") == 2
