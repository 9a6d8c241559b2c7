"""Whether an upstream works: asked at the start, when a task makes it doubtful, and then until it works, with growing pauses."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from fairlane.workers.sdk.backoff import Backoff

log = logging.getLogger("fairlane.worker")


class Watch:
    """Checks an upstream. `ask` returns what is wrong with it ('': nothing), within seconds; `report` is called when that changes
    (None: nothing). There is one check at a time. `close` ends it."""

    def __init__(
        self, ask: Callable[[], Awaitable[str]], report: Callable[[str | None], None], rng: random.Random
    ) -> None:
        self._ask = ask
        self._report = report
        self._backoff = Backoff(rng)
        self._loop = asyncio.get_running_loop()
        self._healthy_since = self._loop.time()
        self._why = ""
        self._asking: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Ask for the first time; returns with the answer."""
        self._set(await self._ask())
        if self._why:
            self.doubt()

    def doubt(self) -> None:
        """A task failed in a way that may be the upstream's: ask now, and again until it works."""
        if self._asking is None or self._asking.done():
            self._asking = self._loop.create_task(self._until_healthy(), name="fairlane upstream")

    def worked(self) -> None:
        """Record that a task was completed: the upstream works."""
        if self._why:
            self.close()
            self._set("")

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _until_healthy(self) -> None:
        if not self._why:
            self._set(await self._ask())
        while self._why:
            await asyncio.sleep(self._backoff.after(self._loop.time() - self._healthy_since))
            self._set(await self._ask())

    def _set(self, why: str) -> None:
        if why == self._why:
            return
        if why and not self._why:
            log.warning("the upstream does not work: %s", why)
        elif not why:
            log.info("the upstream works again")
            self._healthy_since = self._loop.time()
        self._why = why
        self._report(why or None)
