"""Reading a task's events again, from anywhere."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.rawworkers import key
from tests.support.streams import Frame, frames_of
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
TEXTS = ["a", "b", "c", "d"]


async def ended_task(talk: Talk) -> tuple[str, list[Frame]]:
    """A completed task with a few chunks, and its whole log."""
    async with (
        talk.worker() as worker,
        talk.events("/api/openai", json={"stream": True, "metadata": {"x": 1}}) as reader,
    ):
        task = await worker.take()
        events: list[Frame] = []
        for text in TEXTS:
            await worker.chunk(task, text)
            events += await reader.until("chunk")
        await worker.answer(task, None)
        events += await reader.rest()
    return task["taskId"], [event for event in events if event.id]


async def test_replay_from_every_event_is_the_rest_of_the_stream(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        task_id, events = await ended_task(talk)
        assert len(events) == 6
        for seen, event in enumerate(events[:-1], 1):
            by_header = {"Last-Event-ID": str(event.id)}
            for url, headers in (
                (f"/api/task/{task_id}/events", by_header),
                (f"/api/task/{task_id}/events?after={event.id}", {}),
                (f"/api/sse-stream?taskId={task_id}", by_header),
                (f"/api/sse-stream?taskId={task_id}&after={event.id}", {}),
                (f"/api/task/{task_id}/events?after={events[0].id}", by_header),
            ):
                replayed = frames_of((await talk.http.get(url, headers=headers)).content)
                assert replayed == events[seen:]


async def test_after_the_terminal_event_the_answer_is_204(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        task_id, events = await ended_task(talk)
        for url, headers in (
            (f"/api/task/{task_id}/events", {"Last-Event-ID": str(events[-1].id)}),
            (f"/api/task/{task_id}/events?after={events[-1].id}", {}),
            (f"/api/task/{task_id}/events?fromLatest=1", {"Last-Event-ID": str(events[-1].id)}),
        ):
            answer = await talk.http.get(url, headers=headers)
            assert (answer.status_code, answer.content) == (204, b"")


async def test_from_latest_on_an_ended_task_is_its_terminal_event(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        task_id, events = await ended_task(talk)
        answer = await talk.http.get(f"/api/task/{task_id}/events?fromLatest=1")
        assert frames_of(answer.content) == [events[-1]]


async def test_from_latest_on_a_running_task_is_what_follows(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        task_id = await talk.submit()
        task = await worker.take()
        async with talk.events(f"/api/task/{task_id}/events") as whole:
            await worker.chunk(task, "old")
            await whole.until("chunk")
        async with talk.events(f"/api/task/{task_id}/events?fromLatest=1") as reader:
            await worker.chunk(task, "new")
            assert (await reader.next()).data["delta"] == "new"
            await worker.answer(task, None)
            assert (await reader.next()).data["result"]["content"] == "oldnew"


@pytest.mark.parametrize(
    ("cursor", "reason"), [("1-999", "ahead"), ("9-1", "lost"), ("9007199254740991-1000000000000", "ahead")]
)
async def test_a_cursor_that_is_not_in_the_log_is_told_gap_and_restart_and_gets_everything(
    shared_gateway: Start, cursor: str, reason: str
) -> None:
    async with shared_gateway() as talk:
        task_id, events = await ended_task(talk)
        answer = await talk.http.get(f"/api/task/{task_id}/events", headers={"Last-Event-ID": cursor})
        gap, restart, *rest = frames_of(answer.content)
        assert (gap.id, gap.event) == (None, "gap")
        assert (gap.data["requested"], gap.data["reason"]) == (cursor, reason)
        assert (restart.id, restart.event) == ("", "restart")
        assert rest == events


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "1",
        "1-",
        "-1",
        "1-1-1",
        "1-x",
        "1 - 1",
        "１-１",
        "1" * 10_000,
        "9007199254740992-1",
        "0x1-1",
        "1.0-1",
    ],
)
async def test_a_cursor_that_is_none_is_answered_with_the_whole_log(
    shared_gateway: Start, cursor: str
) -> None:
    """It may be an id of the release after this one, and a browser's EventSource gives up for good on a 400."""
    async with shared_gateway() as talk:
        task_id, events = await ended_task(talk)
        url = f"/api/task/{task_id}/events"
        by_header = await talk.http.get(url, headers={b"Last-Event-ID": cursor.encode()})
        by_query = await talk.http.get(url, params={"after": cursor})
        for answer in (by_header, by_query):
            gap, restart, *rest = frames_of(answer.content)
            assert (gap.event, gap.data["requested"], gap.data["reason"]) == ("gap", "", "lost")
            assert (restart.event, restart.id) == ("restart", "")
            assert rest == events


