"""Connections: who may connect, how they end, and that an end of whatever kind harms nobody else."""

import asyncio
import contextlib
import hashlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import tests.support.serving
import websockets
from structlog.testing import capture_logs
from tests.support.rawworkers import (
    LARGE,
    SUBPROTOCOL,
    Callers,
    RawWorker,
    after,
    bearer,
    bystander,
    callers_of,
    key,
    tune,
    until_workers,
    worker_v1,
    worker_v2,
)
from tests.support.serving import Served, serving, until
from tests.support.talk import Talk
from websockets.asyncio.client import connect

from fairlane.gateway.serve.server import make_server

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]


def sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


KEYS = {
    "keys": [{"id": "caller", "sha256": sha256("ck-secret")}],
    "workers": [
        {"id": "gpu", "sha256": sha256("wk-secret")},
        {"id": "limited", "sha256": sha256("wk-limited"), "models": ["m", "n"]},
    ],
}


@pytest.fixture
async def guarded(start: Start) -> AsyncIterator[Served]:
    async with start(**KEYS) as talk:
        yield talk.served


async def handshake(url: str, **options: Any) -> websockets.Response:
    """The answer that refuses a handshake."""
    with pytest.raises(websockets.InvalidStatus) as error:
        async with connect(url, proxy=None, **options):
            pass
    return error.value.response


# ---- tokens ----------


