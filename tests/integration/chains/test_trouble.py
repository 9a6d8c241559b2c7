"""Chains that fail, are cancelled, are tried again, go on to another model, or cannot be paid."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.chains.job_match import ASK, SETTINGS, SUMMARY, Cast, Start, ask, cast
from tests.integration.native.keys import key, secret
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import KeyQuota, PriceSettings

pytestmark = pytest.mark.anyio
BROKEN = {"error": "it broke", "errorInfo": {"code": "BAD_REQUEST", "retryable": False}}
BUSY = {"error": "it broke", "errorInfo": {"code": "UPSTREAM_ERROR", "retryable": True}}


def statuses(told: dict[str, Any]) -> list[str]:
    return [stage["status"] for stage in told["stages"]]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_stage_that_fails_ends_it_with_its_name_and_the_results_so_far(
    gateway: Start, replicas: int
) -> None:
    async with cast(gateway, replicas) as stage:
        async with stage.talk.events("/api/tasks", json=ask(pages=2, stream=True)) as reader:
            await stage.read(2)
            await stage.sums.answer(await stage.sums.take(), None, **BROKEN)
            end = (await reader.rest())[-1]
        assert (end.event, end.data["failedStage"], end.data["code"]) == ("error", "summary", "BAD_REQUEST")
        told = await stage.talk.poll(end.data["taskId"])
        assert (told["status"], told["stageStatus"], told["failedStage"]) == ("failed", "FAILED", "summary")
        assert statuses(told) == ["completed", "failed", "skipped"]
        assert [one["content"] for one in told["results"]["ocr"]] == ["[data:0]", "[data:1]"]
        await stage.chat.nothing_more()


async def test_a_caller_who_waits_is_told_the_stage_and_the_results_so_far(gateway: Start) -> None:
    async with cast(gateway) as stage:
        call = stage.talk.later(stage.talk.http.post("/api/tasks", json=ask(**{"async": False})))
        await stage.sum_up()
        await stage.chat.answer(await stage.chat.take(), None, **BROKEN)
        answer = await call
        told = answer.json()
        assert (answer.status_code, told["code"], told["failedStage"]) == (500, "BAD_REQUEST", "match")
        assert told["results"]["summary"]["choices"][0]["message"] == SUMMARY["choices"][0]["message"]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_part_that_fails_ends_it_and_stops_the_others(gateway: Start, replicas: int) -> None:
    async with cast(gateway, replicas) as stage:
        async with stage.talk.events("/api/tasks", json=ask(pages=3, stream=True)) as reader:
            tasks = [await stage.eyes.take() for _ in range(3)]
            await stage.eyes.answer(tasks[0], {"content": "one"})
            await stage.eyes.answer(tasks[1], None, **BROKEN)
            end = (await reader.rest())[-1]
        assert (end.event, end.data["failedStage"], end.data["error"]) == ("error", "ocr", "it broke")
        assert (await stage.eyes.skip_to("cancel"))["taskId"] == tasks[2]["taskId"]
        await stage.eyes.answer(tasks[2], {"content": "late"})
        told = await stage.talk.poll(end.data["taskId"])
        assert statuses(told) == ["failed", "skipped", "skipped"]
        assert told["results"] == {"ocr": [{"content": "one"}]}


async def test_the_next_stage_that_cannot_be_made_ends_it(gateway: Start) -> None:
    chain = {
        "stages": [
            {"name": "a", "model": "sums", "messages": [{"role": "user", "content": "JSON?"}]},
            {
                "name": "b",
                "model": "chat",
                "messages": [{"role": "user", "content": "{{ stages.a.json.x }}"}],
            },
        ]
    }
    async with (
        cast(gateway, chains={"own": chain}) as stage,
        stage.talk.events("/api/tasks", json={"chain": "own", "stream": True}) as reader,
    ):
        await stage.sums.answer(await stage.sums.take(), {"content": "no"})
        seen = await reader.rest()
        assert [(f.data.get("name"), f.data.get("status")) for f in seen if f.event == "stage"] == [
            ("a", "completed"),
            ("b", "failed"),
        ]
        end = seen[-1].data
        assert (end["code"], end["failedStage"], end["category"]) == ("STAGE_INPUT_FAILED", "b", "bad_output")
        assert "stages.a.json is no valid JSON" in end["error"]
        told = await stage.talk.poll(end["taskId"])
        assert (statuses(told), told["results"]) == (["completed", "failed"], {"a": {"content": "no"}})


async def test_operators_see_where_a_chain_stands_and_since_when(gateway: Start) -> None:
    async with cast(gateway) as stage:
        task_id = await stage.submit(**ask(pages=2))
        await stage.read(2)
        await stage.sums.take()
        told = (await stage.talk.http.get(f"/api/admin/tasks/{task_id}")).json()
        assert (told["chainName"], told["stage"], told["chain"]) == (ask()["chain"], "summary", None)
        assert told["enqueuedAt"] < told["stageAt"] <= told["now"]
        assert [(one["name"], one["status"], one["model"]) for one in told["stages"]] == [
            ("ocr", "completed", "eyes"),
            ("summary", "executing", "sums"),
            ("match", "waiting", "chat"),
        ]
        part = (await stage.talk.http.get(f"/api/admin/tasks/{task_id}.0.01")).json()
        assert (part["stage"], part["part"], part["chain"]) == ("ocr", 1, task_id)
        assert (part["stageAt"], "stages" in part) == (part["enqueuedAt"], False)
        await stage.talk.http.post(f"/api/task/{task_id}/cancel")
        told = (await stage.talk.http.get(f"/api/admin/tasks/{task_id}")).json()
        assert [one["status"] for one in told["stages"]] == ["completed", "cancelled", "skipped"]


async def test_a_stage_is_tried_again_by_itself(gateway: Start) -> None:
    async with cast(gateway) as stage:
        task_id = await stage.submit(**ask(pages=2))
        tasks = [await stage.eyes.take() for _ in range(2)]
        await stage.eyes.answer(tasks[0], None, **BUSY)
        await stage.eyes.answer(tasks[1], {"content": "two"})
        again = await stage.eyes.take()
        assert again["taskId"] == tasks[0]["taskId"]
        await stage.eyes.answer(again, {"content": "one "})
        task = await stage.sums.take()
        assert task["payload"]["messages"][0]["content"] == "Sum up: A cook. one \n\ntwo"
        await stage.sums.answer(task, SUMMARY)
        task = await stage.chat.take()
        await stage.chat.answer(task, None, **BUSY)
        again = await stage.chat.take()
        assert again["payload"] == task["payload"]
        await stage.chat.answer(again, {"content": "A match"})
        end = await stage.talk.reaches(task_id, "completed")
        assert end["result"] == {"content": "A match"}


async def test_a_stage_begins_anew_and_those_before_it_do_not(gateway: Start) -> None:
    async with cast(gateway) as stage:
        async with stage.talk.events("/api/tasks", json=ask(stream=True)) as reader:
            await stage.sum_up()
            await stage.chat.answer(await stage.chat.take(), None, **BUSY)
            await stage.match("A match")
            seen = await reader.rest()
        begun = [(f.data["stage"], f.data["attempt"]) for f in seen if f.event == "start"]
        assert begun == [("summary", 1), ("match", 2), ("match", 3)]
        assert seen[-1].data["result"]["content"] == "A match"


async def test_a_stage_falls_back_by_its_own_model(gateway: Start) -> None:
    async with cast(gateway) as stage, stage.at.worker2(["spare"]) as spare:
        task_id = await stage.submit(**ASK)
        await stage.sums.answer(await stage.sums.take(), None, **BUSY)
        task = await spare.take()
        assert task["taskId"] == task_id
        await spare.answer(task, SUMMARY)
        await stage.match("A match")
        assert (await stage.talk.reaches(task_id, "completed"))["result"]["content"] == "A match"


async def test_an_answer_that_does_not_match_its_schema_fails_its_stage(gateway: Start) -> None:
    async with cast(gateway) as stage:
        task_id = await stage.submit(**ASK)
        await stage.sums.answer(await stage.sums.take(), {"content": '{"other":1}'})
        told = await stage.talk.reaches(task_id, "failed")
        assert (told["code"], told["failedStage"]) == ("JSON_PARSE_FAILED", "summary")


async def cancel(talk: Talk, task_id: str) -> None:
    answer = await talk.http.post(f"/api/task/{task_id}/cancel")
    assert answer.json() == {"taskId": task_id, "status": "cancelled"}


async def begin(stage: Cast, until_stage: str) -> tuple[str, list[dict[str, Any]]]:
    """A chain that runs this stage now; its worker's tasks."""
    task_id = await stage.submit(**ask(pages=2))
    if until_stage == "ocr":
        return task_id, [await stage.eyes.take() for _ in range(2)]
    await stage.read(2)
    if until_stage == "summary":
        return task_id, [await stage.sums.take()]
    await stage.sum_up()
    return task_id, [await stage.chat.take()]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("at", ["ocr", "summary", "match"])
