"""No window of a model holds more requests than its limit, at the target, over two gateways, also when one is killed."""

import asyncio
import bisect
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import GatewayProcess, process
from tests.support.servers import running_server
from tests.support.serving import http_client, until
from tests.windows.wire import Line, post

from fairlane.queues.windows import Window, read_windows

MODEL = "target"
SECONDS = float(os.environ.get("FAIRLANE_SECONDS", "0"))
"""How long to measure; 0: a short run with small windows."""
WINDOWS, CALLERS = ("50/1s", 500) if SECONDS else ("10/200ms, 80/2s", 160)
SHORT_S = 5.0
ANSWER_MS = "150"
CALL_MS = 120_000
START_S = 60.0
RETRY_DELAY_S = 0.5
USERS = ["floods", "user-1", "floods", "user-2", "floods", "user-3", "floods", "user-4", "floods", "user-5"]

Seen = tuple[int, str]
"""A request that the target got: when (us), and for which user."""


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kills", [0, 1], ids=["gateways that run", "a gateway that is killed"])
def test_a_target_never_sees_more_requests_than_its_windows_allow(tmp_path: Path, kills: int) -> None:
    seen, wrong = asyncio.run(measure(tmp_path, kills))
    assert not wrong
    assert {user for _, user in seen} == set(USERS)
    for window in read_windows(WINDOWS):
        fullest, used = most_within(seen, window), mean_within(seen, window)
        print(f"\nat most {fullest} of {window.requests} within {window.ms} ms, {used:.2f} on average")
        assert fullest <= window.requests
    print(dict(Counter(user for _, user in seen)))


def most_within(seen: list[Seen], window: Window) -> int:
    """Return the most requests within any such time."""
    instants = [at for at, _ in seen]
    return max(bisect.bisect_left(instants, at + 1000 * window.ms) - n for n, at in enumerate(instants))


def mean_within(seen: list[Seen], window: Window) -> float:
    """Return the mean number of requests within such a time, over whole windows, one after the other."""
    whole = (len(seen) - 1) // window.requests * window.requests
    return whole * 1000 * window.ms / (seen[whole][0] - seen[0][0])


async def measure(folder: Path, kills: int) -> tuple[list[Seen], list[str]]:
    """Return the requests that came while clients of all users waited, and the clients' wrong answers."""
    wrong: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(running_server())
        target = await stack.enter_async_context(
            process("-m", "tests.windows.target", ANSWER_MS, stderr=None)
        )
        assert target.stdout is not None
        port = int(await target.stdout.readline())
        gateways = await stack.enter_async_context(_gateways(folder, server.url))
        for gateway in gateways:
            arguments = ("-m", "tests.windows.worker", gateway.url, MODEL, str(port))
            await stack.enter_async_context(process(*arguments, stderr=None))
        await _until(gateways[0], lambda state: len(state["workers"]) == len(gateways), "the workers")
        ports = [gateway.port for gateway in gateways]
        await stack.enter_async_context(_clients(ports, wrong, survive=kills > 0))
        waiting = CALLERS - 2 * min(window.requests for window in read_windows(WINDOWS))
        await _until(gateways[0], lambda state: state["counts"]["queued"] >= waiting, "tasks to wait")
        begin_us = time.monotonic_ns() // 1000
        for _ in range(kills):
            await asyncio.sleep((SECONDS or SHORT_S) / (kills + 1))
            await gateways[-1].kill()
            await gateways[-1].start()
        await asyncio.sleep((SECONDS or SHORT_S) / (kills + 1))
        async with http_client() as http:
            answer = await http.get(f"http://127.0.0.1:{port}/seen")
    return sorted((at, user) for at, user in json.loads(answer.content) if at >= begin_us), wrong


@contextlib.asynccontextmanager
async def _clients(ports: list[int], wrong: list[str], *, survive: bool) -> AsyncIterator[None]:
    """Let clients of all users call at both gateways until the block ends. `survive`: they try again without their gateway."""

    async def call(port: int, user: str) -> None:
        body = {"type": "call", "model": MODEL, "payload": {"user": user}, "timeout": CALL_MS}
        request = post("/api/tasks", json.dumps(body).encode(), user)
        while True:
            with contextlib.suppress(*((OSError, EOFError) if survive else ())):
                line = await Line.open(port)
                try:
                    while True:
                        await line.send(request)
                        status, answer = await line.answer()
                        if status != 200:
                            wrong.append(f"{status} {answer[:200]!r}")
                            return
                finally:
                    line.close()
            await asyncio.sleep(RETRY_DELAY_S)

    calls = [call(ports[n // 2 % 2], USERS[n % len(USERS)]) for n in range(CALLERS)]
    running = [asyncio.create_task(one) for one in calls]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        ends = await asyncio.gather(*running, return_exceptions=True)
        wrong += [repr(end) for end in ends if isinstance(end, Exception)]


@contextlib.asynccontextmanager
async def _gateways(folder: Path, redis_url: str) -> AsyncIterator[list[GatewayProcess]]:
    settings = {
        "models": {MODEL: {"windows": WINDOWS, "cost": "requests"}},
        "max_queue_length": 10 * CALLERS,
        "drain_ms": 0,
    }
    async with contextlib.AsyncExitStack() as stack:
        gateways = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            gateways.append(GatewayProcess(folder / name, redis_url, **settings))
            stack.push_async_callback(gateways[-1].stop)
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        yield gateways


async def _until(gateway: GatewayProcess, is_so: Callable[[dict[str, Any]], bool], what: str) -> None:
    async with http_client() as http:

        async def so() -> bool:
            return is_so((await http.get(f"{gateway.url}/api/admin/overview")).json())

        await until(so, what, START_S)
