"""What the official Python SDKs have in common: a client, sync or async alike, that tells the statuses of its HTTP answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from operator import attrgetter
from typing import Any, ClassVar, Protocol

from tests.support.serving import DEADLINE_S, NO_TLS

OnStatus = Callable[[int], None]


class Client(Protocol):
    """A client; `statuses` are those of all HTTP answers it got."""

    statuses: list[int]

    async def call(self, path: str, **arguments: Any) -> Any:
        """What `client.<path>(…)` returns."""
        ...


class AsyncClient:
    make: ClassVar[Any]
    """The SDK's class."""
    make_http: ClassVar[Any]

    def __init__(self, base_url: str, on_status: OnStatus, **options: Any) -> None:
        self.statuses: list[int] = []

        async def hook(response: Any) -> None:
            self.statuses.append(response.status_code)
            on_status(response.status_code)

        http = self.make_http(event_hooks={"response": [hook]}, trust_env=False, verify=NO_TLS)
        self.client = self.make(base_url=base_url, http_client=http, **options)

    async def call(self, path: str, **arguments: Any) -> Any:
        return await attrgetter(path)(self.client)(**arguments)

    async def close(self) -> None:
        await self.client.close()


class SyncClient:
    """The synchronous client, in threads because the gateway runs in the test's event loop."""

    make: ClassVar[Any]
    """The SDK's class."""
    make_http: ClassVar[Any]

    def __init__(self, base_url: str, on_status: OnStatus, **options: Any) -> None:
        self.statuses: list[int] = []
        loop = asyncio.get_running_loop()

        def hook(response: Any) -> None:
            self.statuses.append(response.status_code)
            loop.call_soon_threadsafe(on_status, response.status_code)

        http = self.make_http(event_hooks={"response": [hook]}, trust_env=False, verify=NO_TLS)
        self.client = self.make(base_url=base_url, http_client=http, **options)

    async def call(self, path: str, **arguments: Any) -> Any:
        return await asyncio.to_thread(attrgetter(path)(self.client), **arguments)

    async def close(self) -> None:
        self.client.close()


@contextlib.asynccontextmanager
async def opened(make: Any, base_url: str, on_status: OnStatus | None, options: Any) -> AsyncIterator[Any]:
    """A client of this class; without retries unless `max_retries` says otherwise."""
    options = {"api_key": "none", "max_retries": 0, "timeout": DEADLINE_S * 2, **options}
    client = make(base_url, on_status or (lambda status: None), **options)
    try:
        yield client
    finally:
        await client.close()
