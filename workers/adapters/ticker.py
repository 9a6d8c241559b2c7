"""Many timers that ring together."""

import asyncio
import math


class Ticker:
    """Wakes all who wait for about the same moment in one turn of the event loop, with one timer.

    Moments are rounded up to the next tick. With hundreds of waiters this is far cheaper than a sleep for
    each.
    """

    def __init__(self, tick_ms: float = 10.0) -> None:
        self._tick_s = tick_ms / 1000
        self._ticks: dict[int, asyncio.Event] = {}

    async def until(self, moment: float) -> None:
        """Return at the first tick not before `moment` (the loop's time); immediately when that is over."""
        loop = asyncio.get_running_loop()
        if moment <= loop.time():
            return
        number = math.ceil(moment / self._tick_s)
        tick = self._ticks.get(number)
        if tick is None:
            tick = self._ticks[number] = asyncio.Event()
            loop.call_at(number * self._tick_s, self._ring, number)
        await tick.wait()

    def _ring(self, number: int) -> None:
        self._ticks.pop(number).set()
