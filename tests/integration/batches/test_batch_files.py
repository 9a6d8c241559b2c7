"""Lines of batches that name files by their ids: read with the batch's owner; what is not there fails its line alone."""

from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.serving import until

from fairlane.gateway.batches import feeding, held
from fairlane.gateway.batches.leading import Leading
from fairlane.gateway.batches.led import AT_ONCE
from fairlane.gateway.files.storage import StorageError
from fairlane.gateway.tasks.submit import Submit
from fairlane.workers.sdk import Context, Task, Usage

from . import crew as module
from .crew import CHAT, RESPONSES, Caller, Crew, line, stage, waits

pytestmark = pytest.mark.anyio
NOTES = b"some notes"
DATA = f"data:text/plain;base64,{b64encode(NOTES).decode()}"


class Readers(Crew):
    """Workers that tell which files they got."""

    async def echo(self, task: Task, context: Context) -> AsyncIterator[Any]:
        content = task.payload["messages"][-1]["content"]
        if isinstance(content, str):
            async for part in super().echo(task, context):
                yield part
            return
        text, part = content
        self.runs[text["text"]] += 1
        await self.go.wait()
        yield part["file"]["file_data"]
        yield Usage(3, 2)


@pytest.fixture
async def staged(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Caller, Crew]]:
    monkeypatch.setattr(module, "Crew", Readers)
    async with stage(redis_url, tmp_path) as found:
        yield found


def reads(number: int, file_id: str, endpoint: str) -> dict[str, Any]:
    """A line that asks for a file to be read."""
    text = f"read {number}"
    if endpoint == CHAT:
        parts: list[Any] = [{"type": "text", "text": text}, {"type": "file", "file": {"file_id": file_id}}]
        said: dict[str, Any] = {"messages": [{"role": "user", "content": parts}]}
    else:
        parts = [{"type": "input_text", "text": text}, {"type": "input_file", "file_id": file_id}]
        said = {"input": [{"role": "user", "content": parts}]}
    return line(number, endpoint, **said)


