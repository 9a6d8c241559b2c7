"""How many connections there may be, who makes room for whom, and who is told."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.connections.keys import ADMIN, KEYS, WORKER
from tests.support.processes import GatewayProcess
from tests.support.rawhttp import HEALTH, Caller, request
from tests.support.serving import http_client, until
from tests.support.talk import talking
from websockets.asyncio.client import connect

from fairlane.gateway.connections import lines

pytestmark = pytest.mark.anyio


class FewFiles(GatewayProcess):
    """A gateway that may open few files."""

    files = 256


def numbers(text: str, name: str) -> dict[str, float]:
    """The samples of a metric, by their labels."""
    found = {}
    for line in text.splitlines():
        if line.startswith(name):
            key, _, value = line.removeprefix(name).rpartition(" ")
            found[key] = float(value)
    return found


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.slow
async def test_sockets_that_wait_lock_nobody_out_where_few_files_may_be_open(
    redis_url: str, tmp_path: Path
) -> None:
    gateway = FewFiles(tmp_path, redis_url)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        workers = [await stack.enter_async_context(connect(gateway.ws, proxy=None)) for _ in range(3)]

        def crowd() -> list[Caller]:
            silent = [Caller(gateway.url) for _ in range(100)]
            idle = [Caller(gateway.url) for _ in range(100)]
            slow = [Caller(gateway.url) for _ in range(100)]
            for caller in idle:
                caller.send(HEALTH + b"\n")
            for caller in slow:
                caller.send(HEALTH[:-2])
            return silent + idle + slow

        crowded = await asyncio.to_thread(crowd)
        for caller in crowded:
            stack.callback(caller.close)

        async def work(worker: Any) -> None:
            task = json.loads(await worker.recv())
            await worker.send(json.dumps({"type": "taskResult", "taskId": task["taskId"], "result": {}}))

        async with http_client(gateway.url) as http:
            assert (await http.get("/livez")).status_code == 200
            for worker in workers:
                working = asyncio.create_task(work(worker))
                assert (await http.post("/api/openai", json={})).status_code == 200
                await working
            async with connect(gateway.ws, proxy=None):
                said = (await http.get("/metrics")).text
        assert numbers(said, "fairlane_connections_limit")['{process="0"}'] == 192
        assert numbers(said, "fairlane_connections{")['process="0"}'] <= 192
        assert sum(numbers(said, "fairlane_connections_refused_total").values()) >= 100
        assert gateway.log.count("too many connections") == 1


@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_more_connections_than_files_is_an_error_that_says_what_to_do(
    redis_url: str, tmp_path: Path
) -> None:
    gateway = FewFiles(tmp_path, redis_url, max_connections=1000)
    gateway.launch()
    assert await gateway.ended() == 1
    assert "ulimit -n" in gateway.log
    assert "max_connections is 1000" in gateway.log
    assert "Traceback" not in gateway.log


async def test_what_is_left_is_kept_for_workers_and_operators(redis_url: str, tmp_path: Path) -> None:

    async with (
        talking(redis_url, tmp_path, max_connections=16, keepalive_ms=50, **KEYS) as talk,
        talk.worker(WORKER) as worker,
        contextlib.AsyncExitStack() as stack,
    ):
        connections = talk.served.gateway.connections
        stream = request("POST", "/api/openai", {"Authorization": "Bearer ann"}, body=b'{"stream":true}')
        callers = [stack.enter_context(Caller(talk.served.url)) for _ in range(13)]
        for caller in callers:
            caller.send(stream)
            assert b" 200 " in await asyncio.to_thread(caller.until, b"\r\n\r\n")
        assert len(connections.open) == 14  # with the worker: all that callers may have

        def late(data: bytes) -> tuple[int, bytes]:
            with Caller(talk.served.url) as caller:
                status, head, _ = caller.ask(data)
                assert caller.some() == b""  # and it is over
                return status, head.lower()

        for path in ("/api/openai", "/v1/chat/completions"):
            data = request("POST", path, {"Authorization": "Bearer ann"}, body=b'{"model":"m","messages":[]}')
            status, head = await asyncio.to_thread(late, data)
            assert (status, b"retry-after: 1\r\n" in head) == (503, True)
        operator = {"Authorization": f"Bearer {ADMIN}"}
        for path in ("/livez", "/metrics", "/api/admin/state", "/api/caller", "/dashboard"):
            status, _ = await asyncio.to_thread(late, request("GET", path, operator))
            assert status == 200, path
        async with talk.worker(WORKER):
            assert len(connections.open) == 15
            for caller in callers[:2]:
                caller.close()
            await until(lambda: len(connections.open) == 13, "two to leave")
        await worker.take()
        said = talk.served.gateway.metrics.refused_connections.values
        assert said == {("caller",): 2}


async def test_idle_connections_make_room_and_answers_under_way_do_not(
    redis_url: str, tmp_path: Path
) -> None:
    async with (
        talking(redis_url, tmp_path, max_connections=16) as talk,
        talk.worker() as worker,
        contextlib.AsyncExitStack() as stack,
    ):

        def callers(number: int, data: bytes) -> list[Caller]:
            made = [stack.enter_context(Caller(talk.served.url)) for _ in range(number)]
            for caller in made:
                caller.send(data)
            return made

        def still_open(made: Sequence[Caller]) -> int:
            return sum(caller.open() for caller in made)

        (busy,) = callers(1, request("POST", "/api/openai", body=b"{}"))
        task = await worker.take()
        idle = callers(10, HEALTH)
        for caller in idle:
            assert (await asyncio.to_thread(caller.answer))[0] == 200
        connections = talk.served.gateway.connections
        await until(lambda: len(connections.idle) == 10, "ten idle connections")
        silent = callers(30, b"")
        await until(lambda: still_open(idle) == 0, "the idle ones to make room")
        await until(lambda: still_open(silent) <= 13, "the oldest silent ones to make room")
        assert silent[-1].open()
        await worker.answer(task, {"fine": True})
        assert (await asyncio.to_thread(busy.answer))[0] == 200


async def test_one_address_has_a_limit_where_one_is_set(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        talking(redis_url, tmp_path, max_connections_per_address=5) as talk,
        talk.worker(),
        talk.worker(),
        contextlib.AsyncExitStack() as stack,
    ):

        def ask() -> list[bytes]:
            callers = [stack.enter_context(Caller(talk.served.url)) for _ in range(5)]
            assert [caller.ask(HEALTH)[0] for caller in callers] == [200] * 5
            one_more = stack.enter_context(Caller(talk.served.url))
            return [callers[0].ask(HEALTH)[1], one_more.rest()]

        kept, refused = await asyncio.to_thread(ask)
        assert b" 200 " in kept
        assert refused.startswith(b"HTTP/1.1 503 ")
        await stack.aclose()
        await until(lambda: len(talk.served.gateway.connections.open) == 2, "the callers to be gone")
        with Caller(talk.served.url) as caller:
            assert (await asyncio.to_thread(caller.ask, HEALTH))[0] == 200
        assert talk.served.gateway.metrics.refused_connections.values == {("address",): 1}


async def test_the_log_says_once_a_minute_how_many_were_turned_away(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lines, "TICK_S", 3600)
    async with talking(redis_url, tmp_path, max_connections=16) as talk:
        connections = talk.served.gateway.connections
        for _ in range(50):
            connections.refused("address", 1000.0)
        assert capsys.readouterr().out.count("too many connections") == 1
        connections.sweep(1000.0 + lines.TELL_S)
        said = capsys.readouterr().out
        assert said.count("too many connections") == 1
        assert "'address': 49" in said
        connections.sweep(1000.0 + 3 * lines.TELL_S)
        assert capsys.readouterr().out == ""
