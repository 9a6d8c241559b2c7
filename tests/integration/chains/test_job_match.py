"""A chain from its request to its end, read in every way."""

import asyncio
from typing import Any

import pytest
from tests.integration.chains.job_match import ASK, Start, ask, cast
from tests.support.streams import frames_of, joined_text

pytestmark = pytest.mark.anyio


def statuses(told: dict[str, Any]) -> list[str]:
    return [stage["status"] for stage in told["stages"]]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_poll_follows_it_through_its_stages(gateway: Start, replicas: int) -> None:
    async with cast(gateway, replicas) as stage:
        answer = await stage.talk.http.post("/api/tasks", json=ask(pages=2, metadata={"order": 7}))
        assert answer.status_code == 202
        told = answer.json()
        task_id = told["taskId"]
        assert (told["status"], told["stageStatus"]) == ("queued", "OCR_PENDING")
        assert statuses(told) == ["queued", "waiting", "waiting"]
        assert {"pollAfterMs", "streamUrl", "statusUrl"} <= told.keys()

        tasks = [await stage.eyes.take() for _ in range(2)]
        now = await stage.talk.poll(task_id)
        assert (now["stageStatus"], now["status"]) == ("OCR_PENDING", "executing")
        assert now["stage"] == {"name": "ocr", "index": 1, "of": 3}
        assert now["stages"][0] == {"name": "ocr", "status": "executing", "parts": 2, "partsDone": 0}
        await stage.eyes.answer(tasks[1], {"content": "two"}, usage={"inputTokens": 3, "outputTokens": 5})
        await stage.eyes.answer(tasks[0], {"content": "one "}, usage={"inputTokens": 2, "outputTokens": 4})

        task = await stage.sums.take()
        assert task["taskId"] == task_id
        assert task["payload"]["messages"][0]["content"] == "Sum up: A cook. one \n\ntwo"
        now = await stage.talk.poll(task_id)
        assert (now["stageStatus"], statuses(now)) == (
            "SUMMARY_PENDING",
            ["completed", "executing", "waiting"],
        )
        assert now["stages"][0]["usage"] == {"inputTokens": 5, "outputTokens": 9}
        summary = {"content": '{"title":"Cook"}'}
        await stage.sums.answer(task, summary, usage={"inputTokens": 10, "outputTokens": 10})

        task = await stage.chat.take()
        assert task["payload"]["messages"][0]["content"] == "Ten years for Cook"
        assert task["stream"] is True
        assert (await stage.talk.poll(task_id))["stageStatus"] == "MATCH_PENDING"
        await stage.chat.chunk(task, "A good ")
        await stage.chat.chunk(task, "match", 2)
        await stage.chat.answer(task, None, usage={"inputTokens": 1, "outputTokens": 2})

        end = await stage.talk.reaches(task_id, "completed")
        assert (end["stageStatus"], statuses(end)) == ("COMPLETED", ["completed"] * 3)
        assert end["result"]["content"] == "A good match"
        assert end["results"]["ocr"] == [{"content": "one "}, {"content": "two"}]
        assert end["results"]["summary"] == summary
        assert end["results"]["match"]["content"] == "A good match"
        assert end["usage"] == {"inputTokens": 16, "outputTokens": 21}
        assert (end["metadata"], end["chain"]) == ({"order": 7}, "job_match")


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_reader_from_the_start_gets_every_event_once(gateway: Start, replicas: int) -> None:
    async with cast(gateway, replicas) as stage:
        async with stage.talk.events("/api/tasks", json=ask(pages=3, stream=True)) as reader:
            await stage.read(3)
            await stage.sum_up()
            await stage.match("A ", "good ", "match")
            seen = await reader.rest()
        logged = [frame for frame in seen if frame.id]
        told = [(f.event, f.data.get("name") or f.data.get("stage"), f.data.get("status")) for f in logged]
        assert [one for one in told if one[0] != "chunk"] == [
            ("stage", "ocr", "completed"),
            ("stage", "summary", "queued"),
            ("start", "summary", None),
            ("stage", "summary", "completed"),
            ("stage", "match", "queued"),
            ("start", "match", None),
            ("stage", "match", "completed"),
            ("done", None, None),
        ]
        assert [frame.data["index"] for frame in logged if frame.event == "start"] == [2, 3]
        assert joined_text(logged) == "A good match"
        end = logged[-1].data
        assert end["result"]["content"] == "A good match"
        assert [one["name"] for one in end["stages"]] == ["ocr", "summary", "match"]
        task_id = end["taskId"]
        url = f"/api/task/{task_id}/events"
        for at in (stage.talk, stage.at):
            assert frames_of((await at.http.get(url)).content) == logged
            for number, frame in enumerate(logged[:-1]):
                rest = await at.http.get(url, headers={"Last-Event-ID": frame.id or ""})
                assert frames_of(rest.content) == logged[number + 1 :]
            over = await at.http.get(url, headers={"Last-Event-ID": logged[-1].id or ""})
            assert over.status_code == 204
        assert (await stage.talk.poll(task_id))["result"] == end["result"]


