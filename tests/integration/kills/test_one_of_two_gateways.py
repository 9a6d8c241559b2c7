"""Two gateways on one Redis: one is stopped in order or killed, and the other carries on."""

import asyncio
import contextlib
import functools
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.integration.kills.test_kill_processes import OPEN_S, results, submit
from tests.support.ledger import ended_once, events, nothing_left
from tests.support.processes import GatewayProcess, gateway_process, tireless
from tests.support.rawworkers import RawWorker, worker_v1
from tests.support.servers import Server
from tests.support.serving import http_client, until
from tests.support.streams import Frame, RawStream, joined_text

pytestmark = pytest.mark.anyio

SETTINGS = {
    "lease_ms": 1500,
    "grant_ack_ms": 1500,
    "drain_ms": 20_000,
    "no_worker_grace_ms": 10_000,
    "stream_flush_interval_ms": 0,
    "stream_flush_size": 1,
}
Pair = tuple[GatewayProcess, GatewayProcess]


@pytest.fixture
async def gateways(own_redis: Server, tmp_path: Path) -> AsyncIterator[Pair]:
    async with (
        gateway_process(tmp_path / "a", own_redis.url, **SETTINGS) as a,
        gateway_process(tmp_path / "b", own_redis.url, **SETTINGS) as b,
    ):
        yield a, b


@pytest.fixture
def store(own_redis: Server) -> Any:
    with own_redis.client() as client:
        yield client


def caller(gateway: GatewayProcess) -> httpx2.AsyncClient:
    return http_client(gateway.url, timeout=OPEN_S)


async def post_stream(gateway: GatewayProcess, **body: Any) -> RawStream:
    return await RawStream.open(gateway.url, "/api/openai", body={"messages": [], "stream": True, **body})


async def farewell(stream: RawStream) -> tuple[list[Frame], Frame]:
    """The logged frames up to the `bye`, and that."""
    frames: list[Frame] = []
    while (frame := await stream.frame()) is not None:
        if frame.event == "bye":
            return frames, frame
        if frame.id:
            frames.append(frame)
    raise AssertionError(f"no farewell after {frames}")


async def test_a_gateway_that_is_stopped_finishes_what_runs_and_sends_the_others_to_its_peer(
    gateways: Pair, store: Any
) -> None:
    a, b = gateways
    async with contextlib.AsyncExitStack() as stack:
        http_a = await stack.enter_async_context(caller(a))
        http_b = await stack.enter_async_context(caller(b))
        streaming = await stack.enter_async_context(worker_v1(a.ws))
        running = await stack.enter_async_context(await post_stream(a))
        first = await streaming.take()
        await streaming.chunk(first, "one ")
        begun = await running.take(2)

        calling = await stack.enter_async_context(worker_v1(a.ws))
        call = asyncio.create_task(http_a.post("/api/openai", json={"messages": []}))
        second = await calling.take()

        elsewhere = await stack.enter_async_context(worker_v1(b.ws))
        other_id = await submit(http_a, 0)
        other = await elsewhere.take()
        await elsewhere.chunk(other, "there ")
        watching = await stack.enter_async_context(
            await RawStream.open(a.url, f"/api/task/{other_id}/events")
        )
        seen = await watching.take(2)

        further = await stack.enter_async_context(worker_v1(b.ws))
        call_elsewhere = asyncio.create_task(http_a.post("/api/openai", json={"messages": []}))
        third = await further.take()
        waiting = await stack.enter_async_context(await post_stream(a, who="waiting"))
        waiting_id = waiting.headers["x-task-id"]
        queued_call = asyncio.create_task(http_a.post("/api/openai", json={"messages": [], "who": "queued"}))
        queued = [await submit(http_a, n) for n in range(20)]

        a.signal(signal.SIGTERM)
        await until(lambda: stopping(http_a), "the gateway not to be ready")
        refused = await http_a.post("/api/openai", json={"messages": []})
        assert (refused.status_code, refused.json()["code"]) == (503, "GATEWAY_STOPPING")
        assert int(refused.headers["retry-after"]) >= 1

        for word in ("two ", "three"):  # what runs here goes on to its end
            await streaming.chunk(first, word)
        await streaming.answer(first)
        done = begun + await running.log()
        assert joined_text(done) == "one two three"
        assert done[-1].event == "done"
        await calling.answer(second, {"content": "called"})
        assert (await call).json() == {"content": "called"}
        await further.answer(third, {"content": "from there"})
        assert (await call_elsewhere).json() == {"content": "from there"}

        answering = [asyncio.create_task(answer_all(further))]
        assert (await queued_call).json() == {"content": "queued"}  # a caller that cannot resume is served
        more, bye = await farewell(watching)  # the others are told to come back
        assert b"\nretry: " in bye
        assert bye.data["reason"] == "drain"
        assert await a.ended() == 0

        seen += more
        await elsewhere.chunk(other, "and here")
        await elsewhere.answer(other)
        path = f"/api/task/{other_id}/events"
        async with await RawStream.open(b.url, path, last=seen[-1].id) as again:
            seen += await again.log()
        assert joined_text(seen) == "there and here"
        async with await RawStream.open(b.url, path) as whole:
            assert await whole.log() == seen

        answering.append(asyncio.create_task(answer_all(elsewhere)))
        async with await RawStream.open(b.url, f"/api/task/{waiting_id}/events") as resumed:
            frames = await resumed.log()
        assert frames[-1].data["result"] == {"content": "waiting"}
        bodies = await results(http_b, queued)
        assert {body["status"] for body in bodies} == {"completed"}
        for task_id in [other_id, waiting_id, *queued]:
            assert ended_once(store, task_id) == b"done"
        await nothing_left(store)
        for task in answering:
            task.cancel()


