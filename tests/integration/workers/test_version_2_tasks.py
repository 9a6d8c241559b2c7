"""Version 2: what a worker says about its tasks, and what becomes of them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.rawworkers import Callers, after, bystander, key, tune, until_workers, worker_v2
from tests.support.serving import Served

from fairlane.workers import protocol
from fairlane.workers.server.settings import OutputLimits
from fairlane.workers.server.tasks.attempt import LOST

pytestmark = pytest.mark.anyio


@pytest.mark.shared
async def test_a_task_says_attempt_model_stream_and_time(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        watch = await callers.watch(timeout=9000)
        task = await worker.expect("task", model="m", stream=True, taskType="openaiLike")
        assert 0 < task["timeoutMs"] <= 9000
        assert task["taskId"] == watch.task_id
        await worker.answer(task, 1, lastSeq=0)
        await worker.expect("resultAck", status="accepted", **key(task))
        answer = callers.ask()
        task = await worker.expect("task", stream=False)
        await worker.answer(task, 2, lastSeq=0)
        assert await answer.ok() == 2


@pytest.mark.shared
async def test_a_task_says_its_user_to_a_worker_that_wants_it_alone(served: Served, callers: Callers) -> None:
    users = []
    for wants in (True, False):
        async with worker_v2(served.ws, wantsUser=wants) as worker:
            answer = callers.ask(user="ann")
            task = await worker.expect("task")
            users.append(task.get("user"))
            await worker.answer(task, 1, lastSeq=0)
            await answer.ok()
    assert users[0]
    assert users[1] is None


async def test_the_example_of_the_protocol_happens_as_it_is_written(served: Served, callers: Callers) -> None:
    document = (Path(protocol.__file__).parent / "PROTOCOL.md").read_text()
    example = document.partition("### Example")[2].partition("\n### ")[0]
    lines = re.findall(r"^([→←]) (.*)$", example, re.MULTILINE)
    assert len(lines) == 8
    frames = [(arrow, json.loads(line)) for arrow, line in lines]
    [payload] = [frame["payload"] for _, frame in frames if frame["type"] == "task"]
    watch, task = None, {}
    async with worker_v2(served.ws, register=False) as worker:
        for arrow, frame in frames:
            if arrow == "→":
                await worker.send(**frame | task)
                continue
            if frame["type"] == "task":
                watch = await callers.watch(**payload, timeout=frame["timeoutMs"])
            told = await worker.recv()
            assert told.keys() == frame.keys()
            differs = {"taskId", "attempt", "workerId", "heartbeatMs", "deadAfterMs", "timeoutMs"}
            assert all(told[name] == frame[name] for name in frame.keys() - differs), told
            task = key(told)
        assert watch is not None
        assert (await watch.until_event("done"))["finishReason"] == "stop"
        text = [chunk["delta"] for chunk in watch.named("chunk") if chunk["kind"] == "text"]
        assert "".join(text) == "HELLO THERE"


@pytest.mark.shared
async def test_the_welcome_says_what_the_gateway_expects(served: Served) -> None:
    async with worker_v2(served.ws) as worker:
        welcome = worker.registered
        assert (welcome["heartbeatMs"], welcome["deadAfterMs"]) == (1000, 20_000)
        assert welcome["limits"]["maxMessageBytes"] == 17 << 20


@pytest.mark.shared
async def test_every_kind_of_delta_reaches_the_readers(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        call = [
            {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
        ]
        deltas: list[dict[str, Any]] = [
            {"content": "text"},
            {"reasoning": "why"},
            {"refusal": "no"},
            {"toolCalls": call},
            {"extra": {"logprobs": None}},
            {"index": 1, "content": "other"},
            {"finishReason": "stop"},
        ]
        await worker.send("taskChunk", **key(task), seq=1, deltas=deltas)
        await worker.answer(task, None, lastSeq=1)
        done = await watch.until_event("done")
        chunks = [(c["index"], c["kind"], c["delta"]) for c in watch.named("chunk")]
        assert chunks == [
            (0, "text", "text"),
            (0, "reasoning", "why"),
            (0, "refusal", "no"),
            (0, "tool", call),
            (0, "extra", {"logprobs": None}),
            (1, "text", "other"),
            (0, "finish", "stop"),
        ]
        assert done["finishReason"] == "stop"


@pytest.mark.shared
async def test_progress_and_stages_are_shown_to_readers(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.send("taskProgress", **key(task), pct=40, note="prefill")
        shown = await watch.until_event("progress")
        assert (shown["pct"], shown["note"]) == (40, "prefill")
        stage = {"name": "load", "index": 1, "of": 2, "status": "done"}
        await worker.send("taskProgress", **key(task), stage=stage)
        assert stage.items() <= (await watch.until_event("stage")).items()
        again = await callers.follow(task["taskId"])
        assert stage.items() <= (await again.until_event("stage")).items()
        await worker.answer(task, 1, lastSeq=0)
        await watch.until_event("done")


# ---- rejection ----------


@pytest.mark.parametrize("reason", ["capacity", "draining", "unsupported"])
async def test_a_rejected_task_goes_to_another_worker_and_costs_no_try(
    served: Served, callers: Callers, reason: str
) -> None:
    async with worker_v2(served.ws, instance="a") as first:
        answer = callers.ask()
        task = await first.expect("task")
        async with worker_v2(served.ws, instance="b") as second:
            await first.send("taskReject", **key(task), reason=reason)
            again = await second.expect("task", taskId=task["taskId"])
            await second.answer(again, "from the other", lastSeq=0)
            assert await answer.ok() == "from the other"
            await first.nothing_more()
            record = await served.gateway.scheduler.position(task["taskId"])
            assert record is not None
            assert record.number("tries") <= 1


@pytest.mark.shared
async def test_a_bad_payload_fails_the_task(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.send("taskReject", **key(task), reason="badPayload", message="no messages")
        assert (await answer.error("BAD_REQUEST"))["error"] == "no messages"


async def test_a_task_that_every_worker_finds_unsupported_fails_with_a_sentence(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="a") as first, worker_v2(served.ws, instance="b") as second:
        await until_workers(served, 2)
        answer = callers.ask()
        for worker in (first, second):
            task = await worker.expect("task")
            await worker.send("taskReject", **key(task), reason="unsupported")
        assert (await answer.error("NO_WORKER"))["error"] == "No connected worker can run this task"


async def test_a_worker_that_drains_gets_nothing_more_and_finishes_what_it_has(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, slots=4) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.send("draining", graceMs=1000)
        await worker.nothing_more(task)
        response = await callers.client.post("/api/openai", json={"model": "m", "async": True})
        assert (response.status_code, response.json()["error"]) == (503, "No worker available")
        await worker.answer(task, "finished", lastSeq=0)
        assert await answer.ok() == "finished"
        await worker.expect("resultAck", status="accepted")
        await worker.nothing_more()


# ---- failure and retry ----------


@pytest.mark.shared
async def test_a_structured_error_keeps_its_code_and_sentence(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        info = {"code": "CONTEXT_LENGTH", "retryable": False, "httpStatus": 400}
        await worker.answer(task, None, lastSeq=0, error="too long", errorInfo=info)
        failed = await watch.until_event("error")
        assert (failed["error"], failed["code"], failed["retryable"]) == ("too long", "CONTEXT_LENGTH", False)
        await worker.expect("resultAck", status="accepted")


@pytest.mark.shared
async def test_an_unknown_failure_code_becomes_worker_error(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await worker.answer(task, None, lastSeq=0, errorInfo={"code": "MY_OWN", "message": "mine"})
        assert (await answer.error("WORKER_ERROR"))["error"] == "mine"


BUSY = {"code": "MODEL_TOO_BUSY", "retryable": True}


async def test_a_failure_that_may_pass_is_tried_again_on_another_worker(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="a") as first:
        answer = callers.ask()
        task = await first.expect("task")
        async with worker_v2(served.ws, instance="b") as second:
            await first.answer(task, None, lastSeq=0, error="busy", errorInfo=BUSY)
            await first.expect("resultAck", status="accepted")
            again = await second.expect("task", taskId=task["taskId"], attempt=after(task))
            await second.answer(again, "good", lastSeq=0)
            assert await answer.ok() == "good"
            await first.nothing_more()


async def test_the_only_worker_tries_again_itself_three_times_at_most(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        for attempt in (1, 2, 3):
            task = await worker.expect("task")
            await worker.answer(task, None, lastSeq=0, error=f"busy {attempt}", errorInfo=BUSY)
            await worker.expect("resultAck", status="accepted")
        assert (await answer.error("MODEL_TOO_BUSY"))["error"] == "busy 3"
        await worker.nothing_more()


async def test_a_failure_after_output_is_final_even_if_it_may_pass(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, slots=2) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.chunk(task, "seen")
        await watch.until_text("seen")
        await worker.answer(task, None, lastSeq=1, error="busy", errorInfo=BUSY)
        failed = await watch.until_event("error")
        assert (failed["code"], failed["retryable"]) == ("MODEL_TOO_BUSY", True)
        await worker.expect("resultAck", status="accepted")
        await worker.nothing_more()


async def test_a_worker_lost_after_output_ends_the_stream_with_partial_usage(
    served: Served, callers: Callers
) -> None:
    async with bystander(served, callers):
        async with worker_v2(served.ws) as worker:
            watch = await callers.watch()
            task = await worker.expect("task")
            await worker.chunk(task, "one ")
            await worker.chunk(task, "two", 2)
            await watch.until_text("one two")
            worker.ws.transport.abort()
        failed = await watch.until_event("error")
        assert (failed["error"], failed["code"]) == (LOST, "WORKER_LOST")
        assert failed["usage"].items() >= {"outputTokens": 2, "estimated": True}.items()


async def test_a_worker_lost_before_output_costs_nothing_but_time(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, instance="a") as first:
        watch = await callers.watch()
        task = await first.expect("task")
        await first.ack(task)
        async with worker_v2(served.ws, instance="b") as second:
            first.ws.transport.abort()
            again = await second.expect("task", taskId=task["taskId"], attempt=after(task))
            await second.chunk(again, "from b")
            await second.answer(again, None, lastSeq=1)
            await watch.until_event("done")
            assert watch.text == "from b"


async def test_a_task_that_took_two_workers_with_it_is_poison(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, instance="c", slots=1) as third:
        busy = callers.ask(note="keeps the third busy")
        kept = await third.expect("task")
        await third.ack(kept)
        async with worker_v2(served.ws, instance="a") as first:
            task_id = await callers.later()
            await first.ack(await first.expect("task", taskId=task_id))
            async with worker_v2(served.ws, instance="b") as second:
                first.ws.transport.abort()
                await second.ack(await second.expect("task", taskId=task_id))
                second.ws.transport.abort()
                failed = await callers.until_status(task_id, "failed")
                assert failed["code"] == "WORKER_LOST"
                assert "for the second time" in failed["error"]
        await third.nothing_more(kept)
        await third.answer(kept, 1, lastSeq=0)
        assert await busy.ok() == 1


async def test_when_the_only_worker_is_lost_and_does_not_come_back_a_waiting_caller_gets_an_error(
    served: Served, callers: Callers
) -> None:
    tune(served, lost_grace_ms=500)
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        await worker.ack(await worker.expect("task"))
        worker.ws.transport.abort()
    await answer.error("WORKER_LOST")


async def test_when_the_only_worker_is_lost_an_async_task_waits_for_the_next_one(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="a") as worker:
        task_id = await callers.later()
        await worker.ack(await worker.expect("task"))
        worker.ws.transport.abort()
    await callers.until_status(task_id, "queued")
    async with worker_v2(served.ws, instance="b") as worker:
        await worker.answer(await worker.expect("task", taskId=task_id), "done", lastSeq=0)
        assert (await callers.until_status(task_id, "completed"))["result"] == "done"


# ---- cancel and limits ----------


@pytest.mark.shared
async def test_a_cancel_reaches_the_worker_and_its_answer_frees_the_slot(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws) as worker:
        task_id = await callers.later()
        task = await worker.expect("task")
        await worker.chunk(task, "a")
        await callers.client.post(f"/api/task/{task_id}/cancel")
        await worker.expect("cancel", reason="client", graceMs=5000, **key(task))
        await worker.chunk(task, "b", 2)  # on its way when the cancel came
        waiting = await callers.later()
        assert (await callers.status(waiting))["status"] == "queued"
        await worker.answer(task, None, lastSeq=2)
        assert {(await worker.recv())["type"], (await worker.recv())["type"]} == {"resultAck", "task"}
        ack = next(frame for frame in worker.seen if frame["type"] == "resultAck")
        assert ack["status"] == "stale"


@pytest.mark.shared
async def test_a_caller_who_leaves_reaches_the_worker(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws) as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        await callers.close()
        await worker.expect("cancel", reason="client", **key(task))
        del answer


async def test_a_task_out_of_time_is_cancelled_at_its_worker(served: Served, callers: Callers) -> None:
    served.gateway.current.settings = served.gateway.current.settings.model_copy(
        update={"min_task_timeout_ms": 300}
    )
    async with worker_v2(served.ws) as worker:
        answer = callers.ask(timeout=300)
        task = await worker.expect("task")
        await worker.ack(task)
        assert (await answer.error("TOTAL_TIMEOUT"))["error"] == "Task timeout"
        await worker.expect("cancel", reason="timeout", **key(task))


@pytest.mark.parametrize("begun", [False, True], ids=["first_output_ms", "silence_ms"])
async def test_a_models_limits_on_silence_end_the_task_and_stop_the_worker(
    served: Served, callers: Callers, begun: bool
) -> None:
    tune(served, output_limits={"m": OutputLimits(None if begun else 200, 200 if begun else None)})
    async with bystander(served, callers), worker_v2(served.ws) as worker:
        watch = await callers.watch()
        task = await worker.expect("task")
        await worker.ack(task)
        if begun:
            await worker.chunk(task, "then nothing")
        failed = await watch.until_event("error")
        assert failed["code"] == ("STREAM_STALLED" if begun else "FIRST_TOKEN_TIMEOUT")
        await worker.expect("cancel", reason="timeout", **key(task))
        await worker.answer(task, None, lastSeq=int(begun))
        await worker.expect("resultAck", status="stale")
        answer = callers.ask()
        await worker.answer(await worker.expect("task"), 1, lastSeq=0)
        assert await answer.ok() == 1


# ---- slots and models ----------


@pytest.mark.shared
async def test_all_slots_are_used_and_no_more(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, slots=3) as worker:
        answers = [callers.ask(number=i) for i in range(7)]
        running = [await worker.expect("task") for _ in range(3)]
        await worker.nothing_more(*running)
        for _ in range(4):
            done = running.pop(0)
            await worker.answer(done, done["payload"]["number"], lastSeq=0)
            running.append(await worker.skip_to("task"))
        for task in running:
            await worker.answer(task, task["payload"]["number"], lastSeq=0)
        assert sorted([await answer.ok() for answer in answers]) == list(range(7))


async def test_one_worker_serves_several_models_and_no_others(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, "a", "b") as worker:
        for model in ("a", "b"):
            answer = callers.ask(model)
            await worker.answer(await worker.skip_to("task"), model, lastSeq=0)
            assert await answer.ok() == model
        response = await callers.client.post("/api/openai", json={"model": "c"})
        assert response.status_code == 503


async def test_a_wildcard_serves_every_model(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, "*") as worker:
        for model in ("a", "some/other:7b"):
            answer = callers.ask(model)
            task = await worker.skip_to("task")
            assert task["model"] == model
            await worker.answer(task, 1, lastSeq=0)
            assert await answer.ok() == 1


async def test_registering_again_changes_models_slots_and_task_types(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, "a") as worker:
        await worker.send(
            "register", instanceId="instance", name="raw", models=["b"], slots=2, taskTypes=["special"]
        )
        await worker.nothing_more()
        assert (await callers.client.post("/api/openai", json={"model": "a"})).status_code == 503
        answers = [callers.run("special", "b", n=i) for i in range(2)]
        tasks = [await worker.expect("task", taskType="special") for _ in answers]
        for task in tasks:
            await worker.answer(task, 1, lastSeq=0)
        assert [await answer.ok() for answer in answers] == [1, 1]


# ---- task types ----------


async def test_a_worker_never_gets_a_type_it_did_not_register(served: Served, callers: Callers) -> None:
    async with (
        worker_v2(served.ws, instance="a", taskTypes=["openaiEmbedding"]) as embedder,
        worker_v2(served.ws, instance="b", taskTypes=["openaiLike", "other"]) as chatter,
    ):
        await until_workers(served, 2)
        for _ in range(3):
            answer, other = callers.ask(), callers.run("openaiEmbedding")
            task = await chatter.skip_to("task")
            assert task["taskType"] == "openaiLike"
            await chatter.answer(task, "chat", lastSeq=0)
            task = await embedder.skip_to("task")
            assert task["taskType"] == "openaiEmbedding"
            await embedder.answer(task, "embedding", lastSeq=0)
            assert (await answer.ok(), await other.ok()) == ("chat", "embedding")


async def test_a_type_that_nobody_takes_fails_with_a_sentence(served: Served, callers: Callers) -> None:
    async with worker_v2(served.ws, taskTypes=["openaiLike"]) as worker:
        body = await callers.run("strange").error("NO_WORKER")
        assert body["error"] == "No connected worker takes tasks of type strange"
        answer = callers.ask()
        await worker.answer(await worker.expect("task"), 1, lastSeq=0)
        assert await answer.ok() == 1
