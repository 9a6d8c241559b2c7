"""The models that callers may name."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.calls.intake import DEFAULT_MODEL
from fairlane.gateway.current import Current
from fairlane.queues.keys import is_reserved

KEPT_S = 5.0
"""What workers tell of models is read again after so long: it hardly ever changes, and there may be thousands of workers."""


class Models:
    """What is configured, and what is offered now. `offered` and `workers` (as the admin view shows them) read the latter;
    `since`: when this gateway began, s since 1970."""

    def __init__(
        self,
        current: Current,
        offered: Callable[[], Awaitable[Iterable[str]]],
        workers: Callable[[], Awaitable[Iterable[Mapping[str, Any]]]],
        since: float,
    ) -> None:
        self._current = current
        self._offered = offered
        self._workers = workers
        self._since = int(since)
        self._told: dict[str, dict[str, Any]] = {}
        self._read_at = float("-inf")

    async def rows(self, caller: Caller) -> dict[str, dict[str, Any]]:
        """The models and routes that a caller may use, in order, as OpenAI's list shows them: where workers tell different
        lengths of a context, the least; of different owners, the first worker's. Raises StoreError."""
        offered = set(await self._offered())
        settings = self._current.settings
        configured = settings.listed_models | settings.routes.keys()
        names = {name for name in offered | configured if not is_reserved(name)}
        if names == {"*"}:
            names = {DEFAULT_MODEL}  # as good as any: its workers run whatever is asked for
        await self._read()
        return {
            name: self._row(name, name in configured)
            for name in sorted(names)
            if name != "*" and caller.may_use(name)
        }

    def _row(self, name: str, configured: bool) -> dict[str, Any]:
        configured_s = self._current.settings.times.modified_ms // 1000 if configured else 0
        created = configured_s or self._since
        row: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "fairlane"}
        return row | self._told.get(name, {})

    async def _read(self) -> None:
        """See what workers tell, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._read_at < KEPT_S:
            return
        self._read_at = now
        told: dict[str, dict[str, Any]] = {}
        for worker in sorted(await self._workers(), key=lambda worker: str(worker["name"])):
            for name, info in worker.get("modelInfo", {}).items():
                row = told.setdefault(name, {})
                if owner := info.get("ownedBy"):
                    row.setdefault("owned_by", owner)
                if length := info.get("contextLength"):
                    least = min(length, row.get("context_length", length))
                    row |= {"context_length": least, "max_model_len": least}
        self._told = told
