"""The models that clients may name."""

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.spec import MAX_MODEL_CHARS, is_name
from fairlane.gateway.errors import DEFAULT_MODEL, bad_request, model_not_found, type_not_offered
from fairlane.queues.keys import is_reserved
from fairlane.queues.tasks import TaskSpec
from fairlane.workers.tasktypes import MEDIA

CACHE_S = 5.0
"""How long workers' descriptions of models are cached: they hardly change, and there may be thousands of workers."""


class Models:
    """The models that are configured, and that workers serve. `offered` returns their names, `workers` the workers as the admin
    view shows them; `takes`: whether a worker of these models supports a type ('': any); `since`: the gateway's start, s since
    1970."""

    def __init__(
        self,
        current: ActiveConfig,
        offered: Callable[[], Awaitable[Iterable[str]]],
        workers: Callable[[], Awaitable[Iterable[Mapping[str, Any]]]],
        takes: Callable[[Collection[str], str], Awaitable[bool]],
        since: float,
    ) -> None:
        self._takes = takes
        self._current = current
        self._offered = offered
        self._workers = workers
        self._since = int(since)
        self._described: dict[str, dict[str, Any]] = {}
        self._read_at = float("-inf")

    async def rows(self, caller: Caller) -> dict[str, dict[str, Any]]:
        """Return the models and routes that a caller may use, sorted, as OpenAI's list shows them. If workers differ, the least
        context length and the first worker's owner count. Raise StoreError."""
        offered = set(await self._offered())
        settings = self._current.settings
        configured = settings.listed_models | settings.routes.keys()
        names = {name for name in offered | configured if not is_reserved(name)}
        if names == {"*"}:
            names = {DEFAULT_MODEL}  # as good as any: its workers run whatever is asked for
        await self._read()
        return {
            name: self._row(name, configured=name in configured)
            for name in sorted(names)
            if name != "*" and caller.may_use(name)
        }

    async def find(self, caller: Caller, name: str) -> dict[str, Any]:
        """Return the row of a model, also of one that no list names and workers of `*` run. Raise ApiError(404), StoreError."""
        found = (await self.rows(caller)).get(name)
        if found is not None:
            return found
        valid = is_name(name, MAX_MODEL_CHARS) and name != "*" and not is_reserved(name)
        if valid and caller.may_use(name) and "*" in await self._offered():
            return self._row(name, configured=False)
        raise model_not_found(name)

    async def only(self, caller: Caller, task_type: str) -> str:
        """Return the one model whose workers support a type. Raise ApiError(400) if there is none or if a client must name one of
        several, and StoreError."""
        names = [name for name in await self.rows(caller) if await self._takes([name], task_type)]
        if len(names) == 1:
            return names[0]
        known = f"one of {', '.join(names[:10])}" if names else f"but no model here is for {MEDIA[task_type]}"
        raise bad_request(f"model is missing: {known}", "model")

    async def check_type(self, task: TaskSpec) -> None:
        """Raise ApiError(404) for a task of media if workers of its models are connected, and none supports its type. (Workers
        that are disconnected may reconnect; submission rejects unknown models.) Raise StoreError."""
        names = {task.model, *(model for model, _ in task.extras.get("fallbacks", ()))}
        if task.downgrade is not None:
            names.add(task.downgrade.model)
        if not await self._takes(names, task.task_type) and await self._takes(names, ""):
            raise type_not_offered(task.asked or task.model, MEDIA[task.task_type], task.task_type)

    def _row(self, name: str, *, configured: bool) -> dict[str, Any]:
        configured_s = self._current.settings.origins.modified_ms // 1000 if configured else 0
        created = configured_s or self._since
        row: dict[str, Any] = {"id": name, "object": "model", "created": created, "owned_by": "fairlane"}
        return row | self._described.get(name, {})

    async def _read(self) -> None:
        """Read the descriptions of workers, unless they are cached."""
        now = time.monotonic()
        if now - self._read_at < CACHE_S:
            return
        self._read_at = now
        described: dict[str, dict[str, Any]] = {}
        for worker in sorted(await self._workers(), key=lambda worker: str(worker["name"])):
            for name, info in worker.get("modelInfo", {}).items():
                row = described.setdefault(name, {})
                if owner := info.get("ownedBy"):
                    row.setdefault("owned_by", owner)
                if length := info.get("contextLength"):
                    least = min(length, row.get("context_length", length))
                    row |= {"context_length": least, "max_model_len": least}
        self._described = described
