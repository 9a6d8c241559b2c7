"""What a gateway holds for those who wait and those who do not read, as the system counts it: bounded, and given back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
import pytest
from tests.support.memory import Peak, resident, watched
from tests.support.processes import GatewayProcess, gateway_process
from tests.support.rawworkers import RawWorker, fitting, worker_v2
from tests.support.servers import running_server
from tests.support.serving import http_client, until
from tests.support.streams import RawStream

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CALLS = 5


def nested(size: int) -> bytes:
    """JSON that is large as Python values: lists in a list."""
    return b"[" + b",".join([b"[]"] * (size // 3)) + b"]"


def body_of(path: str, filling: bytes, stream: bool) -> bytes:
    """A body of a call, most of which is `filling`."""
    flag = b"true" if stream else b"false"
    match path:
        case "/api/tasks":
            return b'{"type":"t","model":"m","stream":%b,"payload":{"x":%b}}' % (flag, filling)
        case "/api/openai":
            return b'{"model":"m","stream":%b,"timeout":600000,"x":%b}' % (flag, filling)
        case "/v1/chat/completions":
            return b'{"model":"m","stream":%b,"messages":%b}' % (flag, filling)
        case "/v1/completions":
            return b'{"model":"m","stream":%b,"prompt":%b}' % (flag, filling)
        case _:
            return b'{"model":"m","input":%b}' % filling


PATIENT = {
    "redis_timeout_ms": 15_000,
    "dead_after_ms": 600_000,
    "lease_ms": 600_000,
    "no_worker_grace_ms": 600_000,
}


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayProcess]:
    """One for all these tests. However slow the machine is, it gives up no worker, and not its Redis."""
    with running_server() as redis:
        async with gateway_process(tmp_path_factory.mktemp("gateway"), redis.url, **PATIENT) as gateway:
            yield gateway


async def waiting(http: httpx2.AsyncClient, number: int) -> None:
    async def are() -> bool:
        state = (await http.get("/api/admin/overview?tasks=0")).json()
        return bool(state["counts"]["queued"] == number)

    await until(are, f"{number} tasks to wait", 60)


async def settled(gateway: GatewayProcess, bound: float) -> float:
    """The memory once it has come down to `bound` MiB, or after 45 s."""
    with contextlib.suppress(AssertionError):
        await until(lambda: resident(gateway.pid) <= bound, "memory to be given back", 45)
    return resident(gateway.pid)


async def standing(gateway: GatewayProcess) -> float:
    """The memory once it does not change any more."""
    seen = [0.0]

    def stands() -> bool:
        seen.append(resident(gateway.pid))
        return len(seen) > 40 and max(seen[-40:]) - min(seen[-40:]) < 0.5

    await until(stands, "memory to stand", 30)
    return seen[-1]


def tell(what: str, memory: Peak, held: float, after: float) -> None:
    """Figures, for who runs it with -s."""
    print(
        f"{what}: before {memory.before:.0f}, peak {memory.peak:.0f}, held {held:.0f}, after {after:.0f} MiB"
    )


def without_payload(text: str | bytes) -> dict[str, Any]:
    """A frame but for its payload, of which Python would make a million values."""
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {name: msgspec.json.decode(value) for name, value in raw.items() if name != "payload"}


@contextlib.asynccontextmanager
async def busy_model(gateway: GatewayProcess, http: httpx2.AsyncClient) -> AsyncIterator["Busy"]:
    """A model whose only slot is taken, so that what is asked of it waits."""
    async with worker_v2(gateway.ws, "m", limits={"maxMessageBytes": 64 << 20}) as worker:
        worker.loads = without_payload
        answer = await http.post("/api/tasks", json={"type": "t", "model": "m", "payload": {}, "async": True})
        assert answer.status_code == 202, answer.text
        task = await worker.skip_to("task")
        await worker.ack(task)
        yield Busy(worker, task)


class Busy:
    """A worker with a task."""

    def __init__(self, worker: RawWorker, task: dict[str, Any]) -> None:
        self._worker = worker
        self._task = task

    async def work_off(self, number: int) -> None:
        """End its task, and take and end so many more."""
        for _ in range(number):
            await self._worker.answer(self._task, fitting(self._task))
            self._task = await self._worker.skip_to("task")
            await self._worker.ack(self._task)
        await self._worker.answer(self._task, fitting(self._task))


@pytest.mark.parametrize(
    ("path", "stream"),
    [
        ("/api/openai", False),
        ("/api/openai", True),
        ("/api/tasks", False),
        ("/v1/chat/completions", False),
        ("/v1/chat/completions", True),
        ("/v1/completions", False),
        ("/v1/embeddings", False),
    ],
)
async def test_calls_that_wait_keep_nothing_of_their_bodies(
    gateway: GatewayProcess, path: str, stream: bool
) -> None:
    """Some calls of 2 MB each: 40 MB as Python values. (A cache for bodies of tasks that will run here is bounded by itself.)"""
    body = body_of(path, nested(2_000_000), stream)
    async with (
        http_client(gateway.url, timeout=120, headers={"Content-Type": "application/json"}) as http,
        busy_model(gateway, http) as model,
    ):
        async with watched(gateway.pid) as memory:
            calls = [asyncio.create_task(http.post(path, content=body)) for _ in range(CALLS)]
            await waiting(http, CALLS)
            held = await settled(gateway, memory.before + 3 * CALLS * 2)
        await model.work_off(CALLS)
        for call in calls:
            assert (await call).status_code == 200
        after = await settled(gateway, memory.before * 1.2)
        tell("calls", memory, held, after)
        assert memory.grown < 80
        assert held <= memory.before + 3 * CALLS * 2
        assert after <= memory.before * 1.2


async def test_one_large_body_that_waits_is_held_as_bytes(gateway: GatewayProcess) -> None:
    filling = b"[" + b",".join([b"{}"] * (16_700_000 // 3)) + b"]"
    async with http_client(gateway.url, timeout=120, headers={"Content-Type": "application/json"}) as http:
        for path in ("/v1/chat/completions", "/api/openai", "/api/tasks"):
            async with busy_model(gateway, http) as model:
                async with watched(gateway.pid) as memory:
                    call = asyncio.create_task(http.post(path, content=body_of(path, filling, False)))
                    await waiting(http, 1)
                    held = await settled(gateway, memory.before + 2 * 17)
                await model.work_off(1)
                assert (await call).status_code == 200
            after = await settled(gateway, memory.before * 1.2)
            tell(path, memory, held, after)
            assert memory.grown < 130
            assert held <= memory.before + 2 * 17
            assert after <= memory.before * 1.2


READERS = 12
PIECES, PIECE = 240, 60_000


async def test_readers_who_do_not_read_hold_a_page_each(gateway: GatewayProcess) -> None:
    """A log of 14 MB and a dozen readers, who stop reading, and then read all of it at once."""
    async with http_client(gateway.url, timeout=120) as http, worker_v2(gateway.ws, "m") as worker:
        asked = await http.post("/api/openai", json={"model": "m", "async": True})
        task_id = asked.json()["taskId"]
        task = await worker.skip_to("task")
        await worker.ack(task)
        for number in range(PIECES):
            await worker.chunk(task, f"{number:06d}" * (PIECE // 6), number + 1)
            if number % 20 == 19:
                await worker.nothing_more(task)
        await worker.answer(task, None, lastSeq=PIECES)
        await worker.skip_to("resultAck")
        path = f"/api/task/{task_id}/events"
        async with watched(gateway.pid) as memory, contextlib.AsyncExitStack() as stack:
            streams = []
            for _ in range(READERS):
                stream = await RawStream.open(gateway.url, path, receive_buffer=4096)
                streams.append(await stack.enter_async_context(stream))
            await standing(gateway)
            stalled = await settled(gateway, memory.before + READERS * 4)
            texts = await asyncio.gather(*(stream.drain() for stream in streams))
        assert len(set(texts)) == 1
        assert b'000239","usage":' in texts[0][1][-100:], "the result, made of the chunks"
        after = await settled(gateway, memory.before * 1.2)
        tell("readers", memory, stalled, after)
        assert stalled < memory.before + READERS * 4
        assert memory.grown < READERS * (4 + 2 * 14), (
            "and the result, which each of them gets whole at the end"
        )
        assert after <= memory.before * 1.2
