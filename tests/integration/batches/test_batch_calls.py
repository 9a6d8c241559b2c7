"""What callers can do with batches, on a gateway in this process."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from tests.support.ledger import KEYS
from tests.support.serving import until

from .crew import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, Caller, Crew, file_of, line, stage

pytestmark = pytest.mark.anyio


@pytest.fixture
async def staged(redis_url: str, tmp_path: Path) -> AsyncIterator[tuple[Caller, Crew]]:
    async with stage(redis_url, tmp_path) as found:
        yield found


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES])
async def test_each_line_is_answered_once(staged: tuple[Caller, Crew], endpoint: str) -> None:
    caller, crew = staged
    lines = [line(number, endpoint) for number in range(60)]
    made = await caller.batch(lines, endpoint, metadata={"job": "a"})
    assert made["status"] == "validating"
    assert made["metadata"] == {"job": "a"}
    ended = await caller.reaches(made["id"])
    assert ended["status"] == "completed"
    assert ended["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
    assert ended["error_file_id"] is None
    records = await caller.records(ended["output_file_id"])
    assert [record["custom_id"] for record in records] == [one["custom_id"] for one in lines]
    assert {record["response"]["status_code"] for record in records} == {200}
    assert set(crew.runs.values()) == {1}
    assert len(crew.runs) == 60
    body = records[7]["response"]["body"]
    if endpoint == CHAT:
        assert body["choices"][0]["message"]["content"] == "SAY 7"
        assert body["usage"]["total_tokens"] == 5
    elif endpoint == COMPLETIONS:
        assert body["choices"][0]["text"] == "SAY 7"
    elif endpoint == RESPONSES:
        assert body["output"][0]["content"][0]["text"] == "SAY 7"
        assert (body["instructions"], body["store"], body["status"]) == ("Shout.", False, "completed")
    else:
        assert body["data"][0]["embedding"] == [0.5, -0.25]
    times = [ended[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed")]
    assert times == sorted(times)


async def test_lines_that_fail_stand_in_the_error_file(staged: tuple[Caller, Crew]) -> None:
    caller, _ = staged
    failing: dict[str, Any] = {"messages": [{"role": "user", "content": "fail"}]}
    lines = [
        line(1),
        line(2, **failing),
        line(3, n=1000),
        line(4, stream=True),
        line(5, model="nobody-has-it"),
        line(6, messages="text"),
        line(7),
    ]
    ended = await caller.reaches((await caller.batch(lines))["id"])
    assert ended["status"] == "completed"
    assert ended["request_counts"] == {"total": 7, "completed": 2, "failed": 5}
    records = await caller.records(ended["output_file_id"])
    assert [record["custom_id"] for record in records] == ["id-1", "id-7"]
    errors = {record["custom_id"]: record for record in await caller.records(ended["error_file_id"])}
    told = {name: record["response"]["status_code"] for name, record in errors.items()}
    assert told == {"id-2": 400, "id-3": 400, "id-4": 400, "id-5": 404, "id-6": 400}
    bodies = {name: record["response"]["body"]["error"] for name, record in errors.items()}
    assert bodies["id-2"]["code"] == "context_length_exceeded"
    assert bodies["id-3"]["param"] == "n"
    assert bodies["id-4"]["param"] == "stream"
    assert bodies["id-5"]["code"] == "model_not_found"
    assert {record["error"] for record in errors.values()} == {None}


async def test_who_has_no_room_for_more_files_begins_no_batch(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.gateway.files.files.MAX_FILES_PER_CALLER", 3)
    async with stage(redis_url, tmp_path) as (caller, crew):
        crew.go.clear()
        file_id = await caller.upload(file_of(line(number, model="patient") for number in range(3)))
        made = await caller.create(file_id)
        await caller.reaches(made["id"], "in_progress")
        await caller.http.post(f"/v1/batches/{made['id']}/cancel")
        ended = await caller.reaches(made["id"])
        assert ended["error_file_id"], "what was not carried out takes room, too, and has cost nothing"
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        answer = await caller.http.post("/v1/batches", json=body)
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "TOO_MANY_FILES"
        assert answer.headers["x-should-retry"] == "false"
        await caller.http.delete(f"/v1/files/{ended['error_file_id']}")
        assert (await caller.http.post("/v1/batches", json=body)).status_code == 200


async def test_what_responses_cannot_be_asked_in_a_batch(staged: tuple[Caller, Crew]) -> None:
    caller, _ = staged
    lines = [
        line(1, RESPONSES, background=True),
        line(2, RESPONSES, store=True),
        line(3, RESPONSES, previous_response_id="resp_1"),
        line(4, RESPONSES, tools=[{"type": "web_search"}]),
        line(5, RESPONSES, store=False),
    ]
    ended = await caller.reaches((await caller.batch(lines, RESPONSES))["id"])
    assert ended["request_counts"] == {"total": 5, "completed": 1, "failed": 4}
    errors = [record["response"]["body"]["error"] for record in await caller.records(ended["error_file_id"])]
    told = ["background", "store", "previous_response_id", "tools[0].type"]
    assert [error["param"] for error in errors] == told


async def test_a_bad_file_fails_with_its_lines_and_nothing_is_run(staged: tuple[Caller, Crew]) -> None:
    caller, crew = staged
    data = file_of([line(1), line(1), {"custom_id": "x"}]) + b"{\n" + file_of([line(2, EMBEDDINGS)])
    ended = await caller.reaches((await caller.create(await caller.upload(data)))["id"])
    assert ended["status"] == "failed"
    assert [(error["line"], error["code"]) for error in ended["errors"]["data"]] == [
        (2, "duplicate_custom_id"),
        (3, "missing_required_parameter"),
        (4, "invalid_json_line"),
        (5, "mismatched_endpoint"),
    ]
    assert (ended["output_file_id"], ended["error_file_id"]) == (None, None)
    assert not crew.runs


async def test_what_is_not_a_batch_is_refused_with_the_field(staged: tuple[Caller, Crew]) -> None:
    caller, _ = staged
    file_id = await caller.upload(file_of([line(1)]))
    other = await caller.upload(b"text", "user_data")
    good = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    for change, status, param in [
        ({"endpoint": "/v1/images/generations"}, 400, "endpoint"),
        ({"endpoint": None}, 400, "endpoint"),
        ({"completion_window": "1y"}, 400, "completion_window"),
        ({"completion_window": "8d"}, 400, "completion_window"),
        ({"completion_window": 24}, 400, "completion_window"),
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"input_file_id": other}, 400, "input_file_id"),
        ({"input_file_id": None}, 400, "input_file_id"),
        ({"metadata": {"a": 1}}, 400, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, 400, "metadata"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 5}},
            400,
            "output_expires_after.seconds",
        ),
        ({"outputs": 1}, 400, "outputs"),
    ]:
        answer = await caller.http.post("/v1/batches", json={**good, **change})
        assert answer.status_code == status, (change, answer.text)
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code", "docs_url"}
        if param:
            assert error["param"] == param
    for path in ("/v1/batches/batch_nothing", f"/v1/batches/batch_{'0' * 32}"):
        assert (await caller.http.get(path)).status_code == 404
        assert (await caller.http.post(f"{path}/cancel")).status_code == 404


async def test_batches_are_listed_by_page_the_newest_first(staged: tuple[Caller, Crew]) -> None:
    caller, _ = staged
    file_id = await caller.upload(file_of([line(1)]))
    ids = [(await caller.create(file_id))["id"] for _ in range(5)]
    first = (await caller.http.get("/v1/batches", params={"limit": 3})).json()
    assert [one["id"] for one in first["data"]] == ids[:1:-1]
    assert (first["has_more"], first["last_id"]) == (True, ids[2])
    second = (await caller.http.get("/v1/batches", params={"after": ids[2]})).json()
    assert [one["id"] for one in second["data"]] == [ids[1], ids[0]]
    assert second["has_more"] is False
    for batch_id in ids:
        assert (await caller.reaches(batch_id))["status"] == "completed"


async def test_a_cancelled_batch_keeps_what_was_answered_and_tells_what_was_not_run(
    redis_url: str, tmp_path: Path
) -> None:
    async with stage(redis_url, tmp_path, slots=4, batches={"window": 10}) as (caller, crew):
        crew.go.clear()
        lines = [line(number, model="echo" if number < 5 else "patient") for number in range(40)]
        made = await caller.batch(lines)
        shown = await caller.reaches(made["id"], "in_progress")
        while shown["request_counts"]["completed"] < 5:
            shown = await caller.show(made["id"])
        answer = (await caller.http.post(f"/v1/batches/{made['id']}/cancel")).json()
        assert answer["status"] == "cancelling"
        assert answer["cancelling_at"]
        ended = await caller.reaches(made["id"])
        assert ended["status"] == "cancelled"
        assert ended["request_counts"] == {"total": 40, "completed": 5, "failed": 0}
        records = await caller.records(ended["output_file_id"])
        assert {record["custom_id"] for record in records} == {f"id-{number}" for number in range(5)}
        errors = await caller.records(ended["error_file_id"])
        assert {record["custom_id"] for record in errors} == {f"id-{number}" for number in range(5, 40)}
        assert {record["error"]["code"] for record in errors} == {"batch_cancelled"}
        again = await caller.http.post(f"/v1/batches/{made['id']}/cancel")
        assert again.json()["status"] == "cancelled"
        assert len(crew.runs) <= 15
        store = redis.Redis.from_url(redis_url)

        def go_soon() -> bool:
            records = [store.hget(key, "run") for key in store.scan_iter(KEYS("task", id="*"))]
            ends = [msgspec.msgpack.decode(run).get("expires_at", 2**53) for run in records]
            return all(end <= time.time() * 1000 + 30_000 for end in ends)

        await until(go_soon, "what is known of its tasks to have half a minute at most")


async def test_a_batch_expires_with_its_window(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path, slots=4) as (caller, crew):
        crew.go.clear()
        lines = [line(number, model="echo" if number < 5 else "patient") for number in range(20)]
        made = await caller.batch(lines, completion_window="3s")
        ended = await caller.reaches(made["id"])
        assert ended["status"] == "expired"
        assert ended["request_counts"] == {"total": 20, "completed": 5, "failed": 0}
        errors = await caller.records(ended["error_file_id"])
        assert [record["custom_id"] for record in errors] == [f"id-{number}" for number in range(5, 20)]
        assert {record["error"]["code"] for record in errors} == {"batch_expired"}


async def test_a_full_queue_only_slows_the_feeding(redis_url: str, tmp_path: Path) -> None:
    queues = {"free_batch": {"tier": "free", "mode": "batch", "max_length": 3}}
    async with stage(redis_url, tmp_path, slots=1, queues=queues) as (caller, crew):
        ended = await caller.reaches((await caller.batch([line(n) for n in range(30)]))["id"])
        assert ended["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
        assert set(crew.runs.values()) == {1}


async def test_operators_see_and_cancel_batches(redis_url: str, tmp_path: Path) -> None:
    async with stage(redis_url, tmp_path) as (caller, crew):
        crew.go.clear()
        made = await caller.batch([line(1, model="patient")])
        await caller.reaches(made["id"], "in_progress")
        page = (await caller.http.get("/api/admin/batches", params={"status": "unended"})).json()
        assert page["next"] is None
        assert [(one["id"], one["status"], one["model"]) for one in page["batches"]] == [
            (made["id"], "in_progress", "patient")
        ]
        assert (await caller.http.get("/api/admin/batches", params={"status": "odd"})).status_code == 400
        await caller.http.post(f"/api/admin/tasks/cancel?batch={made['id']}")
        assert (await caller.reaches(made["id"]))["status"] == "cancelled"
        acts = (await caller.http.get("/api/admin/audit")).json()["entries"]
        assert [act["target"] for act in acts] == [f"batch {made['id']}"]
        assert json.dumps(acts).count("cancelling") == 1
