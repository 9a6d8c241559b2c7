"""Fixtures: one gateway for all these tests, in a thread of its own, with a worker that answers everything at once."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests.support.rawworkers import fitting
from tests.support.servers import running_server
from tests.support.serving import NO_TLS
from tests.support.talk import talking

MAX_BODY = 1 << 19


class Background:
    """A gateway and its worker in another thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway")
        self.url = ""

    def __enter__(self) -> "Background":
        self._thread.start()
        assert self._ready.wait(20), "the gateway did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        with running_server() as redis:
            async with (
                talking(redis.url, self._directory, max_body_bytes=MAX_BODY) as talk,
                talk.worker() as worker,
            ):

                async def answer() -> None:
                    while True:
                        task = await worker.recv(None)
                        await worker.answer(task, fitting(task))

                talk.later(answer())
                self.url = talk.served.url
                self._ready.set()
                await self._stop.wait()


@pytest.fixture(scope="package")
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    with Background(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="package")
def http(background: Background) -> Iterator[httpx2.Client]:
    """A caller."""
    with httpx2.Client(base_url=background.url, timeout=15, trust_env=False, verify=NO_TLS) as client:
        yield client
