"""Turns at what only one may do at a time: who is next."""

import asyncio

import pytest

from fairlane.streaming.turns import GroupedTurns

pytestmark = pytest.mark.anyio


async def order(*wanted: tuple[str, str]) -> list[str]:
    """In which order these have their turn, who came in this order while another group had its own."""
    turns, had = GroupedTurns(), []

    async def have(group: str, caller: str) -> None:
        async with turns.of(group, caller):
            had.append(caller)
            await asyncio.sleep(0)

    async with turns.of("other", "other"):
        tasks = [asyncio.create_task(have(group, caller)) for group, caller in wanted]
        for _ in range(5):
            await asyncio.sleep(0)
        assert had == []
    await asyncio.gather(*tasks)
    assert not turns.taken
    assert turns._inside == turns._members == {}
    return had


async def test_a_group_of_many_callers_has_no_more_turns_than_one_of_one() -> None:
    many = [("site", f"site/{n}") for n in range(5)]
    had = await order(*many, ("acme", "acme"), ("acme", "acme"))
    assert had == ["site/0", "acme", "site/1", "acme", "site/2", "site/3", "site/4"]


async def test_in_a_group_each_caller_has_his_turn() -> None:
    assert await order(*[("site", "ann")] * 3, ("site", "bob")) == ["ann", "ann", "bob", "ann"]


async def test_who_leaves_the_line_leaves_nothing_and_holds_up_nobody() -> None:
    turns = GroupedTurns()

    async def have(group: str, caller: str) -> None:
        async with turns.of(group, caller):
            pass

    async with turns.of("site", "ann"):
        waiting = [
            asyncio.create_task(have(*who)) for who in [("site", "bob"), ("acme", "acme"), ("acme", "acme")]
        ]
        await asyncio.sleep(0)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert turns._members == {"site": 1}
        last = asyncio.create_task(have("acme", "acme"))
        await asyncio.sleep(0)
    await last
    assert not turns.taken
    assert turns._inside == {}