@pytest.mark.parametrize("subprotocols", [None, [websockets.Subprotocol(SUBPROTOCOL)]], ids=["v1", "v2"])
@pytest.mark.parametrize(
    "headers",
    [{}, bearer("wrong"), bearer("ck-secret"), {"Authorization": "Basic d2stc2VjcmV0"}, bearer("")],
    ids=["none", "wrong", "a caller's key", "basic", "empty"],
)
@pytest.mark.shared
async def test_without_a_workers_token_the_handshake_is_refused(
    guarded: Served, headers: dict[str, str], subprotocols: Any
) -> None:
    with capture_logs() as lines:
        response = await handshake(guarded.ws, additional_headers=headers, subprotocols=subprotocols)
    told = [(line["event"], line["route"], line["address"]) for line in lines if "route" in line]
    assert told == [("call with an unknown key", "/ws", "127.0.0.1")] * bool(headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert "token" in json.loads(response.body)["error"]
    assert len(guarded.gateway.dispatcher.pool) == 0


@pytest.mark.shared
async def test_a_token_in_the_query_is_not_taken(guarded: Served) -> None:
    assert (await handshake(guarded.ws + "?token=wk-secret")).status_code == 401


@pytest.mark.shared
async def test_a_workers_token_does_not_open_the_callers_side(guarded: Served) -> None:
    async with callers_of(guarded, **bearer("wk-secret")) as callers:
        assert (await callers.client.post("/api/openai", json={})).status_code == 401


@pytest.mark.shared
async def test_a_web_page_with_a_token_is_refused_all_the_same(guarded: Served) -> None:
    response = await handshake(
        guarded.ws, additional_headers=bearer("wk-secret"), origin=websockets.Origin("https://page.example")
    )
    assert response.status_code == 403


@pytest.mark.shared
async def test_with_the_token_both_versions_may_work(guarded: Served) -> None:
    async with callers_of(guarded, **bearer("ck-secret")) as callers:
        async with worker_v1(guarded.ws, token="wk-secret") as worker:
            answer = callers.ask()
            await worker.answer(await worker.recv(), 1)
            assert await answer.ok() == 1
        await until_workers(guarded, 0)
        async with worker_v2(guarded.ws, token="wk-secret") as worker:
            answer = callers.ask()
            await worker.answer(await worker.expect("task"), 2, lastSeq=0)
            assert await answer.ok() == 2


@pytest.mark.shared
async def test_a_token_for_some_models_offers_only_those(guarded: Served) -> None:
    async with (
        callers_of(guarded, **bearer("ck-secret")) as callers,
        worker_v2(guarded.ws, "*", token="wk-limited", instance="a"),
        worker_v2(guarded.ws, "n", "other", token="wk-limited", instance="b"),
        worker_v1(guarded.ws, token="wk-limited"),
    ):
        await until_workers(guarded, 3)
        offered = sorted(worker.models for worker in guarded.gateway.dispatcher.pool)
        assert offered == [("m", "n"), ("m", "n"), ("n",)]
        response = await callers.client.post("/api/openai", json={"model": "other"})
        assert response.status_code == 503


@pytest.mark.shared
async def test_a_token_for_none_of_the_models_is_told_so_and_closed(guarded: Served) -> None:
    async with worker_v2(guarded.ws, register=False, token="wk-limited") as worker:
        await worker.send("register", protocols=[2], instanceId="i", name="n", models=["other"])
        await worker.expect("error", code="MODELS", fatal=True)
        assert await worker.closed() == 4400


@pytest.mark.parametrize("version", [1, 2])
async def test_a_token_that_is_taken_away_closes_its_connections(guarded: Served, version: int) -> None:
    gateway = guarded.gateway
    async with (
        callers_of(guarded, **bearer("ck-secret")) as callers,
        worker_v2(guarded.ws, "m", token="wk-limited", instance="stays") as stays,
    ):
        make: Any = (
            worker_v1(guarded.ws, token="wk-secret")
            if version == 1
            else worker_v2(guarded.ws, "n", token="wk-secret")
        )
        async with make as worker:
            await until_workers(guarded, 2)
            changed = gateway.current.settings.model_copy(
                update={"workers": gateway.current.settings.workers[1:]}
            )
            await gateway.reconfigure(changed)
            assert await worker.closed() == 4401
        answer = callers.ask()
        await stays.answer(await stays.expect("task"), "goes on", lastSeq=0)
        assert await answer.ok() == "goes on"
    assert (await handshake(guarded.ws, additional_headers=bearer("wk-secret"))).status_code == 401


@pytest.mark.shared
async def test_the_same_instance_id_with_another_token_replaces_nobody(guarded: Served) -> None:
    async with (
        worker_v2(guarded.ws, "n", token="wk-secret", instance="same") as worker,
        worker_v2(guarded.ws, "m", token="wk-limited", instance="same"),
    ):
        await until_workers(guarded, 2)
        await worker.nothing_more()


# ---- registering ----------


async def test_a_worker_that_does_not_register_in_time_is_closed(served: Served) -> None:
    tune(served, register_ms=100)
    async with worker_v2(served.ws, register=False) as worker:
        assert await worker.closed() == 4400


@pytest.mark.parametrize("first", ['{"type":"heartbeat"}', "garbage"], ids=["another frame", "garbage"])
@pytest.mark.shared
async def test_the_first_frame_must_be_register(served: Served, first: str) -> None:
    async with worker_v2(served.ws, register=False) as worker:
        await worker.text(first)
        await worker.expect("error")
        assert await worker.closed() == 4400


@pytest.mark.shared
async def test_without_a_common_version_the_connection_is_closed(served: Served) -> None:
    async with worker_v2(served.ws, register=False) as worker:
        await worker.send("register", protocols=[3, 4], instanceId="i", name="n", models=["m"])
        await worker.expect("error", code="VERSION", fatal=True)
        assert await worker.closed() == 4426


@pytest.mark.shared
async def test_of_several_versions_the_common_one_is_taken(served: Served) -> None:
    async with worker_v2(served.ws, register=False) as worker:
        await worker.send("register", protocols=[3, 2], instanceId="i", name="n", models=["m"])
        await worker.expect("registered", protocol=2)


@pytest.mark.parametrize(
    "fields",
    [{"slots": 0}, {"slots": 1025}, {"models": []}, {"models": [""]}, {"instanceId": ""}, {"name": 5}],
    ids=json.dumps,
)
@pytest.mark.shared
async def test_a_register_with_impossible_fields_is_refused(served: Served, fields: dict[str, Any]) -> None:
    async with worker_v2(served.ws, register=False) as worker:
        frame = {"protocols": [2], "instanceId": "i", "name": "n", "models": ["m"], **fields}
        await worker.send("register", **frame)
        await worker.expect("error", code="INVALID_MESSAGE", fatal=True)
        assert await worker.closed() == 4400
    assert len(served.gateway.dispatcher.pool) == 0


# ---- connections that break ----------


class Wire:
    """A TCP proxy in front of a gateway that can be cut, or go dead without a word."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._alive = asyncio.Event()
        self._alive.set()
        self.url = ""

    async def __aenter__(self) -> "Wire":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/ws"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._writers += [writer, back]
        for source, sink in ((reader, back), (there, writer)):
            self._tasks.add(asyncio.create_task(self._copy(source, sink)))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self._alive.wait()
                sink.write(data)
                await sink.drain()
            sink.close()

    def go_dead(self) -> None:
        """Nothing passes any more, and nobody is told."""
        self._alive.clear()

    def cut(self) -> None:
        """Reset the connections (RST), in the middle of whatever is under way."""
        for writer in self._writers:
            link = writer.get_extra_info("socket")
            if link is not None and link.fileno() >= 0:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._writers.clear()


async def tried_elsewhere(served: Served, callers: Callers, lost: RawWorker, how: Any) -> None:
    """A task on `lost` is finished by another worker when its connection ends by `how`."""
    answer = callers.ask(timeout=14_000)
    task = await lost.expect("task")
    await lost.ack(task)
    async with worker_v2(served.ws, instance="other") as other:
        how()
        again = await other.expect("task", taskId=task["taskId"], attempt=after(task))
        await other.answer(again, "elsewhere", lastSeq=0)
        assert await answer.ok() == "elsewhere"


async def test_a_connection_that_is_reset_in_the_middle_of_a_frame_harms_nobody(
    served: Served, callers: Callers
) -> None:
    async with bystander(served, callers), worker_v2(served.ws, instance="lost") as worker:

        def break_off() -> None:
            head = struct.pack("!BBH4s", 0x81, 0x80 | 126, 1000, b"mask")  # announces 1000 bytes
            worker.ws.transport.write(head + b"only a few")
            worker.ws.transport.abort()

        await tried_elsewhere(served, callers, worker, break_off)


async def test_a_peer_that_vanished_without_a_word_is_noticed(served: Served, callers: Callers) -> None:
    async with (
        bystander(served, callers),
        Wire(served.ws) as wire,
        worker_v2(wire.url, instance="lost") as worker,
    ):

        def vanish() -> None:
            wire.go_dead()
            (mine,) = [w for w in served.gateway.dispatcher.pool if w.instance_id == "lost"]
            mine.heard_at -= 20  # as if it had been silent for so long

        await tried_elsewhere(served, callers, worker, vanish)
        wire.cut()


async def test_a_version_1_peer_that_vanished_is_noticed_by_pings(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(*args: Any) -> Any:
        server = make_server(*args)
        server.config.ws_ping_interval = server.config.ws_ping_timeout = 0.5
        return server

    monkeypatch.setattr(tests.support.serving, "make_server", impatient)
    async with (
        serving(redis_url, tmp_path) as served,
        callers_of(served) as callers,
        Wire(served.ws) as wire,
        worker_v1(wire.url, ping_interval=None) as worker,
    ):
        answer = callers.ask()
        task = await worker.recv()
        with capture_logs() as lines:
            wire.go_dead()
            assert (await answer.error("WORKER_LOST"))["taskId"] == task["taskId"]
            await until_workers(served, 0)
        wire.cut()
        [gone] = [line for line in lines if line["event"] == "worker disconnected"]
        assert (gone["log_level"], gone["code"], gone["tasks"]) == ("warning", 1011, 1)
        assert gone["reason"].startswith("no answer to a ping for 0.5 s")


async def test_a_worker_that_does_not_read_is_given_up(served: Served, callers: Callers) -> None:
    tune(served, send_ms=300, ack_ms=1500)
    async with (
        bystander(served, callers),
        Wire(served.ws) as wire,
        worker_v2(wire.url, instance="stuck", limits=LARGE) as stuck,
    ):
        await stuck.nothing_more()
        async with worker_v2(served.ws, instance="other", limits=LARGE) as other:
            await until_workers(served, 3)
            wire.go_dead()
            answer = callers.ask(text="x" * (15 << 20))  # stuck was first: it is its turn
            running = served.gateway.dispatcher.attempts
            await until(lambda: any(a.worker.instance_id == "other" for a in running.values()), "a retry")
            tune(served, ack_ms=5000)
            task = await other.expect("task")
            assert len(task["payload"]["text"]) == 15 << 20
            await other.answer(task, "elsewhere", lastSeq=0)
            assert await answer.ok() == "elsewhere"
            await until_workers(served, 2)
        wire.cut()


async def test_a_result_that_was_not_acknowledged_is_sent_again_and_answered(
    served: Served, callers: Callers
) -> None:
    async with worker_v2(served.ws, instance="same") as worker:
        task_id = await callers.later()
        task = await worker.expect("task")
        await worker.ack(task)
        worker.ws.transport.abort()
    await callers.until_status(task_id, "queued")
    async with worker_v2(served.ws, instance="same") as worker:
        again = await worker.expect("task", taskId=task_id, attempt=after(task))
        await worker.answer(task, "of the first connection", lastSeq=0)
        await worker.expect("resultAck", **key(task), status="stale")
        await worker.answer(again, "of the second", lastSeq=0)
        await worker.expect("resultAck", **key(again), status="accepted")
        assert (await callers.status(task_id))["result"] == "of the second"
    async with worker_v2(served.ws, instance="same") as worker:
        await worker.answer(again, "of the second", lastSeq=0)
        await worker.expect("resultAck", **key(again), status="unknown")
        assert (await callers.status(task_id))["result"] == "of the second"


async def test_a_worker_that_closes_in_order_loses_its_task_to_another(
    served: Served, callers: Callers
) -> None:
    answer = None
    async with worker_v2(served.ws, instance="a") as worker:
        answer = callers.ask()
        task = await worker.expect("task")
        async with worker_v2(served.ws, instance="b") as other:
            await worker.ws.close()
            again = await other.expect("task", taskId=task["taskId"], attempt=after(task))
            await other.answer(again, 1, lastSeq=0)
            assert await answer.ok() == 1
