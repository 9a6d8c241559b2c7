"""One run: everything is started, callers ask for a while, and the target tells what it saw."""

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from tests.support.databases import place_database
from tests.support.nginx import in_front_of, nginx
from tests.support.processes import GatewayProcess, process
from tests.support.servers import free_port, running_server
from tests.support.serving import http_client, until
from tests.windows.callers import Asking, Permitted, Session, Way, calling
from tests.windows.report import Report, Seen

from fairlane.gateway.database.address import FILE
from fairlane.queues.windows import read_windows

MODEL = "target"
START_S = 60.0


@dataclass(frozen=True)
class Size:
    """How much is asked, for how long, under which windows, how long the target takes to answer, and how often one of the
    gateways is killed meanwhile, and started again. `endpoint`: the target is one; HTTP workers make half of the calls, and half
    are made with permits, through nginx. `margin_ms`: the gateways are told windows that are so much longer.
    """

    windows: str = "50/1s"
    callers: int = 500
    seconds: float = 60.0
    answer_ms: int = 150
    kills: int = 0
    endpoint: bool = False
    margin_ms: int = 0

    @property
    def told(self) -> str:
        """The windows that gateways are told."""
        return ", ".join(f"{w.requests}/{w.ms + self.margin_ms}ms" for w in read_windows(self.windows))


async def measure(folder: Path, size: Size) -> Report:
    """What came of it."""
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(running_server())
        port = await stack.enter_async_context(_target(size.answer_ms))
        gateways = await stack.enter_async_context(_gateways(folder, server.url, port, size))
        ways: list[Way] = [_calls]
        if size.endpoint:
            proxy = await stack.enter_async_context(_proxy(folder / "nginx", port, gateways))
            ways = [functools.partial(_made_for, port), functools.partial(_permitted, proxy)]
        else:
            for gateway in gateways:
                arguments = ("-m", "tests.windows.worker", gateway.url, MODEL, str(port))
                await stack.enter_async_context(process(*arguments, stderr=None))
        await _until(
            gateways[0], lambda state: len(state["workers"]) == len(gateways), "the workers to be there"
        )
        callers = await stack.enter_async_context(calling([g.port for g in gateways], ways, size.callers))
        most = size.callers - 2 * _at_once(size)
        await _until(gateways[0], lambda state: state["counts"]["queued"] >= most, "callers to wait")
        begin_us = time.monotonic_ns() // 1000
        for _ in range(size.kills):
            await asyncio.sleep(size.seconds / (size.kills + 1))
            await gateways[-1].kill()
            await gateways[-1].start()
        await asyncio.sleep(size.seconds / (size.kills + 1))
        end_us = time.monotonic_ns() // 1000
        seen = await _seen(port)
        measured = [request for request in seen if begin_us <= request.at_us < end_us]
        wrong = [*callers.wrong, *(["connections were lost"] if callers.lost and not size.kills else [])]
        return Report(read_windows(size.windows), seen, measured, wrong)


def _calls(port: int, user: str) -> Session:
    """By the workers of a model."""
    return Asking(port, {"type": "call", "model": MODEL, "payload": {"user": user}}, user)


def _made_for(target: int, port: int, user: str) -> Session:
    """By the HTTP workers of an endpoint."""
    request = {
        "url": f"http://127.0.0.1:{target}/call",
        "method": "GET",
        "headers": {"X-User": f"{user}/calls"},
    }
    return Asking(port, {"type": "http", **request}, user)


def _permitted(proxy: int, port: int, user: str) -> Session:
    """With permits for an endpoint."""
    return Permitted(port, {"type": "permit", "endpoint": MODEL}, user, proxy, f"{user}/permits")


@contextlib.asynccontextmanager
async def _proxy(folder: Path, behind: int, gateways: Sequence[GatewayProcess]) -> AsyncIterator[int]:
    """nginx in front of the target; its port."""
    port = free_port()
    addresses = [f"127.0.0.1:{gateway.port}" for gateway in gateways]
    async with nginx(_made(folder), in_front_of(behind, port, addresses, MODEL)), http_client() as http:

        async def ready() -> bool:
            with contextlib.suppress(httpx2.TransportError):
                return (await http.get(f"http://127.0.0.1:{port}/")).status_code == 403
            return False

        await until(ready, "nginx to answer", START_S)
        yield port


def _at_once(size: Size) -> int:
    """How many callers may be without a waiting task: what the smallest window holds."""
    return min(window.requests for window in read_windows(size.windows))


@contextlib.asynccontextmanager
async def _target(answer_ms: int) -> AsyncIterator[int]:
    async with process("-m", "tests.windows.target", str(answer_ms), stderr=None) as child:
        assert child.stdout is not None
        async with asyncio.timeout(START_S):
            port = int(await child.stdout.readline())
        yield port


@contextlib.asynccontextmanager
async def _gateways(
    folder: Path, redis_url: str, target: int, size: Size
) -> AsyncIterator[list[GatewayProcess]]:
    place_database(folder / "shared")
    endpoint = {
        "url": f"http://127.0.0.1:{target}/*",
        "methods": ["GET"],
        "headers": ["X-User"],
        "allow_private": ["127.0.0.0/8"],
        "windows": size.told,
    }
    model = {"windows": size.told, "cost": "requests"}
    settings = {
        **({"endpoints": {MODEL: endpoint}} if size.endpoint else {"models": {MODEL: model}}),
        "database_url": f"sqlite:///{folder}/shared/{FILE}",
        "max_queue_length": 10 * size.callers,
        "drain_ms": 0,
    }
    gateways = [GatewayProcess(_made(folder / name), redis_url, **settings) for name in ("a", "b")]
    async with contextlib.AsyncExitStack() as stack:
        for gateway in gateways:
            stack.push_async_callback(gateway.stop)
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        yield gateways


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


async def _until(gateway: GatewayProcess, is_so: Callable[[dict[str, Any]], bool], what: str) -> None:
    async with http_client() as http:

        async def so() -> bool:
            return is_so((await http.get(f"{gateway.url}/api/admin/overview")).json())

        await until(so, what, START_S)


async def _seen(port: int) -> list[Seen]:
    async with http_client() as http:
        answer = await http.get(f"http://127.0.0.1:{port}/seen")
    seen = ((at, *who.partition("/")) for at, who in json.loads(answer.content))
    return sorted((Seen(at, user, way) for at, user, _, way in seen), key=lambda one: one.at_us)