async def stopping(http: httpx2.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 503


async def answer_all(worker: RawWorker) -> None:
    while True:
        task = await worker.take()
        await worker.answer(task, {"content": task["payload"].get("who", "any")})


async def test_when_one_gateway_is_killed_the_other_does_its_tasks(gateways: Pair, store: Any) -> None:
    """Those that had begun their output end as lost; the readers at the other gateway see it all."""
    a, b = gateways
    gate = asyncio.Event()
    on_a: list[str] = []

    async def hold(send: Any, task: dict[str, Any]) -> None:
        on_a.append(task["taskId"])
        if task["payload"]["n"] % 2:
            await send(type="taskChunk", taskId=task["taskId"], delta="begun")
        await asyncio.Event().wait()

    async def answer(send: Any, task: dict[str, Any]) -> None:
        await gate.wait()
        await send(type="taskResult", taskId=task["taskId"], result=task["payload"]["n"], error=None)

    async with contextlib.AsyncExitStack() as stack:
        http_a = await stack.enter_async_context(caller(a))
        http_b = await stack.enter_async_context(caller(b))
        await stack.enter_async_context(tireless(10, lambda: a.ws, hold))
        ids = [await submit(http_a, n) for n in range(10)]
        await until(lambda: len(on_a) == 10, "ten running tasks")
        await until(lambda: [len(events(store, i)) for i in ids] == [1, 2] * 5, "output of every second one")
        await stack.enter_async_context(tireless(4, lambda: b.ws, answer))
        waiting = [await submit(http_b, n) for n in range(100, 200)]
        streams = [
            await stack.enter_async_context(await RawStream.open(b.url, f"/api/task/{task_id}/events"))
            for task_id in ids
        ]
        lines = [await stream.take(1) for stream in streams]
        assert {(frames[0].id or "")[-2:] for frames in lines} == {"-1"}

        await a.kill()
        gate.set()
        bodies = await results(http_b, [*ids, *waiting])
        for number, (task_id, body) in enumerate(zip(ids, bodies, strict=False)):
            if number % 2:
                assert (body["status"], body["code"]) == ("failed", "WORKER_LOST")
                assert ended_once(store, task_id) == b"error"
            else:
                assert (body["status"], body["result"]) == ("completed", number)
                assert ended_once(store, task_id) == b"done"
        assert [body["result"] for body in bodies[10:]] == list(range(100, 200))
        assert {ended_once(store, task_id) for task_id in waiting} == {b"done"}
        for number, (stream, frames) in enumerate(zip(streams, lines, strict=True)):
            names = [frame.event for frame in frames + await stream.log()]
            assert names == (["start", "chunk", "error"] if number % 2 else ["start", "start", "done"])
        await nothing_left(store)


@pytest.mark.slow
async def test_nothing_is_lost_and_no_call_hangs_when_gateways_are_killed_under_load(
    gateways: Pair, store: Any
) -> None:
    """One gateway after the other; callers submit to whichever answers and poll there."""

    async def work(send: Any, task: dict[str, Any]) -> None:
        await asyncio.sleep(0.02)
        await send(type="taskResult", taskId=task["taskId"], result=task["payload"]["n"], error=None)

    accepted: dict[str, int] = {}

    async def ask(http: list[httpx2.AsyncClient], number: int) -> None:
        for turn in range(100):
            with contextlib.suppress(httpx2.TransportError):
                answer = await http[(number + turn) % 2].post(
                    "/api/openai", json={"messages": [], "n": number, "async": True}
                )
                if answer.status_code == 202:
                    accepted[answer.json()["taskId"]] = number
                    return
                assert answer.status_code == 503, answer.text
            await asyncio.sleep(0.1)
        raise AssertionError("nobody took the task")

    async with contextlib.AsyncExitStack() as stack:
        https = [await stack.enter_async_context(caller(gateway)) for gateway in gateways]
        for gateway in gateways:
            await stack.enter_async_context(tireless(5, functools.partial(str, gateway.ws), work))
        asking = [asyncio.create_task(ask(https, number)) for number in range(60)]
        for gateway in (*gateways, gateways[0]):
            await gateway.kill()
            asking += [asyncio.create_task(ask(https, number)) for number in range(60)]
            await gateway.start()
        await asyncio.gather(*asking)
        assert len(accepted) == 240
        bodies = await results(https[1], list(accepted))
        lost = [body for body in bodies if body["status"] != "completed"]
        assert all(body["code"] == "WORKER_LOST" for body in lost), json.dumps(lost[:3])
        assert len(lost) <= 10, "only what two killed gateways held in turn may end so"
        for task_id, body in zip(accepted, bodies, strict=True):
            ended_once(store, task_id)
            if body["status"] == "completed":
                assert body["result"] == accepted[task_id]
        await nothing_left(store)
