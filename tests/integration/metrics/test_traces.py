"""One trace from the caller's span to the upstream, as a collector sees it; and nothing at all when nobody wants traces."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from tests.support.serving import until
from tests.support.talk import Talk

from fairlane.workers.adapters import PROVIDERS
from fairlane.workers.sdk import Worker

from .collector import Heard, collector, upstream

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, SPAN = CALLER.split("-")[1:3]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
SERVER, CLIENT, CONSUMER, INTERNAL = 2, 3, 5, 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans leave at once, and no proxy of this machine is asked."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def traces() -> Iterator[Heard]:
    with collector() as heard:
        yield heard


@asynccontextmanager
async def sdk_worker(talk: Talk, base_url: str) -> AsyncIterator[None]:
    """An adapter's worker, as `fairlane worker start --provider openai` runs it."""
    worker = Worker("sdk", gateway=talk.served.url)
    PROVIDERS["openai"].adapter(base_url=base_url, models=["m"]).attach(worker)
    stop = asyncio.Event()
    serving = asyncio.create_task(worker.serve(stop))
    try:
        await talk.workers(1)
        yield
    finally:
        stop.set()
        await serving


async def test_a_trace_leads_from_the_caller_to_the_upstream(
    gateway: Start, traces: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", traces.url)  # the worker's; the gateway has a setting
    with upstream() as provider:
        async with gateway(otlp_endpoint=traces.url) as talk, sdk_worker(talk, provider.url):
            answer = await talk.http.post("/v1/chat/completions", json=CHAT, headers={"traceparent": CALLER})
            assert answer.text.endswith("data: [DONE]\n\n")
            task_id = answer.headers["x-task-id"]
            names = {"POST /v1/chat/completions", "queue", "chat m", "handle m"}
            await until(lambda: names <= {span.name for span in traces.spans}, "the spans")
        [asked] = provider.headers
    request, wait, attempt, work = (
        traces.one(name) for name in ("POST /v1/chat/completions", "queue", "chat m", "handle m")
    )
    assert {span.trace_id for span in traces.spans} == {TRACE}
    assert request.parent_id == SPAN
    assert (wait.parent_id, attempt.parent_id, work.parent_id) == (
        request.span_id,
        request.span_id,
        attempt.span_id,
    )
    assert asked["traceparent"] == f"00-{TRACE}-{work.span_id}-01"
    assert [span.kind for span in (request, wait, attempt, work)] == [SERVER, INTERNAL, CLIENT, CONSUMER]
    assert (attempt.service, work.service) == ("fairlane-gateway", "fairlane-worker")
    assert request.start_ns <= attempt.start_ns <= work.start_ns <= work.end_ns
    assert request.attributes["http.response.status_code"] == 200
    assert {span.attributes["fairlane.task.id"] for span in traces.spans} == {task_id}
    assert attempt.events == work.events == ["first_output"]
    told = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 2,
        "fairlane.queue": "free_stream",
        "fairlane.attempt": 1,
        "fairlane.worker.name": "sdk",
    }
    assert {name: attempt.attributes[name] for name in told} == told
    assert not any(span.failed for span in traces.spans)


