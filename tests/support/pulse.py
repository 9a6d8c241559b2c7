"""Whether the event loop of a test, and of the gateways in it, stays live."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Pulse:
    """A heartbeat of the loop: how long the longest pause between two beats was, in seconds."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.beats = 0

    async def beat(self) -> None:
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(0.01)
            now = loop.time()
            self.longest_s = max(self.longest_s, now - last)
            self.beats += 1
            last = now


@contextlib.asynccontextmanager
async def live_loop(at_most_s: float = 5.0) -> AsyncIterator[Pulse]:
    """The loop may not stand still for longer inside the block. A wait that spins holds it until its own deadline, far longer."""
    pulse = Pulse()
    task = asyncio.create_task(pulse.beat())
    try:
        yield pulse
        await asyncio.sleep(0.02)  # a pause that lasts until now is seen, too
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert pulse.longest_s < at_most_s, f"the event loop stalled for {pulse.longest_s:.1f} s"
