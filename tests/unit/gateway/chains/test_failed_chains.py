"""What is read of chains that failed, for those who wait for them."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from fairlane.gateway.chains.calls import ChainCalls
from fairlane.streaming.results import MAX_CONCURRENT


class Store:
    """Counts how many chains are read at the same time; none is known."""

    def __init__(self) -> None:
        self.read = self.reading = self.most = 0

    def of_task(self, _: str) -> "Store":
        return self

    async def run(self, *_: Any) -> list[bytes]:
        self.reading += 1
        self.most = max(self.most, self.reading)
        for _ in range(3):
            await asyncio.sleep(0)
        self.reading -= 1
        self.read += 1
        return [msgspec.msgpack.encode({"known": False})]


def test_of_many_chains_that_fail_together_few_are_read_at_once() -> None:
    async def read() -> list[dict[str, Any]]:
        calls = ChainCalls(cast(Any, SimpleNamespace(scheduler=store)))
        return await asyncio.gather(*(calls.failed(f"c{at}", f"u{at % 5}") for at in range(40)))

    store = Store()
    assert asyncio.run(read()) == [{}] * 40
    assert (store.read, store.most) == (40, MAX_CONCURRENT)
