"""Coarse timers: items that are due within the same step share one timer of the event loop."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

log = structlog.get_logger("fairlane.streaming")

T = TypeVar("T")


class TimerWheel(Generic[T]):
    """Calls `call(item)` for each item when it is due, by the event loop's time in seconds.

    `early`: up to a step before it is due, else up to a step behind. An item that is due at several times is called at each.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, step_s: float, call: Callable[[T], None], *, early: bool
    ) -> None:
        self._loop = loop
        self._step_s = step_s
        self._call = call
        self._shift = 0 if early else 1
        self._slots: dict[int, dict[T, None]] = {}

    def add(self, due: float, item: T) -> int:
        """Call for `item` when it is due. Return the slot, for `discard`."""
        slot = int(due / self._step_s) + self._shift
        items = self._slots.get(slot)
        if items is None:
            items = self._slots[slot] = {}
            self._loop.call_at(slot * self._step_s, self._tick, slot)
        items[item] = None
        return slot

    def discard(self, slot: int, item: T) -> None:
        """Remove `item` from a slot, if it has not been called yet."""
        items = self._slots.get(slot)
        if items is not None:
            items.pop(item, None)

    def _tick(self, slot: int) -> None:
        for item in self._slots.pop(slot):
            try:
                self._call(item)
            except Exception:  # the other items are due, too
                log.exception("a timer failed")