async def test_it_is_cancelled_in_any_stage(gateway: Start, replicas: int, at: str) -> None:
    async with cast(gateway, replicas) as stage:
        task_id, tasks = await begin(stage, at)
        worker = {"ocr": stage.eyes, "summary": stage.sums, "match": stage.chat}[at]
        await cancel(stage.talk, task_id)
        stopped = {(await worker.skip_to("cancel"))["taskId"] for _ in tasks}
        assert stopped == {task["taskId"] for task in tasks}
        for task in tasks:
            await worker.answer(task, {"content": "late"})
        told = await stage.talk.poll(task_id)
        assert (told["status"], told["stageStatus"]) == ("cancelled", "CANCELLED")
        assert statuses(told)[["ocr", "summary", "match"].index(at)] == "cancelled"
        assert (list(told["results"]) or [""])[-1] == {"ocr": "", "summary": "ocr", "match": "summary"}[at]
        # their slots are free again
        await stage.submit(**ASK)
        await stage.sum_up()
        await stage.match("x")


async def test_its_time_is_that_of_all_stages(gateway: Start) -> None:
    async with cast(gateway, min_task_timeout_ms=100) as stage:
        call = stage.talk.later(
            stage.talk.http.post("/api/tasks", json=ask(**{"async": False}, timeout=2_500))
        )
        await stage.sum_up()
        task = await stage.chat.take()
        answer = await call
        assert answer.json()["code"] == "TOTAL_TIMEOUT"
        assert answer.json()["failedStage"] == "match"
        await stage.chat.answer(task, {})


