"""openai-python, sync and async alike, in front of the stage."""

import asyncio
import contextlib
from operator import attrgetter
from typing import Any, Protocol

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from .pythons import AsyncClient, Client, OnStatus, SyncClient, opened


class Sdk(Client, Protocol):
    """One of the two Python clients."""

    async def chunks(self, path: str, **arguments: Any) -> list[Any]:
        """All items of a stream."""
        ...

    async def helper(self, **arguments: Any) -> tuple[list[Any], Any]:
        """The events and the final completion of `chat.completions.stream()`."""
        ...

    async def response(self, **arguments: Any) -> tuple[list[Any], Any]:
        """The events and the final response of `responses.stream()`."""
        ...

    async def leave(self, **arguments: Any) -> str:
        """The first text of a chat stream, which is closed then."""
        ...

    async def next_page(self, page: Any) -> Any:
        """The page behind one of a list."""
        ...


class AsyncSdk(AsyncClient):
    make, make_http = AsyncOpenAI, DefaultAsyncHttpxClient

    async def chunks(self, path: str, **arguments: Any) -> list[Any]:
        stream = await attrgetter(path)(self.client)(stream=True, **arguments)
        return [chunk async for chunk in stream]

    async def helper(self, **arguments: Any) -> tuple[list[Any], Any]:
        async with self.client.chat.completions.stream(**arguments) as stream:
            events = [event async for event in stream]
            return events, await stream.get_final_completion()

    async def response(self, **arguments: Any) -> tuple[list[Any], Any]:
        async with self.client.responses.stream(**arguments) as stream:
            events = [event async for event in stream]
            return events, await stream.get_final_response()

    async def leave(self, **arguments: Any) -> str:
        async with await self.client.chat.completions.create(stream=True, **arguments) as stream:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    return str(chunk.choices[0].delta.content)
        raise AssertionError("the stream ended without a text")

    async def next_page(self, page: Any) -> Any:
        return await page.get_next_page()


class SyncSdk(SyncClient):
    make, make_http = OpenAI, DefaultHttpxClient

    async def next_page(self, page: Any) -> Any:
        return await asyncio.to_thread(page.get_next_page)

    async def chunks(self, path: str, **arguments: Any) -> list[Any]:
        def run() -> list[Any]:
            return list(attrgetter(path)(self.client)(stream=True, **arguments))

        return await asyncio.to_thread(run)

    async def helper(self, **arguments: Any) -> tuple[list[Any], Any]:
        def run() -> tuple[list[Any], Any]:
            with self.client.chat.completions.stream(**arguments) as stream:
                return list(stream), stream.get_final_completion()

        return await asyncio.to_thread(run)

    async def response(self, **arguments: Any) -> tuple[list[Any], Any]:
        def run() -> tuple[list[Any], Any]:
            with self.client.responses.stream(**arguments) as stream:
                return list(stream), stream.get_final_response()

        return await asyncio.to_thread(run)

    async def leave(self, **arguments: Any) -> str:
        def run() -> str:
            with self.client.chat.completions.create(stream=True, **arguments) as stream:
                for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content:
                        return str(chunk.choices[0].delta.content)
            raise AssertionError("the stream ended without a text")

        return await asyncio.to_thread(run)


def python_sdk(
    kind: str, base_url: str, on_status: OnStatus | None = None, **options: Any
) -> contextlib.AbstractAsyncContextManager[Sdk]:
    """The client `sync` or `async`; without retries unless `max_retries` says otherwise."""
    return opened(SyncSdk if kind == "sync" else AsyncSdk, base_url, on_status, options)