async def test_an_empty_last_event_id_reads_from_the_start(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        task_id, events = await ended_task(talk)
        answer = await talk.http.get(f"/api/task/{task_id}/events", headers={"Last-Event-ID": ""})
        assert frames_of(answer.content) == events


async def test_events_of_a_queued_task_begin_with_its_position(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.submit()
        running = await worker.take()
        task_id = await talk.submit()
        async with talk.events(f"/api/task/{task_id}/events") as reader:
            queued = await reader.next()
            assert (queued.event, queued.id, queued.data["position"]) == ("queued", None, 1)
            await worker.answer(running, {})
            await worker.answer(await worker.take(), {"a": 1})
            assert [one.event for one in await reader.rest()] == ["start", "done"]


async def test_a_task_cancelled_in_the_queue_has_a_log_of_one_event(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        await talk.submit()
        await worker.take()
        task_id = await talk.submit()
        async with talk.events(f"/api/task/{task_id}/events") as reader:
            await reader.next()
            await talk.http.post(f"/api/task/{task_id}/cancel")
            [last] = await reader.rest()
        assert last.event == "cancelled"
        answer = await talk.http.get(f"/api/task/{task_id}/events", headers={"Last-Event-ID": str(last.id)})
        assert answer.status_code == 204


async def test_events_of_an_expired_or_unknown_task_are_a_404(gateway: Start) -> None:
    async with gateway(task_result_ttl_ms=1000) as talk:
        task_id, _ = await ended_task(talk)
        while (answer := await talk.http.get(f"/api/task/{task_id}/events")).status_code == 200:
            pass
        assert (answer.status_code, answer.json()["error"]) == (404, "Task not found or expired")
        for url in ("/api/task/nonsense/events", "/api/sse-stream?taskId=nonsense"):
            answer = await talk.http.get(url)
            assert (answer.status_code, answer.json()["error"]) == (404, "Task not found")


async def test_the_alias_without_a_task_id_says_what_is_missing(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:
        for url in ("/api/sse-stream", "/api/sse-stream?taskId="):
            answer = await talk.http.get(url)
            assert answer.status_code == 400
            assert "taskId" in answer.json()["error"]


async def test_a_log_longer_than_any_buffer_is_replayed_whole_and_from_anywhere(
    shared_gateway: Start,
) -> None:
    thoughts, words = ([f"{kind}{number} " for number in range(650)] for kind in "tw")
    async with shared_gateway() as talk, talk.worker2(["m"]) as worker:
        task_id = await talk.submit(model="m")
        task = await worker.take()
        for seq in range(26):  # two kinds in turn are never joined: 1,300 events
            some = slice(seq * 25, seq * 25 + 25)
            pairs = zip(thoughts[some], words[some], strict=True)
            deltas = [delta for one, two in pairs for delta in ({"reasoning": one}, {"content": two})]
            await worker.send("taskChunk", **key(task), seq=seq + 1, deltas=deltas)
        async with talk.events(f"/api/task/{task_id}/events") as early:
            await worker.answer(task, None)
            live = await early.rest()
        replayed = frames_of((await talk.http.get(f"/api/task/{task_id}/events")).content)
        assert len(replayed) == 1302
        assert live == replayed
        result = replayed[-1].data["result"]
        assert (result["reasoning"], result["content"]) == ("".join(thoughts), "".join(words))
        assert (await talk.poll(task_id))["result"] == result
        for seen in (1, 250, 500, 501, 1000, 1301):
            url = f"/api/task/{task_id}/events?after={replayed[seen - 1].id}"
            rest = frames_of((await talk.http.get(url)).content)
            assert rest == replayed[seen:]
