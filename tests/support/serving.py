"""Gateways for tests: in this process (fast, inspectable) on a real port, with a real Redis."""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn.server
from tests.support.databases import place_database

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.runtime import Gateway, open_gateway
from fairlane.gateway.serve.server import make_server
from fairlane.gateway.settings import Settings, WorkerKey
from fairlane.gateway.settings.parts import TuningSettings

DEADLINE_S = 15.0
POOLS = int(os.environ.get("FAIRLANE_TEST_POOLS", "1"))
"""Pools of gateways in tests that set no number."""
WORKER_TOKEN = "the-token-of-the-tests-workers"
"""What workers of tests present. A gateway of `serving` with keys takes it, unless it is given `workers` of its own."""

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""What httpx2's clients need not make for plain HTTP: one that has read the certificates of all authorities takes them 20 ms."""


class _Hasty:
    """asyncio for uvicorn's server, which asks so seldom whether all have gone that tests wait."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


uvicorn.server.asyncio = _Hasty()  # type: ignore[assignment]


def http_client(url: str = "", **options: Any) -> httpx2.AsyncClient:
    """A caller of a gateway at `url`."""
    options = {"timeout": DEADLINE_S, "trust_env": False, "verify": NO_TLS, **options}
    return httpx2.AsyncClient(base_url=url, **options)


@dataclass
class Served:
    """A gateway that answers at `url`; workers connect to `ws`."""

    gateway: Gateway
    url: str
    ws: str


def tuned(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with those of `tuning` in their place."""
    tuning = {name: value for name, value in settings.items() if name in TuningSettings.model_fields}
    rest = {name: value for name, value in settings.items() if name not in tuning}
    return {**rest, "tuning": tuning} if tuning else rest


@contextlib.asynccontextmanager
async def serving(redis_url: str | list[str], tmp_path: Path, **overrides: Any) -> AsyncIterator[Served]:
    """A gateway in this process on a free port, with settings on top of the defaults."""
    if overrides.get("keys"):
        overrides.setdefault("workers", [WorkerKey(id="tests", sha256=digest(WORKER_TOKEN))])
    overrides.setdefault("pools", POOLS)
    given = {"port": 0, "data_dir": tmp_path, "redis_url": redis_url, "drain_ms": 200, **tuned(overrides)}
    settings = Settings(**given)
    if settings.database_url is None:
        place_database(settings.data_dir)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # for TCP_NODELAY
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with contextlib.closing(listener):  # whoever does not start leaves it
        async with open_gateway(settings, settings.redis_urls) as gateway:
            server = make_server(gateway, settings)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                await until(lambda: server.started)
                yield Served(gateway, f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}/ws")
            finally:
                server.end()
                await task


async def until(
    condition: Callable[[], bool | Awaitable[bool]],
    what: str = "the condition",
    deadline_s: float = DEADLINE_S,
) -> None:
    """Wait for a state; fails after the deadline with what was waited for. The longer it takes the less often it looks."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        value = condition()
        if (await value) if isinstance(value, Awaitable) else value:
            return
        waited_s = loop.time() - begun
        if waited_s > deadline_s:
            raise AssertionError(f"waited {deadline_s} s in vain for {what}")
        await asyncio.sleep(min(max(waited_s / 10, 0.01), 0.1))
