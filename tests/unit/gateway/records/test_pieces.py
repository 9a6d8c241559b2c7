"""Long reports are made in pieces."""

import asyncio

import pytest

from fairlane.gateway.api.tables import as_csv
from fairlane.gateway.records.reports import PIECE, in_pieces

pytestmark = pytest.mark.anyio


async def test_others_have_their_turn_between_the_pieces_of_a_long_report() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    made = await in_pieces(range(10 * PIECE + 1), str)
    assert made == [str(number) for number in range(10 * PIECE + 1)]
    assert turns >= 10
    turns = 0
    table = await as_csv(["n"], [{"n": number} for number in range(10 * PIECE)], "many")
    assert bytes(table.body).count(b"\r\n") == 10 * PIECE + 1
    assert turns >= 9
    other.cancel()
