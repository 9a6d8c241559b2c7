"""What share of the service each queue had over the last minutes: from what the scheduler has charged it so far.

Every replica remembers a few readings of the shared counts, so that any of them can tell. It costs one command a model every
EVERY_S seconds.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping

import structlog

from fairlane.gateway.overview import MOST_MODELS, charged_by_queue, fields_of
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.link import RedisLink

log = structlog.get_logger("fairlane.gateway")

EVERY_S = 30.0
WINDOW_S = 300.0

Charged = Mapping[str, float]
"""Cost charged to each queue so far, over all models. Models that count in different units are added as they are."""


class Shares:
    """Readings of the last WINDOW_S seconds, taken while it runs, and the shares since the oldest of them."""

    def __init__(self, link: RedisLink, keys: Keys, now: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._keys = keys
        self._now = now
        self._readings: deque[tuple[float, Charged]] = deque()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="shares")

    async def close(self) -> None:
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def remember(self, charged: Charged) -> None:
        """Take a reading, and drop what is older than the window, but for the last one before it."""
        self._readings.append((self._now(), charged))
        begin = self._now() - WINDOW_S
        while len(self._readings) > 1 and self._readings[1][0] <= begin:
            self._readings.popleft()

    def since(self, charged: Charged) -> dict[str, float]:
        """The share of each queue, 0…1, from the oldest reading until `charged`; {} when nothing was served.

        Refunds of estimates can make a count fall: a queue that was given back more than it used has had nothing.
        """
        before = self._readings[0][1] if self._readings else {}
        served = {name: max(cost - before.get(name, 0.0), 0.0) for name, cost in charged.items()}
        total = sum(served.values())
        return {name: cost / total for name, cost in served.items()} if total else {}

    async def _read(self) -> Charged:
        models = await self._link.command("ZREVRANGE", self._keys("models"), 0, MOST_MODELS - 1)
        replies = [self._link.command("HGETALL", self._keys("model", model=name.decode())) for name in models]
        return charged_by_queue([fields_of(await reply) for reply in replies])

    async def _run(self) -> None:
        while True:
            try:
                self.remember(await self._read())
            except StoreError:
                pass  # the readings before it still stand
            except Exception:  # shares are for the eye: the gateway goes on without a new reading
                log.exception("cannot read what queues were charged")
            await asyncio.sleep(EVERY_S)
