"""Who is told of kept responses: webhooks of their ends, operators of which there are, readers of a gateway that stops."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.integration.native.keys import key, secret
from tests.support.receivers import LOCAL, receiving
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.responses import log_archive
from fairlane.gateway.responses.log_archive import LogArchive

from .asking import Asker, answer_with, good, told_events

pytestmark = pytest.mark.anyio
ACCOUNTS = [
    key("ops", scopes=["admin"]),
    key("eyes", scopes=["viewer"]),
    key("acme"),
    key("site", delegating=True),
]


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    settings = {"keys": ACCOUNTS, "database_url": database_url, "webhooks": LOCAL}
    async with talking(redis_url, tmp_path, **settings) as talk:
        yield talk


async def test_each_end_in_the_background_is_told_once_and_others_are_not(talk: Talk, acme: Asker) -> None:
    async with receiving() as receiver, talk.worker2(["m"]) as worker:
        made = good(await acme.http.post("/api/webhooks", json={"url": receiver.url}), 201)
        waited = talk.later(acme.ask())
        await answer_with(worker, "sync")
        await waited
        wanted: dict[str, str] = {}
        for status, end in (
            ("completed", {}),
            ("failed", {"error": "no such luck"}),
            ("incomplete", {"result": {"content": "some", "finishReason": "length"}}),
        ):
            wanted[(await acme.ask(background=True))["id"]] = f"response.{status}"
            await answer_with(worker, "some", **end)
        cancelled = await acme.ask(background=True)
        task = await worker.take()
        good(await acme.call("POST", cancelled["id"], "/cancel"))
        await worker.answer(task, error="cancelled")
        wanted[cancelled["id"]] = "response.cancelled"
        await until(lambda: len(receiver.got) >= 4, "four requests")
        await acme.archived()
        told = {got.json["data"]["id"]: got.json["type"] for got in receiver.got}
        assert told == wanted
        assert len(receiver.got) == 4
        client = openai.OpenAI(api_key="x", webhook_secret=made["secret"])
        event = client.webhooks.unwrap(receiver.got[0].body, receiver.got[0].headers)
        assert event.type == wanted[event.data.id]  # type: ignore[union-attr]


async def test_a_reader_of_a_gateway_that_stops_resumes_behind_the_last_event_he_saw(
    redis_url: str, tmp_path: Path, talk: Talk, acme: Asker
) -> None:
    async with talk.worker2(["m"]) as worker:
        asked = await acme.ask(background=True)
        task = await worker.take()
        await worker.chunk(task, "one ", 1)
        async with (
            talking(
                redis_url,
                tmp_path / "other",
                keys=ACCOUNTS,
                database_url=talk.served.gateway.current.settings.database_url,
            ) as other,
            other.client(secret("acme")) as http,
        ):
            answer = other.later(
                http.get(f"/v1/responses/{asked['id']}", params={"stream": "true"}, timeout=30)
            )
            hub = other.served.gateway.hub
            await until(lambda: len(hub) > 0, "somebody to read there")
            await other.served.gateway.drain()
            seen = told_events((await answer).content)
        last = seen.pop()
        assert (last["type"], last["code"]) == ("error", "GATEWAY_STOPPING")
        await worker.chunk(task, "two", 2)
        await worker.answer(task, result=None)
        rest = await acme.stream(asked["id"], last["sequence_number"])
        assert seen + rest == await acme.stream(asked["id"])


async def test_one_whose_log_is_too_large_is_failed_once_redis_has_forgotten_it(
    talk: Talk, acme: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_archive, "MAX_OF_A_VALUE", 500)
    async with talk.worker2(["m"]) as worker:
        asked = await acme.ask(background=True)
        await answer_with(worker, "x" * 1000)
        await acme.reaches(asked["id"], "completed")
        await acme.forget(asked["id"])
        told = await acme.get(asked["id"])
        assert told["status"] == "failed"
        assert "lost" in told["error"]["message"]
        events = await acme.stream(asked["id"])
        assert [event["type"] for event in events] == [
            "response.created",
            "response.queued",
            "response.failed",
        ]


async def test_what_cannot_be_archived_holds_up_no_other(
    talk: Talk, acme: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad: set[str] = set()
    collect = LogArchive._collect

    async def sometimes(self: LogArchive, row: Any, ended: int) -> Any:
        if row.id in bad:
            raise RuntimeError("tests")
        return await collect(self, row, ended)

    monkeypatch.setattr(LogArchive, "_collect", sometimes)
    async with talk.worker2(["m"], slots=4) as worker:
        asked = await asyncio.gather(*(acme.ask(background=True) for _ in range(8)))
        bad.add(asked[3]["id"])
        for _ in asked:
            await worker.answer(await worker.take(), result={"content": "that"})

        async def kept() -> bool:
            async with talk.served.gateway.database.reading() as connection:
                rows = await connection.exec_driver_sql(
                    "SELECT count(*) FROM responses WHERE ended IS NOT NULL"
                )
                return bool(rows.scalar_one() == 7)

        await until(kept, "seven to be in SQL")
        assert (await acme.get(asked[3]["id"]))["status"] == "completed"
