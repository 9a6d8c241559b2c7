"""anthropic-python, sync and async alike, in front of the stage; and what its calls are made with."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from operator import attrgetter
from typing import Any, Protocol

from anthropic import Anthropic, AsyncAnthropic, DefaultAsyncHttpxClient, DefaultHttpxClient
from tests.support.serving import DEADLINE_S, NO_TLS

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]
ASKED: dict[str, Any] = {"model": "talk", "max_tokens": 64, "messages": MESSAGES}
OnStatus = Callable[[int], None]


class AnthropicSdk(Protocol):
    """One of the two Python clients; `statuses` are those of all HTTP answers it got."""

    statuses: list[int]

    async def call(self, path: str, **arguments: Any) -> Any:
        """What `client.<path>(…)` returns."""
        ...

    async def events(self, **arguments: Any) -> list[Any]:
        """All events of `messages.create(stream=True)`."""
        ...

    async def helper(self, **arguments: Any) -> tuple[str, Any]:
        """The joined text and the final message of `messages.stream()`."""
        ...

    async def leave(self, **arguments: Any) -> str:
        """The first text of a stream, which is closed then."""
        ...


class AsyncSdk:
    def __init__(self, base_url: str, on_status: OnStatus, **options: Any) -> None:
        self.statuses: list[int] = []

        async def hook(response: Any) -> None:
            self.statuses.append(response.status_code)
            on_status(response.status_code)

        http = DefaultAsyncHttpxClient(event_hooks={"response": [hook]}, trust_env=False, verify=NO_TLS)
        self.client = AsyncAnthropic(base_url=base_url, http_client=http, **options)

    async def call(self, path: str, **arguments: Any) -> Any:
        return await attrgetter(path)(self.client)(**arguments)

    async def events(self, **arguments: Any) -> list[Any]:
        return [event async for event in await self.client.messages.create(stream=True, **arguments)]

    async def helper(self, **arguments: Any) -> tuple[str, Any]:
        async with self.client.messages.stream(**arguments) as stream:
            text = "".join([text async for text in stream.text_stream])
            return text, await stream.get_final_message()

    async def leave(self, **arguments: Any) -> str:
        async with self.client.messages.stream(**arguments) as stream:
            async for text in stream.text_stream:
                return str(text)
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
        self.client = Anthropic(base_url=base_url, http_client=http, **options)

    async def call(self, path: str, **arguments: Any) -> Any:
        return await asyncio.to_thread(attrgetter(path)(self.client), **arguments)

    async def events(self, **arguments: Any) -> list[Any]:
        return await asyncio.to_thread(lambda: list(self.client.messages.create(stream=True, **arguments)))

    async def helper(self, **arguments: Any) -> tuple[str, Any]:
        def run() -> tuple[str, Any]:
            with self.client.messages.stream(**arguments) as stream:
                return "".join(stream.text_stream), stream.get_final_message()

        return await asyncio.to_thread(run)

    async def leave(self, **arguments: Any) -> str:
        def run() -> str:
            with self.client.messages.stream(**arguments) as stream:
                return str(next(iter(stream.text_stream)))

        return await asyncio.to_thread(run)

    async def close(self) -> None:
        self.client.close()


@contextlib.asynccontextmanager
async def anthropic_sdk(
    kind: str, url: str, on_status: OnStatus | None = None, **options: Any
) -> AsyncIterator[AnthropicSdk]:
    """The client `sync` or `async` of a gateway at `url`; without retries unless `max_retries` says otherwise."""
    options = {"api_key": "none", "max_retries": 0, "timeout": DEADLINE_S * 2, **options}
    make: Any = SyncSdk if kind == "sync" else AsyncSdk
    sdk = make(url, on_status or (lambda status: None), **options)
    try:
        yield sdk
    finally:
        await sdk.close()
