"""Nobody waits past a deadline, also while Redis says nothing of a task's end."""

import asyncio
from pathlib import Path

import httpx2
import pytest
from tests.support.servers import Server
from tests.support.serving import until
from tests.support.talk import talking

from fairlane.gateway.http import streams

pytestmark = pytest.mark.anyio

CHAT = {"model": "m", "messages": []}


async def test_native_streams_and_readers_end_while_redis_stays_unavailable(
    own_redis: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends at the deadline of its task; a reader of any task is asked to return."""
    monkeypatch.setattr(streams, "STALE_S", 2.0)
    limits = {"min_task_timeout_ms": 100, "redis_timeout_ms": 300, "keepalive_ms": 500}
    async with talking(own_redis.url, tmp_path, **limits) as talk, talk.worker2(["m"], slots=2) as worker:
        body = {"model": "m", "stream": True, "messages": []}
        own = talk.later(talk.http.post("/api/openai", json={**body, "timeout": 1500}))
        first = await worker.take()
        response = talk.later(
            talk.http.post(
                "/v1/responses", json={"model": "m", "input": "x", "background": True, "stream": True}
            )
        )
        second = await worker.take()
        reader = talk.later(talk.http.get(f"/api/task/{second['taskId']}/events"))
        for task in (first, second):
            await worker.chunk(task, "begun")
        await until(lambda: len(talk.served.gateway.tasks.open_answers) == 3, "three streams")
        with own_redis.frozen():
            ended, background, read = await asyncio.gather(own, response, reader)
        assert '"code":"TOTAL_TIMEOUT","retryable":false,"category":"timeout_or_capacity"}' in last_frame(
            ended
        )
        assert "id:" not in last_frame(ended)
        assert '"reason":"store"' in last_frame(read)
        assert "STORE_UNAVAILABLE" in last_frame(background)


async def test_a_reader_ends_behind_the_deadline_of_a_task_whose_end_redis_does_not_take(
    own_redis: Server, tmp_path: Path
) -> None:
    limits = {"min_task_timeout_ms": 100, "keepalive_ms": 500}
    async with talking(own_redis.url, tmp_path, **limits) as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m", timeout=1500)
        await worker.take()
        reader = talk.later(talk.http.get(f"/api/task/{task_id}/events"))
        await until(lambda: len(talk.served.gateway.tasks.open_answers) == 1, "a reader")
        with own_redis.client() as store:
            store.config_set("min-replicas-to-write", "1")
            async with asyncio.timeout(15):
                read = await reader
            store.config_set("min-replicas-to-write", "0")
        assert '"reason":"store"' in last_frame(read)


def last_frame(answer: httpx2.Response) -> str:
    return answer.text.strip().rpartition("\n\n")[2]


async def test_callers_are_answered_at_their_deadline_while_redis_is_away(
    own_redis: Server, tmp_path: Path
) -> None:
    limits = {"min_task_timeout_ms": 100, "redis_timeout_ms": 300}
    async with talking(own_redis.url, tmp_path, **limits) as talk, talk.worker2(["m"], slots=3) as worker:
        native = talk.sync(model="m", timeout=1500)
        headers = {"X-Fairlane-Timeout": "1500"}
        openai = talk.later(talk.http.post("/v1/chat/completions", json=CHAT, headers=headers))
        stream = talk.later(
            talk.http.post("/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers)
        )
        tasks = [await worker.take() for _ in range(3)]
        for task in tasks:
            await worker.chunk(task, "begun")
        with own_redis.frozen():
            answers = await asyncio.gather(native, openai, stream)
        await until(lambda: talk.served.gateway.link.up, "the connection to be back")
        assert [answer.status_code for answer in answers] == [500, 504, 200]
        assert answers[0].json()["code"] == "TOTAL_TIMEOUT"
        assert answers[0].json()["taskId"] == answers[0].headers["x-task-id"]
        assert answers[1].json()["error"]["code"] == "TOTAL_TIMEOUT"
        assert answers[1].headers["x-should-retry"] == "false"
        assert '"code":"TOTAL_TIMEOUT"' in answers[2].text
        assert "[DONE]" not in answers[2].text
        for answer in answers:  # once Redis answers, the task ends
            assert (await talk.reaches(answer.headers["x-task-id"], "failed"))["code"] == "TOTAL_TIMEOUT"
