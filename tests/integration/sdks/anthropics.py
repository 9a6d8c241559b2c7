"""anthropic-python, sync and async alike, in front of the stage; and what its calls are made with."""

import asyncio
import contextlib
from typing import Any, Protocol

from anthropic import Anthropic, AsyncAnthropic, DefaultAsyncHttpxClient, DefaultHttpxClient

from .pythons import AsyncClient, Client, OnStatus, SyncClient, opened
from .stage import MESSAGES

ASKED: dict[str, Any] = {"model": "talk", "max_tokens": 64, "messages": MESSAGES}


class AnthropicSdk(Client, Protocol):
    """One of the two Python clients."""

    async def events(self, **arguments: Any) -> list[Any]:
        """All events of `messages.create(stream=True)`."""
        ...

    async def helper(self, **arguments: Any) -> tuple[str, Any]:
        """The joined text and the final message of `messages.stream()`."""
        ...

    async def leave(self, **arguments: Any) -> str:
        """The first text of a stream, which is closed then."""
        ...


class AsyncSdk(AsyncClient):
    make, make_http = AsyncAnthropic, DefaultAsyncHttpxClient

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


class SyncSdk(SyncClient):
    make, make_http = Anthropic, DefaultHttpxClient

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


def anthropic_sdk(
    kind: str, url: str, on_status: OnStatus | None = None, **options: Any
) -> contextlib.AbstractAsyncContextManager[AnthropicSdk]:
    """The client `sync` or `async` of a gateway at `url`; without retries unless `max_retries` says otherwise."""
    return opened(SyncSdk if kind == "sync" else AsyncSdk, url, on_status, options)
