"""When a model may start its next task, as a timer: nothing is asked of the scheduler until then."""

import asyncio
from collections.abc import Callable, Iterable

MAX_MODELS = 1000
"""Timers at a time; a model beyond that waits for the sweep, which repeats its wake-up once a second."""


class ModelTimers:
    """Holds one timer per model at most, for the earlier of two instants. `due(model)` is called once at the instant; the request
    that it makes may bring the next one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, due: Callable[[str], None]) -> None:
        self._loop = loop
        self._due = due
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, later: Iterable[tuple[str, int]]) -> None:
        """Wake up for each of these models in this many ms, or sooner if that is asked for."""
        for model, ms in later:
            at = self._loop.time() + ms / 1000
            known = self._timers.get(model)
            if known is not None:
                if known.when() <= at:
                    continue
                known.cancel()
            elif self._closed or len(self._timers) >= MAX_MODELS:
                continue
            self._timers[model] = self._loop.call_at(at, self._ring, model)

    def close(self) -> None:
        """Forget all of them, and those to come."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ring(self, model: str) -> None:
        del self._timers[model]
        self._due(model)
