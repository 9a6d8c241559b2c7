"""Every row of "Misbehaviour" in PROTOCOL.md. Beside each misbehaving worker another one's stream must stay correct."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
import websockets
from tests.support.rawworkers import (
    NOBODY,
    Callers,
    RawWorker,
    after,
    bystander,
    key,
    tune,
    until_workers,
    worker_v1,
    worker_v2,
)
from tests.support.serving import Served, until

pytestmark = pytest.mark.anyio


async def still_works(worker: RawWorker, callers: Callers) -> None:
    """The connection is up, and a task runs on it."""
    answer = callers.ask()
    task = await worker.skip_to("task")
    await worker.answer(task, "works", lastSeq=0)
    assert await answer.ok() == "works"
    await worker.expect("resultAck", status="accepted")


# ---- unknown task, stale attempt, chunk after the result, second result ----------


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "taskAck"},
        {"type": "taskReject", "reason": "capacity"},
        {"type": "taskChunk", "seq": 1, "deltas": [{"content": "x"}]},
        {"type": "taskProgress", "pct": 1},
    ],
    ids=lambda frame: frame["type"],
)
@pytest.mark.shared
async def test_a_message_about_an_unknown_task_is_an_error_that_is_not_fatal(
    served: Served, callers: Callers, frame: dict[str, Any]
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        await worker.text(json.dumps({"taskId": NOBODY, "attempt": 1, **frame}))
        await worker.expect("error", code="UNKNOWN_TASK", taskId=NOBODY)
        await still_works(worker, callers)


@pytest.mark.shared
async def test_a_result_of_an_unknown_task_is_acknowledged_as_unknown(
    served: Served, callers: Callers
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        await worker.answer({"taskId": NOBODY, "attempt": 1}, 1, lastSeq=0)
        await worker.expect("resultAck", status="unknown", taskId=NOBODY)
        await still_works(worker, callers)


@pytest.mark.shared
async def test_messages_with_a_stale_attempt_change_nothing(served: Served, callers: Callers) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        watch = await callers.watch()
        first = await worker.expect("task")
        await worker.send("taskReject", **key(first), reason="capacity", retryAfterMs=1)
        second = await worker.expect("task", attempt=after(first))
        await worker.chunk(second, "new")
        await watch.until_text("new")
        await worker.chunk(first, "old")
        await worker.answer(first, "old", lastSeq=1)
        await worker.expect("resultAck", **key(first), status="stale")
        await worker.answer(second, None, lastSeq=1)
        await worker.expect("resultAck", **key(second), status="accepted")
        assert (await watch.until_event("done"))["taskId"] == first["taskId"]
        assert watch.text == "new"


@pytest.mark.shared
async def test_an_attempt_that_was_never_given_is_stale(served: Served, callers: Callers) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.answer({**task, "attempt": 7}, "forged", lastSeq=0)
        await worker.expect("resultAck", status="stale", attempt=7)
        await worker.chunk({**task, "attempt": 7}, "forged")
        await worker.expect("error", code="UNKNOWN_TASK")
        await worker.answer(task, "true", lastSeq=0)
        assert await answer.ok() == "true"


@pytest.mark.shared
async def test_a_task_of_another_worker_cannot_be_touched(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, "m", instance="a") as owner, worker_v2(served.ws, "n") as thief:
        watch = await callers.watch()
        task = await owner.expect("task")
        await owner.chunk(task, "mine")
        await thief.chunk(task, "stolen", 2)
        await thief.expect("error", code="UNKNOWN_TASK")
        await thief.answer(task, "stolen", lastSeq=2)
        await thief.expect("resultAck", status="unknown")
        await thief.send("taskReject", **key(task), reason="badPayload")
        await thief.expect("error", code="UNKNOWN_TASK")
        await owner.answer(task, None, lastSeq=1)
        done = await watch.until_event("done")
        assert (watch.text, done["result"]["content"]) == ("mine", "mine")


@pytest.mark.shared
async def test_chunks_after_the_result_and_a_second_result_change_nothing(
    served: Served, callers: Callers
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.chunk(task, "all")
        await worker.answer(task, None, lastSeq=1)
        await worker.chunk(task, "more", 2)
        await worker.answer(task, "second", lastSeq=2)
        kinds = sorted([(await worker.recv())["type"] for _ in range(3)])
        assert kinds == ["error", "resultAck", "resultAck"]
        acks = sorted(f["status"] for f in worker.seen if f["type"] == "resultAck")
        assert acks == ["accepted", "duplicate"]
        done = await watch.until_event("done")
        assert (watch.text, done["result"]["content"]) == ("all", "all")
        assert (await callers.status(task["taskId"]))["result"]["content"] == "all"
        await still_works(worker, callers)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.shared
async def test_more_than_50_such_messages_in_a_minute_close_the_connection(
    served: Served, callers: Callers, version: int
) -> None:
    make = worker_v1 if version == 1 else worker_v2
    async with bystander(served, callers), make(served.ws) as worker:
        for _ in range(51):
            await worker.send("taskChunk", taskId=NOBODY, attempt=1, seq=1, deltas=[], delta="x")
        assert await worker.closed() == 4400


# ---- sequence numbers ----------


@pytest.mark.shared
async def test_a_gap_in_seq_fails_the_attempt_and_stops_the_worker(served: Served, callers: Callers) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.chunk(task, "one")
        await watch.until_text("one")
        await worker.chunk(task, "three", 3)
        assert (await watch.until_event("error"))["code"] == "PROTOCOL_ERROR"
        await worker.expect("cancel", **key(task))
        await worker.expect("error", code="PROTOCOL_ERROR", taskId=task["taskId"])
        await worker.chunk(task, "four", 4)  # it had not heard yet: no further complaint
        await worker.answer(task, None, lastSeq=4)
        await worker.expect("resultAck", status="stale")
        assert watch.text == "one"
        await still_works(worker, callers)


@pytest.mark.shared
async def test_a_result_that_counts_more_chunks_than_came_fails_the_task(
    served: Served, callers: Callers
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.chunk(task, "one")
        await worker.answer(task, "whole", lastSeq=2)
        await answer.error("PROTOCOL_ERROR")
        await worker.expect("resultAck", status="accepted")
        await still_works(worker, callers)


@pytest.mark.shared
async def test_a_repeated_seq_is_ignored(served: Served, callers: Callers) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        for seq, text in ((1, "a"), (1, "again"), (2, "b"), (1, "again"), (2, "again"), (3, "c")):
            await worker.chunk(task, text, seq)
        await worker.answer(task, None, lastSeq=3)
        assert (await watch.until_event("done"))["result"]["content"] == "abc"
        assert watch.text == "abc"
        await worker.expect("resultAck", status="accepted")


@pytest.mark.parametrize("delta", [{"toolCalls": "text"}, {"toolCalls": {}}, {"extra": [1]}], ids=json.dumps)
@pytest.mark.shared
async def test_output_of_the_wrong_shape_fails_the_task(
    served: Served, callers: Callers, delta: dict[str, Any]
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.send("taskChunk", **key(task), seq=1, deltas=[delta])
        await answer.error("PROTOCOL_ERROR")
        await worker.answer(task, None, lastSeq=1)
        await worker.skip_to("resultAck")
        await still_works(worker, callers)


# ---- garbage ----------

GARBAGE = [
    "",
    "{",
    "null",
    "[1]",
    '{"type":"unheardOf"}',
    '{"type":"taskAck","taskId":"x","attempt":"one"}',
    '{"type":"heartbeat","running":[{}]}',
    '{"type":"taskProgress","taskId":"x","attempt":1,"pct":1e999}',
    "[" * 100_000,
    '{"type":"taskChunk","taskId":"' + "x" * 200_000 + '"}',
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda text: text[:40] or "empty")
@pytest.mark.shared
async def test_a_frame_that_cannot_be_read_is_an_error_that_is_not_fatal(
    served: Served, callers: Callers, garbage: str
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        await worker.text(garbage)
        frame = await worker.expect("error", code="INVALID_MESSAGE")
        assert not frame.get("fatal")
        assert len(frame["message"]) <= 500
        await still_works(worker, callers)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.shared
async def test_more_than_5_of_them_in_a_minute_close_the_connection(
    served: Served, callers: Callers, version: int
) -> None:
    make = worker_v1 if version == 1 else worker_v2
    async with bystander(served, callers), make(served.ws) as worker:
        for garbage in GARBAGE[:6]:
            await worker.text(garbage)
        assert await worker.closed() == 4400
        assert len([f for f in worker.seen if f["type"] == "error"]) == (6 if version == 2 else 0)


@pytest.mark.parametrize(
    "fault",
    ['"type":"taskChunk","seq":1,"deltas":[{"index":1024}]', '"type":"taskChunk","seq":1,"deltas":[{"toolCalls":{}}]',
     '"type":"taskResult","lastSeq":0,"result":' + "[" * 1_000_000 + "]" * 1_000_000],
    ids=["field", "shape", "nesting"],
)  # fmt: skip
@pytest.mark.shared
async def test_frames_that_fail_the_task_they_name_do_not_end_the_connection(
    served: Served, callers: Callers, fault: str
) -> None:
    async with bystander(served, callers), worker_v2(served.ws, slots=2) as worker:
        beside = callers.ask()
        other = await worker.expect("task")
        await worker.ack(other)
        for _ in range(7):
            answer = callers.ask()
            task = await worker.skip_to("task")
            await worker.text(f'{{"taskId":"{task["taskId"]}","attempt":{task["attempt"]},{fault}}}')
            await answer.error("PROTOCOL_ERROR")
            if "taskChunk" in fault:
                await worker.answer(task, None, lastSeq=1)
                await worker.skip_to("resultAck")
        await worker.answer(other, "whole", lastSeq=0)
        assert await beside.ok() == "whole"


async def test_a_connection_that_is_being_closed_reads_nothing_more(served: Served, callers: Callers) -> None:
    tune(served, lost_grace_ms=1)
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.ack(task)
        for _ in range(6):
            await worker.ws.send("{")
        await worker.ws.send(json.dumps({"type": "taskResult", **key(task), "lastSeq": 0, "result": 1}))
        assert await worker.closed() == 4400
        await answer.error("WORKER_LOST")


async def test_a_frame_that_is_too_large_closes_the_connection(
    served: Served, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        limit = worker.registered["limits"]["maxMessageBytes"]
        with contextlib.suppress(websockets.ConnectionClosed):
            await worker.text(" " * (limit + 1))
        assert await worker.closed() == 1009


@pytest.mark.shared
async def test_a_result_of_almost_the_largest_size_is_fine(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        text = "x" * ((16 << 20) - 1024)
        await worker.answer(task, text, lastSeq=0)
        assert await answer.ok() == text


# ---- too much ----------


async def test_a_flood_pauses_the_reading_and_is_then_closed(served: Served, callers: Callers) -> None:
    tune(served, flood_frames=20, flood_ms=400)
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        assert await worker_floods(worker) == 4429


async def worker_floods(worker: RawWorker) -> int:
    """Send heartbeats as fast as they are taken."""

    async def flood() -> None:
        while True:
            await worker.ws.send('{"type":"heartbeat"}')

    flooding = asyncio.create_task(flood())
    try:
        return await worker.closed()
    finally:
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)


async def test_a_burst_is_paused_and_forgiven(served: Served, callers: Callers) -> None:
    tune(served, flood_frames=50)
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        for seq in range(1, 81):
            await worker.chunk(task, f"{seq} ", seq)
        await worker.answer(task, None, lastSeq=80)
        await watch.until_event("done")
        assert watch.text == "".join(f"{seq} " for seq in range(1, 81))
        await worker.expect("resultAck", status="accepted")
        await worker.nothing_more()


async def test_a_flood_of_bytes_is_closed_too(served: Served, callers: Callers) -> None:
    tune(served, flood_bytes=1000, flood_ms=400)
    async with worker_v2(served.ws) as worker:
        await worker.send("heartbeat", running=[], filler="x" * 2000)
        assert await worker.closed() == 4429


async def test_more_slots_may_send_more(served: Served, callers: Callers) -> None:
    tune(served, flood_frames=10, flood_ms=1)
    async with worker_v2(served.ws, slots=100) as worker:
        for _ in range(500):
            await worker.ws.send('{"type":"heartbeat"}')
        await worker.nothing_more()


# ---- silence ----------


async def test_three_tasks_without_acknowledgement_close_the_connection(
    served: Served, callers: Callers
) -> None:
    tune(served, ack_ms=100)
    async with bystander(served, callers):
        async with worker_v2(served.ws, instance="mute", slots=3) as worker:
            tasks = [await callers.later() for _ in range(3)]
            assert await worker.closed() == 4408
            assert [frame["type"] for frame in worker.seen[1:]] == ["task"] * 3 + ["cancel"] * 3
        async with worker_v2(served.ws, instance="other") as worker:
            for _ in tasks:
                await worker.answer(await worker.skip_to("task"), "elsewhere", lastSeq=0)
            for task_id in tasks:
                assert (await callers.until_status(task_id, "completed"))["result"] == "elsewhere"


async def test_an_unacknowledged_task_is_tried_elsewhere(served: Served, callers: Callers) -> None:
    tune(served, ack_ms=100)
    async with worker_v2(served.ws, instance="mute") as mute, worker_v2(served.ws, instance="other") as other:
        answer = callers.ask()
        task = await mute.expect("task")  # the first that came is the first that is used
        again = await other.expect("task", taskId=task["taskId"])
        await other.answer(again, "good", lastSeq=0)
        assert await answer.ok() == "good"
        await mute.expect("cancel", **key(task))
        await mute.answer(task, "late", lastSeq=0)
        await mute.expect("resultAck", status="stale")


async def test_an_acknowledgement_between_starts_the_count_again(served: Served, callers: Callers) -> None:
    tune(served, ack_ms=400)
    async with worker_v2(served.ws) as worker:
        for number in range(3):
            answer = callers.ask(timeout=14_000)
            await worker.skip_to("task")
            await worker.expect("cancel")
            await worker.nothing_more()  # it gets nothing before it sends something
            task = await worker.expect("task")
            await worker.ack(task)
            await worker.answer(task, number, lastSeq=0)
            assert await answer.ok() == number


async def test_a_worker_that_ignores_a_cancel_gets_nothing_until_it_answers(
    served: Served, callers: Callers
) -> None:
    tune(served, cancel_grace_ms=-2000)  # the two seconds on top are over at once
    async with bystander(served, callers), worker_v2(served.ws, slots=3) as worker:
        task_id = await callers.later()
        task = await worker.expect("task")
        await worker.ack(task)
        await callers.client.post(f"/api/task/{task_id}/cancel")
        await worker.expect("cancel", **key(task))
        (mine,) = [w for w in served.gateway.dispatcher.pool if w.serves("m")]
        await until(lambda: mine.suspended, "the worker to be suspended")
        waiting = await callers.later()
        await worker.nothing_more(task)
        await worker.answer(task, None, lastSeq=0)
        second = await worker.skip_to("task")
        assert second["taskId"] == waiting
        await worker.answer(second, 1, lastSeq=0)
        await callers.until_status(waiting, "completed")


async def test_a_worker_that_never_answers_a_cancel_is_closed(served: Served, callers: Callers) -> None:
    tune(served, stop_grace_ms=300)
    async with bystander(served, callers), worker_v2(served.ws, slots=3) as worker:
        task_id = await callers.later()
        task = await worker.expect("task")
        await worker.ack(task)
        await callers.client.post(f"/api/task/{task_id}/cancel")
        assert await worker.closed() == 1011


async def test_a_worker_that_is_silent_for_too_long_is_given_up(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.ack(task)
        tune(served, dead_after_ms=300, lost_grace_ms=1)
        await answer.error("WORKER_LOST")
        assert await worker.closed() == 1011


async def test_heartbeats_keep_a_silent_worker_alive(served: Served, callers: Callers) -> None:
    tune(served, dead_after_ms=1500)
    async with worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.ack(task)
        ticks = served.gateway.dispatcher.pool.time
        end = ticks() + 2.5
        while ticks() < end:
            await worker.nothing_more(task)
            await asyncio.sleep(0.1)
        await worker.answer(task, 1, lastSeq=0)
        await watch.until_event("done")


# ---- inventory ----------


async def test_a_task_that_two_heartbeats_do_not_list_is_lost_and_tried_again(
    served: Served, callers: Callers
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.ack(task)
        await worker.nothing_more()
        await worker.nothing_more(task)  # it lists it: the count begins again
        await worker.nothing_more()
        await worker.send("heartbeat", running=[])
        await worker.expect("error", code="PROTOCOL_ERROR", taskId=task["taskId"])
        again = await worker.expect("task", taskId=task["taskId"], attempt=after(task))
        await worker.answer(again, 1, lastSeq=0)
        assert await answer.ok() == 1


async def test_a_task_that_a_heartbeat_lists_but_nobody_gave_is_cancelled(
    served: Served, callers: Callers
) -> None:
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        await worker.send("heartbeat", running=[{"taskId": NOBODY, "attempt": 3}])
        await worker.expect("cancel", reason="superseded", taskId=NOBODY, attempt=3)
        await worker.answer({"taskId": NOBODY, "attempt": 3}, None, lastSeq=0)
        await worker.expect("resultAck", status="stale")
        await still_works(worker, callers)


async def test_a_cancelled_task_that_heartbeats_do_not_list_frees_its_slot(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws) as worker:
        task_id = await callers.later()
        task = await worker.expect("task")
        await worker.ack(task)
        await callers.client.post(f"/api/task/{task_id}/cancel")
        await worker.expect("cancel")
        answer = callers.ask()
        await worker.send("heartbeat", running=[])
        await worker.send("heartbeat", running=[])
        await worker.answer(await worker.expect("task"), "next", lastSeq=0)
        assert await answer.ok() == "next"


async def test_five_losses_give_a_worker_a_rest_also_across_connections(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="flaky", slots=4) as worker:
        for _ in range(4):
            task_id = await callers.later()
            task = await worker.skip_to("task")
            await worker.chunk(task, "output, so that it is not tried again")
            await worker.send("heartbeat", running=[])
            await worker.send("heartbeat", running=[])
            await callers.until_status(task_id, "failed")
        task_id = await callers.later()
        await worker.ack(await worker.skip_to("task"))
        worker.ws.transport.abort()
    await callers.until_status(task_id, "queued")
    async with worker_v2(served.ws, instance="flaky", slots=4) as worker:
        await worker.nothing_more()
        async with worker_v2(served.ws, instance="sound") as other:
            task = await other.expect("task", taskId=task_id)
            await other.answer(task, 1, lastSeq=0)
            await callers.until_status(task_id, "completed")
        await worker.nothing_more()


# ---- the same worker twice ----------


async def test_the_same_instance_twice_leaves_the_newest(served: Served, callers: Callers) -> None:
    async with bystander(served, callers), worker_v2(served.ws, instance="twin") as older:
        answer = callers.ask()
        task = await older.expect("task")
        await older.ack(task)
        async with worker_v2(served.ws, instance="twin") as newer:
            assert await older.closed() == 4409
            again = await newer.expect("task", taskId=task["taskId"], attempt=after(task))
            await newer.answer(again, "newest", lastSeq=0)
            assert await answer.ok() == "newest"
            await until_workers(served, 2)


async def test_an_older_connection_that_drains_is_left_to_finish(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, instance="twin") as older:
        answer = callers.ask()
        task = await older.expect("task")
        await older.send("draining", graceMs=5000)
        async with worker_v2(served.ws, instance="twin") as newer:
            await older.nothing_more(task)
            await older.answer(task, "finished", lastSeq=0)
            assert await answer.ok() == "finished"
            await still_works(newer, callers)