PRICES = [
    PriceSettings.model_validate({"model": model, "input": 0, "output": 0, "request": 1})
    for model in ("sums", "chat")
]
KEYS = [key("ops", scopes=["admin"]), key("app", tier="paid", quota=KeyQuota())]


async def test_stages_are_paid_and_one_that_cannot_be_is_refused(redis_url: str, tmp_path: Path) -> None:
    each = {"name": "b", "each": "{{ stages.a.json }}", "model": "chat"}
    own = {
        "stages": [
            {"name": "a", "model": "sums", "messages": [{"role": "user", "content": "a list"}]},
            each | {"messages": [{"role": "user", "content": "{{ item }}"}]},
        ]
    }
    settings = {**SETTINGS, "chains": {**SETTINGS["chains"], "own": own}, "prices": PRICES, "keys": KEYS}
    async with talking(redis_url, tmp_path, **settings) as talk, talk.client(secret("ops")) as admin:
        talk.http.headers["Authorization"] = f"Bearer {secret('app')}"
        async with talk.worker2(["sums"]) as sums, talk.worker2(["chat"]) as chat:
            refused = await talk.http.post("/api/tasks", json=ASK)
            assert (refused.status_code, refused.json()["code"]) == (429, "INSUFFICIENT_QUOTA")
            assert refused.json()["needed"] == 2, "both stages"
            granted = await admin.post("/api/admin/balances/grants", json={"key": "app", "credits": 5})
            assert granted.status_code in (200, 201), granted.text
            answer = await talk.http.post("/api/tasks", json=ASK)
            await sums.answer(await sums.take(), SUMMARY)
            await chat.answer(await chat.take(), {"content": "x"})
            await talk.reaches(answer.json()["taskId"], "completed")

            async def paid() -> bool:
                row = (await admin.get("/api/admin/balances", params={"key": "app"})).json()["rows"][0]
                return bool(row["balance"] == 3 and row["reserved"] == 0)

            await until(paid)
            answer = await talk.http.post("/api/tasks", json={"chain": "own"})
            await sums.answer(await sums.take(), {"content": "[1,2,3]"})
            told = await talk.reaches(answer.json()["taskId"], "failed")
            assert (told["code"], told["failedStage"]) == ("INSUFFICIENT_QUOTA", "b")
            assert told["results"] == {"a": {"content": "[1,2,3]"}}

            async def paid_for_one() -> bool:
                row = (await admin.get("/api/admin/balances", params={"key": "app"})).json()["rows"][0]
                return bool(row["balance"] == 2 and row["reserved"] == 0)

            await until(paid_for_one)