async def test_a_stream_that_is_cut_at_any_event_goes_on_behind_it_elsewhere(gateway: Start) -> None:
    async with cast(gateway, 2) as stage:
        task_id = await stage.submit(**ask(pages=2))
        seen: list[Any] = []

        async def read_on(number: int) -> None:
            """Read so many events of the log, at one gateway and the other in turn, each time on a new connection."""
            while number:
                at = (stage.talk, stage.at)[len(seen) % 2]
                last = {"Last-Event-ID": seen[-1].id} if seen else {}
                async with at.events(f"/api/task/{task_id}/events", headers=last) as reader:
                    frame = await reader.next()
                    while not frame.id:
                        frame = await reader.next()
                    seen.append(frame)
                number -= 1

        await stage.read(2)
        await read_on(2)
        await stage.sum_up()
        await read_on(3)
        task = await stage.chat.take()
        await stage.chat.chunk(task, "A ")
        await read_on(2)
        await stage.chat.chunk(task, "match", 2)
        await stage.chat.answer(task, None)
        while seen[-1].event != "done":
            await read_on(1)
        whole = frames_of((await stage.talk.http.get(f"/api/task/{task_id}/events")).content)
        assert seen == whole
        assert joined_text(seen) == "A match"


async def test_a_caller_who_waits_gets_the_last_stages_result(gateway: Start) -> None:
    async with cast(gateway) as stage:
        call = stage.talk.later(stage.talk.http.post("/api/tasks", json=ask(**{"async": False})))
        await stage.sum_up()
        await stage.match("A ", "match")
        answer = await call
        assert answer.status_code == 200
        assert answer.json()["content"] == "A match"
        end = await stage.talk.poll(answer.headers["x-task-id"])
        assert end["result"] == answer.json()
        assert statuses(end) == ["skipped", "completed", "completed"]


async def test_a_reader_is_told_its_place_in_each_line(gateway: Start) -> None:
    async with cast(
        gateway, models={"sums": {"concurrency": 1}, "eyes": {}, "chat": {}, "spare": {}}
    ) as stage:
        await stage.talk.http.post("/api/openai", json={"model": "sums", "async": True})
        ahead = await stage.sums.take()
        async with stage.talk.events("/api/tasks", json=ask(pages=1, stream=True)) as reader:
            await stage.read(1)
            seen = await reader.until("queued")
            assert [frame.event for frame in seen if frame.id] == ["start", "stage", "stage"]
            assert seen[-1].data["position"] == 1
            await stage.sums.answer(ahead, {})
            await stage.sum_up()
            await stage.match("x")
            assert (await reader.rest())[-1].event == "done"


async def test_two_requests_with_one_key_are_one_chain(gateway: Start) -> None:
    async with cast(gateway) as stage:
        headers = {"Idempotency-Key": "k1"}
        first, second = await asyncio.gather(
            *(stage.talk.http.post("/api/tasks", json=ASK, headers=headers) for _ in range(2))
        )
        assert first.json()["taskId"] == second.json()["taskId"]
        await stage.sum_up()
        await stage.match("x")
        await stage.talk.reaches(first.json()["taskId"], "completed")
        again = await stage.talk.http.post("/api/tasks", json=ASK, headers=headers)
        assert (again.json()["status"], again.json()["replay"]) == ("completed", True)
