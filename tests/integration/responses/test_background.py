"""Responses in the background: an id at once, polled, streamed and resumed on any replica at any time, cancelled, deleted."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.serving import until
from tests.support.talk import Talk, talking

from .asking import KEYS, Asker, answer_with, good, refused, text_of, told_events

pytestmark = pytest.mark.anyio
PIECES = ("one ", "two ", "three ", "four")
ACCOUNTS = [key("acme"), key("other"), key("ops", scopes=["admin"])]


@pytest.fixture
async def here(redis_url: str, tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    async with talking(redis_url, tmp_path / "here", keys=ACCOUNTS, database_url=database_url) as talk:
        yield talk


@pytest.fixture
async def there(here: Talk, redis_url: str, tmp_path: Path, database_url: str) -> AsyncIterator[Talk]:
    """Another gateway, which came later."""
    async with talking(redis_url, tmp_path / "there", keys=ACCOUNTS, database_url=database_url) as talk:
        yield talk


@pytest.fixture
async def acme(here: Talk) -> AsyncIterator[Asker]:
    async with here.client(secret("acme")) as http:
        yield Asker(http, here)


@pytest.fixture
async def elsewhere(there: Talk) -> AsyncIterator[Asker]:
    """The same caller at the other gateway."""
    async with there.client(secret("acme")) as http:
        yield Asker(http, there)


async def test_it_is_polled_from_its_queue_to_its_end_and_when_redis_has_forgotten_it(
    here: Talk, acme: Asker, elsewhere: Asker
) -> None:
    async with here.worker2(["m"]) as worker:
        busy = await acme.ask(background=True)
        task = await worker.take()
        asked = await acme.ask("and this?", background=True, metadata={"of": "mine"})
        assert (asked["status"], asked["output"], asked["background"]) == ("queued", [], True)
        assert asked["id"].startswith("resp_")
        assert asked["metadata"] == {"of": "mine"}
        for asker in (acme, elsewhere):
            told = await asker.get(asked["id"])
            assert (told["status"], told["fairlane"]["queuePosition"]) == ("queued", 1)
        assert (await elsewhere.get(busy["id"]))["status"] == "in_progress"
        await worker.answer(task, result={"content": "that"})
        task = await worker.take()
        for asker in (acme, elsewhere):
            told = await asker.get(asked["id"])
            assert (told["status"], told["output"]) == ("in_progress", [])
            assert "fairlane" not in told
        for seq, piece in enumerate(PIECES, 1):
            await worker.chunk(task, piece, seq)
        await worker.answer(task, result=None, usage={"prompt_tokens": 3, "completion_tokens": 2})
        done = await acme.reaches(asked["id"], "completed")
        assert text_of(done) == "".join(PIECES)
        assert done["created_at"] == asked["created_at"]
        assert done["usage"]["output_tokens"] == 2
        before = (await acme.call("GET", asked["id"])).content
        await acme.forget(asked["id"])
        for asker in (acme, elsewhere):
            after = await asker.call("GET", asked["id"])
            assert after.content == before
            assert after.headers["x-task-id"] == asked["id"].removeprefix("resp_")


async def test_cut_after_every_event_and_resumed_at_the_other_gateway_nothing_is_missing(
    here: Talk, acme: Asker, elsewhere: Asker
) -> None:
    """As it comes: a reader has the first event and goes, the next one has the second and goes, and so on."""
    async with here.worker2(["m"]) as worker:
        asked = await acme.ask(background=True)
        seen: list[dict[str, Any]] = []
        turns = [acme, elsewhere]

        async def read_one() -> None:
            asker = turns[len(seen) % 2]
            query = {"stream": "true"} | ({"starting_after": seen[-1]["sequence_number"]} if seen else {})
            held = b""
            async with asker.http.stream("GET", f"/v1/responses/{asked['id']}", params=query) as answer:
                async for piece in answer.aiter_bytes():
                    held += piece
                    if told := told_events(held):
                        seen.append(told[0])
                        return

        await read_one()
        await read_one()
        assert [event["type"] for event in seen] == ["response.created", "response.queued"]
        task = await worker.take()
        await read_one()
        for seq, piece in enumerate(PIECES, 1):
            await worker.chunk(task, piece, seq)
            number = len(seen)
            while len(seen) < number + (3 if seq == 1 else 1):
                await read_one()
        await worker.answer(task, result=None, usage={"prompt_tokens": 3, "completion_tokens": 2})
        while seen[-1]["type"] != "response.completed":
            await read_one()
        uncut = await acme.stream(asked["id"])
        assert seen == uncut
        assert [event["sequence_number"] for event in seen] == list(range(len(seen)))


async def test_resumed_behind_any_event_in_redis_and_in_sql_the_rest_is_the_same(
    here: Talk, acme: Asker, elsewhere: Asker
) -> None:
    async with here.worker2(["m"]) as worker:
        answer = here.later(acme.post("stream", background=True, stream=True))
        await answer_with(worker, *PIECES)
        uncut = told_events((await answer).content)
        assert uncut[-1]["type"] == "response.completed"
        response_id = uncut[0]["response"]["id"]
        assert text_of(uncut[-1]["response"]) == "".join(PIECES)

        async def check() -> None:
            assert await acme.stream(response_id) == await elsewhere.stream(response_id) == uncut
            for at, event in enumerate(uncut):
                asker = (acme, elsewhere)[at % 2]
                assert await asker.stream(response_id, event["sequence_number"]) == uncut[at + 1 :]
            assert await acme.stream(response_id, 10_000) == []

        await check()
        await acme.forget(response_id)
        await check()


@pytest.mark.parametrize(
    ("ends", "status", "last"),
    [
        ({"error": "no such luck"}, "failed", "response.failed"),
        ({"result": {"content": "cut", "finishReason": "length"}}, "incomplete", "response.incomplete"),
    ],
)
async def test_other_ends_are_told_alike_before_and_after_redis_has_forgotten_them(
    here: Talk, acme: Asker, ends: dict[str, Any], status: str, last: str
) -> None:
    async with here.worker2(["m"]) as worker:
        asked = await acme.ask(background=True)
        await answer_with(worker, "cut", **ends)
        told, events = await acme.reaches(asked["id"], status), await acme.stream(asked["id"])
        assert events[-1]["type"] == last
        await acme.forget(asked["id"])
        assert await acme.get(asked["id"]) == told
        assert await acme.stream(asked["id"]) == events


async def test_cancelling_ends_it_wherever_it_is_and_is_fine_again(
    here: Talk, acme: Asker, elsewhere: Asker
) -> None:
    async with here.worker2(["m"]) as worker:
        running = await acme.ask(background=True)
        task = await worker.take()
        waiting = await acme.ask(background=True)
        for asked in (waiting, running):
            told = good(await elsewhere.call("POST", asked["id"], "/cancel"))
            assert (told["id"], told["status"]) == (asked["id"], "cancelled")
            again = good(await acme.call("POST", asked["id"], "/cancel"))
            assert again == told
            assert (await acme.stream(asked["id"]))[-1]["response"]["status"] == "cancelled"
        assert (await worker.expect("cancel"))["taskId"] == task["taskId"]
        await worker.answer(task, error="cancelled")
        await acme.forget(running["id"])
        assert (await acme.get(running["id"]))["status"] == "cancelled"
        assert (await acme.get(running["id"]))["error"]["error_code"] == "cancelled"


async def test_one_that_is_waited_for_is_not_cancelled_by_call(here: Talk, acme: Asker) -> None:
    async with here.worker2(["m"]) as worker:
        call = here.later(acme.ask())
        await answer_with(worker, "yes")
        sentence = refused(await acme.call("POST", (await call)["id"], "/cancel"), 400)
        assert "background" in sentence


async def test_what_is_deleted_is_nowhere(here: Talk, acme: Asker, elsewhere: Asker) -> None:
    async with here.worker2(["m"]) as worker:
        ended = await acme.ask("a secret", background=True)
        await answer_with(worker, "a secret")
        await acme.reaches(ended["id"], "completed")
        in_sql = await acme.ask("a secret", background=True)
        await answer_with(worker, "a secret")
        await acme.reaches(in_sql["id"], "completed")
        await acme.forget(in_sql["id"])
        running = await acme.ask(background=True)
        task = await worker.take()
        waiting = await acme.ask(background=True)
        for asked in (ended, in_sql, running, waiting):
            told = good(await elsewhere.call("DELETE", asked["id"]))
            assert told == {"id": asked["id"], "object": "response", "deleted": True}
            for call in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                refused(await acme.call(call[0], asked["id"], call[1]), 404, "RESPONSE_NOT_FOUND")
        assert (await worker.expect("cancel"))["taskId"] == task["taskId"]
        await worker.answer(task, error="cancelled")
        link = here.served.gateway.link
        for asked in (ended, in_sql, running, waiting):
            name = asked["id"].removeprefix("resp_")

            async def gone(name: str = name) -> bool:
                return not await link.command("EXISTS", KEYS("task", id=name), KEYS("log", id=name))

            await until(gone, "Redis to have nothing of it")
        async with here.served.gateway.database.reading() as connection:
            for table in ("responses", "response_logs", "archive"):
                rows = await connection.exec_driver_sql(f"SELECT count(*) FROM {table}")
                assert rows.scalar_one() == 0


async def test_nobody_sees_anothers(here: Talk, acme: Asker) -> None:
    async with (
        here.worker2(["m"]) as worker,
        here.client(secret("other")) as other,
        here.client(secret("ops")) as ops,
    ):
        asked = await acme.ask(background=True)
        await answer_with(worker, "mine")
        told = await acme.reaches(asked["id"], "completed")
        stranger = Asker(other, here)

        async def strangers() -> None:
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                refused(await stranger.call(method, asked["id"], path), 404, "RESPONSE_NOT_FOUND")
            refused(await stranger.call("GET", asked["id"], stream="true"), 404, "RESPONSE_NOT_FOUND")
            going_on = await stranger.post(previous_response_id=asked["id"])
            refused(going_on, 400, "previous_response_not_found", "previous_response_id")

        await strangers()
        await acme.forget(asked["id"])
        await strangers()
        assert await Asker(ops, here).get(asked["id"]) == told
        going_on = await Asker(ops, here).post(previous_response_id=asked["id"])
        refused(going_on, 400, "previous_response_not_found")
        good(await Asker(ops, here).call("DELETE", asked["id"]))
        refused(await acme.call("GET", asked["id"]), 404)
        [act, *_] = good(await ops.get("/api/admin/audit"))["entries"]
        assert (act["actor"], act["action"], act["target"]) == ("ops", "delete", f"response {asked['id']}")


async def test_an_unknown_id_and_queries_that_make_no_sense_are_refused(acme: Asker) -> None:
    unknown = "resp_01999999-0000-8000-8000-000000000000"
    for response_id in ("resp_x", "x", "resp_", unknown, "resp_" + "9" * 500):
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            refused(await acme.call(method, response_id, path), 404, "RESPONSE_NOT_FOUND")
    queries: list[tuple[dict[str, str], str]] = [
        ({"stream": "maybe"}, "stream"),
        ({"stream": "true", "starting_after": "-1"}, "starting_after"),
        ({"stream": "true", "starting_after": "x"}, "starting_after"),
        ({"starting_after": "1"}, "starting_after"),
    ]
    for query, param in queries:
        refused(await acme.call("GET", "resp_x", **query), 400, param=param)
