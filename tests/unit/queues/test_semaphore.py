import asyncio

import pytest

from fairlane.queues.semaphore import FairSemaphore

pytestmark = pytest.mark.anyio


async def test_keys_take_turns_and_one_key_is_served_in_order() -> None:
    semaphore, served = FairSemaphore(1), list[str]()

    async def work(key: str, name: str) -> None:
        async with semaphore.hold(key):
            served.append(name)
            await asyncio.sleep(0)

    async with semaphore.hold("other"):
        wanted = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")]
        tasks = [asyncio.create_task(work(key, name)) for key, name in wanted]
        await asyncio.sleep(0)
        assert served == []
    await asyncio.gather(*tasks)
    assert served == ["a1", "b1", "c1", "a2", "a3"]


async def test_a_cancelled_waiter_releases_its_place() -> None:
    semaphore = FairSemaphore(1)

    async def work() -> None:
        async with semaphore.hold("a"):
            pass

    async with semaphore.hold("b"):
        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
    tasks[1].cancel()  # in the moment in which it is granted
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(1), semaphore.hold("c"):
        pass
