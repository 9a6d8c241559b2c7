"""The live feed: one picture for all, none for nobody."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlane.web.dashboard import SharedFeed

pytestmark = pytest.mark.anyio


class Painting:
    """Counts its pictures; fails when told to."""

    def __init__(self) -> None:
        self.number = 0
        self.fail = False

    async def __call__(self) -> bytes:
        self.number += 1
        await asyncio.sleep(0)
        if self.fail:
            self.fail = False
            raise ValueError("no picture")
        return b"%d" % self.number


@pytest.fixture
async def painting() -> Painting:
    return Painting()


@pytest.fixture
async def feed(painting: Painting) -> AsyncIterator[SharedFeed]:
    feed = SharedFeed(painting, tick_s=0.02)
    yield feed
    await feed.close()


async def test_all_see_the_same_pictures_and_none_is_painted_twice(
    feed: SharedFeed, painting: Painting
) -> None:
    async def five() -> list[bytes]:
        pictures = feed.watch()
        seen = [await anext(pictures) for _ in range(5)]
        await pictures.aclose()
        return seen

    seen = await asyncio.gather(*(five() for _ in range(20)))
    assert all(pictures == seen[0] for pictures in seen)
    assert painting.number <= 6
    assert (feed.watchers, feed._task) == (0, None)


async def test_nothing_is_painted_while_nobody_watches(feed: SharedFeed, painting: Painting) -> None:
    pictures = feed.watch()
    await anext(pictures)
    await pictures.aclose()
    painted = painting.number
    await asyncio.sleep(0.1)
    assert painting.number == painted
    again = feed.watch()
    assert await anext(again) == b"%d" % (painted + 1)  # not the one from before
    await again.aclose()


async def test_a_slow_watcher_misses_pictures_and_delays_nobody(feed: SharedFeed) -> None:
    slow, quick = feed.watch(), feed.watch()
    first = await anext(slow)
    for _ in range(4):
        latest = await anext(quick)
    assert await anext(slow) == latest != first
    await asyncio.gather(slow.aclose(), quick.aclose())


async def test_a_picture_that_fails_is_tried_again(feed: SharedFeed, painting: Painting) -> None:
    painting.fail = True
    pictures = feed.watch()
    assert await anext(pictures) == b"2"
    await pictures.aclose()


async def test_the_end_ends_every_watch(feed: SharedFeed) -> None:
    async def watch() -> None:
        async for _ in feed.watch():
            pass

    watching = [asyncio.create_task(watch()) for _ in range(3)]
    await anext(feed.watch())
    async with asyncio.timeout(5):
        await feed.close()
        await asyncio.gather(*watching)
        await watch()  # a new one ends at once
