"""Who may use which chain, what holds for one that runs, and what becomes of it when its caller leaves."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.integration.chains.job_match import ASK, SETTINGS, STAGES, SUMMARY, Start, ask, cast
from tests.integration.native.keys import key, secret
from tests.support.serving import until
from tests.support.talk import talking

pytestmark = pytest.mark.anyio
KEYS = [
    key("whole", models=["job_match"]),
    key("part", models=["sums"]),
    key("some", models=["eyes", "sums", "chat", "job_summary"]),
    key("other"),
]


async def test_a_key_covers_the_chain_or_all_of_its_stages(redis_url: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "keys": KEYS}
    async with (
        talking(redis_url, tmp_path, **settings) as talk,
        talk.worker2(["eyes", "sums", "chat"], slots=9),
        contextlib.AsyncExitStack() as stack,
    ):
        clients = {
            name: await stack.enter_async_context(talk.client(secret(name)))
            for name in ("whole", "part", "some", "other")
        }

        async def asks(who: str, body: dict[str, Any]) -> int:
            return (await clients[who].post("/api/tasks", json=body)).status_code

        assert [await asks(who, ASK) for who in ("whole", "some", "other", "part")] == [202, 202, 202, 404]
        answer = await clients["whole"].post("/api/tasks", json=ASK)
        task_id = answer.json()["taskId"]
        told = await clients["other"].get(f"/api/task/{task_id}")
        assert told.status_code == 404
        told = await clients["whole"].get(f"/api/task/{task_id}.0.00")
        assert told.status_code == 404, "nobody sees parts"
        told = (await clients["whole"].get("/api/routes")).json()["chains"]
        assert told == [
            {
                "name": "job_match",
                "variables": ["job", "pages", "resume"],
                "optional": ["pages"],
                "stages": [
                    {"name": "ocr", "status": "OCR_PENDING"},
                    {"name": "summary", "status": "SUMMARY_PENDING"},
                    {"name": "match", "status": "MATCH_PENDING"},
                ],
            }
        ]


async def test_another_configuration_changes_nothing_of_a_chain_that_runs(
    redis_url: str, tmp_path: Path
) -> None:
    """The replica whose workers run it knows no chain of this name, no template, and other fallbacks."""
    async with (
        talking(redis_url, tmp_path, **SETTINGS) as talk,
        talking(redis_url, tmp_path, models=SETTINGS["models"]) as at,
        at.worker2(["sums"]) as sums,
        at.worker2(["chat"]) as chat,
    ):
        task_id = (await talk.http.post("/api/tasks", json=ASK)).json()["taskId"]
        task = await sums.take()
        changed = {**SETTINGS["chains"]["job_match"], "stages": STAGES[:2]}
        current = talk.served.gateway.current
        current.settings = current.settings.model_copy(
            update={
                "chains": {"job_match": type(current.settings.chains["job_match"]).model_validate(changed)}
            }
        )
        await sums.answer(task, SUMMARY)
        task = await chat.take()
        assert task["payload"]["messages"][0]["content"] == "Ten years for Cook"
        await chat.answer(task, {"content": "x"})
        for reader in (talk, at):
            assert (await reader.reaches(task_id, "completed"))["results"]["match"] == {"content": "x"}


async def test_a_caller_who_waits_and_leaves_cancels_it(gateway: Start) -> None:
    async with cast(gateway) as stage:
        call = stage.talk.later(stage.talk.http.post("/api/tasks", json=ask(**{"async": False})))
        await stage.sum_up()
        task = await stage.chat.take()
        call.cancel()
        assert (await stage.chat.skip_to("cancel"))["taskId"] == task["taskId"]
        await stage.chat.answer(task, {})


async def test_the_archive_keeps_how_it_ended(redis_url: str, tmp_path: Path) -> None:
    settings = {**SETTINGS, "archive": "requests", "task_result_ttl_ms": 1000}
    async with (
        talking(redis_url, tmp_path, **settings) as talk,
        talk.worker2(["sums"]) as sums,
        talk.worker2(["chat"]) as chat,
    ):
        task_id = (await talk.http.post("/api/tasks", json=ASK)).json()["taskId"]
        await sums.answer(await sums.take(), SUMMARY)
        await chat.answer(await chat.take(), {"content": "x"})
        await talk.reaches(task_id, "completed")

        async def gone() -> bool:
            return await talk.served.gateway.scheduler.position(task_id) is None

        await until(gone, "Redis to forget it")
        told = await talk.poll(task_id)
        assert (told["stageStatus"], told["results"]["match"]) == ("COMPLETED", {"content": "x"})
        kept = (await talk.http.get(f"/api/admin/tasks/{task_id}?stored=true")).json()
        assert kept["request"]["chain"] == "job_match"
        assert kept["request"]["variables"] == ASK["variables"]