async def test_the_trace_of_a_task_goes_with_it_to_another_replica(gateway: Start, traces: Heard) -> None:
    tracing = {"otlp_endpoint": traces.url}
    async with gateway(**tracing) as here, gateway(**tracing) as there, here.worker2(["m"]) as first:
        body = {"model": "m", "async": True}
        answer = await here.http.post("/api/openai", json=body, headers={"traceparent": CALLER})
        task_id = answer.json()["taskId"]
        lost = await first.take()
        async with there.worker2(["m"]) as second:
            await first.leave()
            again = await second.take()
            error = {"code": "CONTEXT_LENGTH", "message": "no", "retryable": False}
            await second.answer(again, None, error="no", errorInfo=error)
            await here.reaches(task_id, "failed")
            await until(lambda: len(traces.named("chat m")) == 2, "both attempts")
    assert (lost["taskId"], again["taskId"]) == (task_id, task_id)
    attempts = {span.attributes["fairlane.attempt"]: span for span in traces.named("chat m")}
    request = traces.one("POST /api/openai")
    assert request.attributes["http.response.status_code"] == 202
    for number, frame in ((1, lost), (2, again)):
        span = attempts[number]
        assert frame["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
        assert (span.parent_id, span.failed) == (request.span_id, True)
    assert attempts[1].attributes["error.type"] == "worker lost"
    assert attempts[2].attributes["error.type"] == "CONTEXT_LENGTH"
    assert len(traces.named("queue")) == 1


async def test_a_cancelled_task_and_one_that_waits_in_vain_end_their_spans(
    gateway: Start, traces: Heard
) -> None:
    async with gateway(otlp_endpoint=traces.url) as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m")
        await worker.take()
        calling = talk.later(talk.http.post("/api/openai", json={"model": "m"}))
        await talk.waiting(1)
        calling.cancel()
        await talk.waiting(0)
        await talk.http.post(f"/api/task/{task_id}/cancel")
        await until(lambda: len(traces.spans) == 4, "the spans")
    assert traces.one("chat m").attributes["error.type"] == "client"
    statuses = [span.attributes["http.response.status_code"] for span in traces.named("POST /api/openai")]
    assert sorted(statuses) == [202, 499]
    assert len({span.trace_id for span in traces.spans}) == 2, (
        "without a traceparent each request begins a trace"
    )


async def test_a_caller_who_does_not_sample_is_obeyed(gateway: Start, traces: Heard) -> None:
    unsampled = CALLER[:-2] + "00"
    async with gateway(otlp_endpoint=traces.url) as talk, talk.worker2(["m"]) as worker:
        for header in (unsampled, CALLER):
            calling = talk.later(
                talk.http.post("/api/openai", json={"model": "m"}, headers={"traceparent": header})
            )
            task = await worker.take()
            assert task["traceparent"].startswith(f"00-{TRACE}-")
            assert task["traceparent"][-2:] == header[-2:]
            await worker.answer(task, {})
            await calling
        await until(lambda: len(traces.spans) == 3, "the spans of the second task")
        assert len(traces.named("chat m")) == 1


# ---- without traces ----------


async def test_a_callers_context_passes_through_where_no_traces_are_made(here: Talk) -> None:
    async with here.worker2(["m"]) as worker:
        for sent, given in (
            (CALLER, CALLER),
            (None, None),
            ("00-" + "0" * 32 + "-b7ad6b7169203331-01", None),
            (CALLER + '","model":"other', None),
            (CALLER.upper(), None),
        ):
            headers = {"traceparent": sent} if sent else {}
            calling = here.later(here.http.post("/api/openai", json={"model": "m"}, headers=headers))
            task = await worker.take()
            assert task.get("traceparent") == given
            record = await here.served.gateway.scheduler.position(task["taskId"])
            assert record is not None
            assert record.fields.get("traceparent") == given
            await worker.answer(task, {})
            assert (await calling).status_code == 200
    async with here.worker() as old:
        calling = here.later(here.http.post("/api/openai", json={}, headers={"traceparent": CALLER}))
        task = await old.take()
        assert set(task) == {"type", "taskType", "taskId", "payload"}
        await old.answer(task, {})
        await calling


async def test_without_the_package_there_is_a_warning_and_everything_else(
    gateway: Start,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with upstream() as provider, caplog.at_level(logging.WARNING, "fairlane.worker"):
        async with gateway(otlp_endpoint="http://127.0.0.1:9") as talk, sdk_worker(talk, provider.url):
            assert "pip install '.[otel]'" in capsys.readouterr().out
            assert "pip install '.[otel]'" in caplog.text
            answer = await talk.http.post("/v1/chat/completions", json=CHAT, headers={"traceparent": CALLER})
            assert answer.text.endswith("data: [DONE]\n\n")
        assert provider.headers[0]["traceparent"] == CALLER