def text_of(record: dict[str, Any]) -> str:
    body = record["response"]["body"]
    return str(
        body["choices"][0]["message"]["content"]
        if "choices" in body
        else body["output"][0]["content"][0]["text"]
    )


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
async def test_lines_get_the_data_and_one_without_its_file_fails_alone(
    staged: tuple[Caller, Crew], endpoint: str
) -> None:
    caller, _ = staged
    notes = await caller.upload(NOTES, "user_data")
    gone = await caller.upload(NOTES, "user_data")
    assert (await caller.http.delete(f"/v1/files/{gone}")).status_code == 200
    lines = [reads(1, notes, endpoint), reads(2, gone, endpoint), reads(3, notes, endpoint)]
    ended = await caller.reaches((await caller.batch(lines, endpoint))["id"])
    assert ended["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert [text_of(record) for record in await caller.records(ended["output_file_id"])] == [DATA, DATA]
    [failed] = await caller.records(ended["error_file_id"])
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("id-2", 400)
    error = failed["response"]["body"]["error"]
    place = "messages[0].content[1].file" if endpoint == CHAT else "input[0].content[1]"
    assert error["param"] == f"{place}.file_id"
    assert gone in error["message"]


async def test_while_the_storage_is_away_lines_wait(
    staged: tuple[Caller, Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, _ = staged
    notes = await caller.upload(NOTES, "user_data")
    storage = caller.served.gateway.tasks.files._storage
    read, asked = storage.read, []

    def away(name: str, *place: int) -> Any:
        if name != notes:
            return read(name, *place)
        asked.append(name)
        raise StorageError("away")

    monkeypatch.setattr(storage, "read", away)
    made = await caller.batch([reads(1, notes, CHAT), line(2)])
    await until(lambda: len(asked) >= 2, "it to be tried again")
    assert (await caller.show(made["id"]))["request_counts"]["failed"] == 0
    monkeypatch.setattr(storage, "read", read)
    ended = await caller.reaches(made["id"])
    assert ended["request_counts"] == {"total": 2, "completed": 2, "failed": 0}


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_line_whose_file_went_while_it_ran_is_known_to_the_next_leader(
    staged: tuple[Caller, Crew], cancelled: bool
) -> None:
    caller, crew = staged
    crew.go.clear()
    notes = await caller.upload(NOTES, "user_data")
    made = await caller.batch([reads(number, notes, RESPONSES) for number in range(3)], RESPONSES)
    await until(lambda: len(crew.runs) == 3, "all to run")
    assert (await caller.http.delete(f"/v1/files/{notes}")).status_code == 200
    await _another_leads(caller)
    if cancelled:
        assert (await caller.http.post(f"/v1/batches/{made['id']}/cancel")).status_code == 200
        ended = await caller.reaches(made["id"])
        assert ended["status"] == "cancelled"
    else:
        crew.go.set()
        ended = await caller.reaches(made["id"])
        assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        told = [text_of(record) for record in await caller.records(ended["output_file_id"])]
        assert told == [DATA] * 3
    assert set(crew.runs.values()) == {1}


async def _another_leads(caller: Caller) -> None:
    """Whoever leads goes in the middle of it, and comes back knowing nothing."""
    leading: Leading = caller.served.gateway.batches._hurry.__self__  # type: ignore[attr-defined]
    await leading._leave()
    leading.hurry()


def counted(caller: Caller, monkeypatch: pytest.MonkeyPatch, file_id: str) -> list[str]:
    """Each time that the bytes of a file are read."""
    storage = caller.served.gateway.tasks.files._storage
    read, times = storage.read, list[str]()

    def noted(name: str, *place: int) -> Any:
        times.extend([name] * (name == file_id))
        return read(name, *place)

    monkeypatch.setattr(storage, "read", noted)
    return times


async def test_files_are_not_read_for_lines_whose_model_cannot_be_had(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(redis_url, tmp_path, models={"echo": {}, "lonely": {}}) as (caller, _):
        notes = await caller.upload(NOTES, "user_data")
        times = counted(caller, monkeypatch, notes)
        lines = [reads(number, notes, CHAT) for number in range(50)]
        for one in lines:
            one["body"]["model"] = "lonely"
        made = await caller.batch(lines)

        async def still() -> bool:
            return bool((await caller.show(made["id"]))["fairlane"]["stillSince"])

        await until(still, "it to stand still")
        assert len(times) < 2 * AT_ONCE
        await caller.http.post(f"/v1/batches/{made['id']}/cancel")
        await caller.reaches(made["id"])


def dear(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, more than can be paid."""
    for one in lines:
        one["body"]["max_tokens"] = 100_000
    return lines


QUOTA: dict[str, Any] = {
    "keys": [key("app", quota={}), key("ops", admin=True)],
    "prices": [{"model": "*", "input": 1000, "output": 1000}],
}


async def granted(caller: Caller, credits: str) -> None:
    said = {"key": "app", "credits": credits, "id": f"of-{credits}"}
    answer = await caller.other(secret("ops")).http.post("/api/admin/quota/grants", json=said)
    assert answer.status_code == 201, answer.text


async def test_files_are_not_read_for_lines_while_nothing_of_them_can_be_paid(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Crew", Readers)
    monkeypatch.setattr(feeding, "MONEY_S", held.MOST_REST_S)
    monkeypatch.setattr(feeding, "UNPAID_IN_A_ROW", 1000)
    async with stage(redis_url, tmp_path, **QUOTA) as (caller, crew):
        await granted(caller, "0.1")
        app = caller.other(secret("app"))
        notes = await app.upload(NOTES, "user_data")
        times = counted(caller, monkeypatch, notes)
        lines = dear([reads(number, notes, CHAT) for number in range(50)])
        made = await app.batch([*lines, line("cheap", max_tokens=4)])
        await until(lambda: [*crew.runs] == ["say cheap"], "the line behind them that can be paid to run")
        assert len(times) <= AT_ONCE
        await waits(app, made["id"], "INSUFFICIENT_QUOTA")


async def test_lines_with_files_that_cannot_be_paid_are_tried_and_no_file_is_read(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Crew", Readers)
    monkeypatch.setattr(feeding, "MONEY_S", 0.05)
    monkeypatch.setattr(held, "LEAST_REST_S", 0.05)
    async with stage(redis_url, tmp_path, **QUOTA) as (caller, crew):
        app = caller.other(secret("app"))
        notes = await app.upload(NOTES, "user_data")
        seen = counted(caller, monkeypatch, notes)
        refused = Submit._refused

        def noted(submit: Submit, *args: Any) -> Any:
            seen.append("refused")
            return refused(submit, *args)

        monkeypatch.setattr(Submit, "_refused", noted)
        made = await app.batch([reads(number, notes, CHAT) for number in range(30)])
        await until(lambda: len(seen) >= 2 * AT_ONCE + 20, "lines to be tried again and again")
        assert set(seen) == {"refused"}, seen
        await granted(caller, "1000000")
        ended = await app.reaches(made["id"], deadline_s=30)
        assert ended["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
        assert set(crew.runs.values()) == {1}


async def test_files_are_not_read_for_lines_above_a_limit_of_their_key(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Crew", Readers)
    monkeypatch.setattr(held, "MOST_REST_S", 1.0)
    async with stage(redis_url, tmp_path, keys=[key("ops", admin=True)]) as (caller, _):
        ops = caller.other(secret("ops"))
        made_key = await ops.http.post(
            "/api/admin/keys", json={"id": "app", "limits": {"requests_per_day": 1}}
        )
        assert made_key.status_code == 201, made_key.text
        app = caller.other(made_key.json()["secret"])
        answer = await app.http.post(CHAT, json=line(0)["body"])
        assert answer.status_code == 200, answer.text
        notes = await app.upload(NOTES, "user_data")
        times = counted(caller, monkeypatch, notes)
        for endpoint in (CHAT, RESPONSES):
            made = await app.batch([reads(number, notes, endpoint) for number in range(3)], endpoint)

            await waits(app, made["id"], "RATE_LIMITED")
            assert times == []
        assert sum(caller.served.gateway.metrics.refused_tasks.values.values()) == 0
        answer = await ops.http.patch("/api/admin/keys/app", json={"limits": {"requests_per_day": 1000}})
        assert answer.status_code == 200, answer.text
        ended = await app.reaches(made["id"], deadline_s=30)
        assert ended["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert [text_of(record) for record in await app.records(ended["output_file_id"])] == [DATA] * 3


async def test_who_takes_a_batch_over_reads_no_files_of_lines_in_work(
    staged: tuple[Caller, Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, crew = staged
    notes = await caller.upload(NOTES, "user_data")
    times = counted(caller, monkeypatch, notes)
    crew.go.clear()
    made = await caller.batch([reads(number, notes, CHAT) for number in range(6)])
    await until(lambda: sum(crew.runs.values()) == 6, "lines to run")
    assert len(times) == 6
    leading = next(part for part in caller.served.gateway._parts if isinstance(part, Leading))
    leading._tasks[made["id"]].cancel()

    def found_again() -> bool:
        run = leading._runs.get(made["id"])
        return run is not None and run.batch.epoch == 2 and run._work is not None and len(run._work) == 6

    await until(found_again, "the next one to find its lines")
    crew.go.set()
    ended = await caller.reaches(made["id"])
    assert ended["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    assert len(times) == 6
    assert set(crew.runs.values()) == {1}
