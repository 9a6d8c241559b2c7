"""A gateway on a real port with the cast behind it, and official SDKs in front."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from tests.support.processes import NO_PROXIES, process
from tests.support.serving import DEADLINE_S, NO_TLS, Served, http_client, serving, until

from .cast import Cast

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


class Stage:
    """What a test sees: the cast, the gateway's address, and work beside the test that ends with it."""

    def __init__(self, served: Served, cast: Cast, key: str) -> None:
        self.served = served
        self.cast = cast
        self._headers = {"Authorization": f"Bearer {key}"}
        self.base_url = f"{served.url}/v1"
        self._beside: list[asyncio.Task[Any]] = []

    def beside(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it beside the test; cancelled when the test ends."""
        task = asyncio.create_task(work)
        self._beside.append(task)
        return task

    async def fill(self, model: str = "patient", stream: bool = False) -> None:
        """One more call for `model`, whose answer nobody looks at."""
        async with self._http(DEADLINE_S * 4) as http:
            body = {"model": model, "messages": MESSAGES, "stream": stream}
            await http.post("/v1/chat/completions", json=body)

    def _http(self, timeout_s: float = DEADLINE_S) -> httpx.AsyncClient:
        return http_client(self.served.url, headers=self._headers, timeout=timeout_s)

    async def queued(self, number: int) -> None:
        """Return when so many tasks wait."""
        async with self._http() as http:

            async def there() -> bool:
                counts = (await http.get("/api/admin/state")).json()["counts"]
                return bool(counts["queued"] == number)

            await until(there, f"{number} queued tasks")

    async def offered(self, models: list[str]) -> None:
        """Return when callers can see these models."""
        async with self._http() as http:

            async def there() -> bool:
                data = (await http.get("/v1/models")).json()["data"]
                return {model["id"] for model in data} >= set(models)

            await until(there, "the worker's models")

    async def reached(self, event: asyncio.Event, what: str) -> None:
        await until(event.is_set, what)

    async def close(self) -> None:
        self.cast.release.set()
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)


@contextlib.asynccontextmanager
async def staged(
    redis_url: str, tmp_path: Path, slots: int = 4, key: str = "none", **settings: Any
) -> AsyncIterator[Stage]:
    """A gateway with these settings whose models are the cast's; `key` is one that sees them."""
    cast = Cast()
    async with serving(redis_url, tmp_path, **settings) as served:
        worker = cast.worker(served.url, slots)
        stop = asyncio.Event()
        working = asyncio.create_task(worker.serve(stop, stop))
        stage = Stage(served, cast, key)
        try:
            await stage.offered(worker.registry.models)
            yield stage
        finally:
            await stage.close()
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                await working


# ---- openai-python, sync and async alike ----------


class Sdk(Protocol):
    """One of the two Python clients; `statuses` are those of all HTTP answers it got."""

    statuses: list[int]

    async def call(self, path: str, **arguments: Any) -> Any:
        """What `client.<path>(…)` returns."""
        ...

    async def chunks(self, path: str, **arguments: Any) -> list[Any]:
        """All items of a stream."""
        ...

    async def helper(self, **arguments: Any) -> tuple[list[Any], Any]:
        """The events and the final completion of `chat.completions.stream()`."""
        ...

    async def leave(self, **arguments: Any) -> str:
        """The first text of a chat stream, which is closed then."""
        ...

    async def close(self) -> None: ...


OnStatus = Callable[[int], None]


class AsyncSdk:
    def __init__(self, base_url: str, on_status: OnStatus, **options: Any) -> None:
        self.statuses: list[int] = []

        async def hook(response: Any) -> None:
            self.statuses.append(response.status_code)
            on_status(response.status_code)

        http = DefaultAsyncHttpxClient(event_hooks={"response": [hook]}, trust_env=False, verify=NO_TLS)
        self.client = AsyncOpenAI(base_url=base_url, http_client=http, **options)

    async def call(self, path: str, **arguments: Any) -> Any:
        return await attrgetter(path)(self.client)(**arguments)

    async def chunks(self, path: str, **arguments: Any) -> list[Any]:
        stream = await attrgetter(path)(self.client)(stream=True, **arguments)
        return [chunk async for chunk in stream]

    async def helper(self, **arguments: Any) -> tuple[list[Any], Any]:
        async with self.client.chat.completions.stream(**arguments) as stream:
            events = [event async for event in stream]
            return events, await stream.get_final_completion()

    async def leave(self, **arguments: Any) -> str:
        async with await self.client.chat.completions.create(stream=True, **arguments) as stream:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    return str(chunk.choices[0].delta.content)
        raise AssertionError("the stream ended without a text")

    async def close(self) -> None:
        await self.client.close()


class SyncSdk:
    """The synchronous client, in threads because the gateway runs in the test's event loop."""

    def __init__(self, base_url: str, on_status: OnStatus, **options: Any) -> None:
        self.statuses: list[int] = []
        loop = asyncio.get_running_loop()

        def hook(response: Any) -> None:
            self.statuses.append(response.status_code)
            loop.call_soon_threadsafe(on_status, response.status_code)

        http = DefaultHttpxClient(event_hooks={"response": [hook]}, trust_env=False, verify=NO_TLS)
        self.client = OpenAI(base_url=base_url, http_client=http, **options)

    async def call(self, path: str, **arguments: Any) -> Any:
        return await asyncio.to_thread(attrgetter(path)(self.client), **arguments)

    async def chunks(self, path: str, **arguments: Any) -> list[Any]:
        def run() -> list[Any]:
            return list(attrgetter(path)(self.client)(stream=True, **arguments))

        return await asyncio.to_thread(run)

    async def helper(self, **arguments: Any) -> tuple[list[Any], Any]:
        def run() -> tuple[list[Any], Any]:
            with self.client.chat.completions.stream(**arguments) as stream:
                return list(stream), stream.get_final_completion()

        return await asyncio.to_thread(run)

    async def leave(self, **arguments: Any) -> str:
        def run() -> str:
            with self.client.chat.completions.create(stream=True, **arguments) as stream:
                for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content:
                        return str(chunk.choices[0].delta.content)
            raise AssertionError("the stream ended without a text")

        return await asyncio.to_thread(run)

    async def close(self) -> None:
        self.client.close()


@contextlib.asynccontextmanager
async def python_sdk(
    kind: str, base_url: str, on_status: OnStatus | None = None, **options: Any
) -> AsyncIterator[Sdk]:
    """The client `sync` or `async`; without retries unless `max_retries` says otherwise."""
    options = {"api_key": "none", "max_retries": 0, "timeout": DEADLINE_S * 2, **options}
    make: Callable[..., Sdk] = SyncSdk if kind == "sync" else AsyncSdk
    sdk = make(base_url, on_status or (lambda status: None), **options)
    try:
        yield sdk
    finally:
        await sdk.close()


# ---- openai-node, and Anthropic's ----------


async def run_node(
    project: Path, scenario: str, base_url: str, *, client: str = "client.mjs", **options: Any
) -> Any:
    """What a scenario of a client prints; its retries are off unless `maxRetries` says otherwise."""
    async with node(project, scenario, base_url, client=client, **options) as child:
        async with asyncio.timeout(DEADLINE_S * 2):
            out, err = await child.communicate()
        assert child.returncode == 0, err.decode()
        return json.loads(out.splitlines()[-1])


@contextlib.asynccontextmanager
async def node(
    project: Path, scenario: str, base_url: str, *, client: str = "client.mjs", **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A scenario under way; killed at the end if it still runs."""
    program = shutil.which("node")
    assert program is not None, "these tests need Node"
    arguments = (client, scenario, base_url, json.dumps(options))
    async with process(*arguments, program=program, cwd=project, **NO_PROXIES) as child:
        yield child
