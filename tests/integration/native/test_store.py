"""Redis away: clear errors at once, and everything goes on when it is back."""

from pathlib import Path

import pytest
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.streams import frames_of
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio


async def ready(talk: Talk, status: int) -> None:
    async def answers() -> bool:
        return (await talk.http.get("/readyz")).status_code == status

    await until(answers, f"/readyz to answer {status}")


async def test_with_redis_down_every_call_is_a_503_and_the_gateway_recovers(
    own_redis: Server, tmp_path: Path
) -> None:
    async with talking(own_redis.url, tmp_path) as talk, talk.worker() as worker:
        task_id = await talk.submit()
        task = await worker.take()
        own_redis.stop()
        await ready(talk, 503)
        for method, path, body in (
            ("POST", "/api/openai", {}),
            ("POST", "/api/openai", {"async": True}),
            ("POST", "/api/openai", {"stream": True}),
            ("POST", "/api/tasks", {"type": "t", "payload": 1}),
            ("GET", f"/api/task/{task_id}", None),
            ("POST", f"/api/task/{task_id}/cancel", {}),
            ("GET", "/api/admin/overview", None),
        ):
            answer = await talk.http.request(method, path, json=body)
            assert answer.status_code == 503, path
            body = answer.json()
            assert (body["error"], body["code"]) == ("Store unavailable", "STORE_UNAVAILABLE")
            assert body["retryAfterMs"] >= 1
            assert int(answer.headers["retry-after"]) >= 1
        events = await talk.http.get(f"/api/task/{task_id}/events", headers={"Last-Event-ID": "1-1"})
        [bye] = frames_of(events.content)
        assert (events.status_code, bye.event, bye.id) == (200, "bye", None)
        assert f"retry: {bye.data['reconnectMs']}" in bye.decode()
        for path in ("/v1/chat/completions", "/v1/models"):
            chat = {"model": "m", "messages": []}
            answer = await (talk.http.post(path, json=chat) if "chat" in path else talk.http.get(path))
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == "Store unavailable"
            assert int(answer.headers["retry-after"]) >= 1
        own_redis.start()
        await ready(talk, 200)
        await worker.answer(task, {"of": "a lost task"})

        async def accepted() -> bool:
            answer = await talk.http.post("/api/openai", json={"async": True, "name": "after"})
            assert answer.status_code in (202, 503)
            return answer.status_code == 202

        await until(accepted)
        assert (await worker.take())["payload"]["name"] == "after"


async def test_callers_waiting_when_redis_loses_everything_get_an_error(
    own_redis: Server, tmp_path: Path
) -> None:
    async with talking(own_redis.url, tmp_path) as talk, talk.worker() as worker:
        call = talk.sync()
        stream = talk.later(talk.http.post("/api/openai", json={"stream": True}))
        await worker.take()
        await talk.waiting(1)
        own_redis.stop()
        await ready(talk, 503)
        own_redis.start()
        answer = await call
        assert (answer.status_code, answer.json()["code"]) == (500, "STORE_LOST")
        assert "event: " in (await stream).text.rstrip().rpartition("\n\n")[2]


async def test_a_redis_that_hangs_is_a_503_and_a_running_stream_survives_it(
    own_redis: Server, tmp_path: Path
) -> None:
    async with talking(own_redis.url, tmp_path, redis_timeout_ms=300) as talk, talk.worker() as worker:
        async with talk.events("/api/openai", json={"stream": True}) as reader:
            task = await worker.take()
            await worker.chunk(task, "before ")
            await reader.until("chunk")
            with own_redis.frozen():
                answer = await talk.sync()
                assert (answer.status_code, answer.json()["error"]) == (503, "Store unavailable")
                await worker.chunk(task, "during ")
                await ready(talk, 503)
            await worker.chunk(task, "after")
            await worker.answer(task, None)
            events = await reader.until("done")
            assert events[-1].data["result"]["content"] == "before during after"
        await ready(talk, 200)
        assert await worker.idle(), "the submit of unknown outcome must not run"
