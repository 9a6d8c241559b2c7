"""The models that callers may name."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.current import Current

DEFAULT_MODEL = "default"
"""What a native call runs that names no model."""


class Models:
    """What is configured, and what is offered now. `offered` reads the latter; `since`: when this gateway began, s since 1970."""

    def __init__(
        self, current: Current, offered: Callable[[], Awaitable[Iterable[str]]], since: float
    ) -> None:
        self._current = current
        self._offered = offered
        self._since = int(since)

    async def names(self, caller: Caller) -> list[str]:
        """The models that a caller may use, in order. Raises StoreError."""
        offered = set(await self._offered())
        names = offered | self._current.settings.models.keys()
        if names == {"*"}:
            names = {DEFAULT_MODEL}  # as good as any: its workers run whatever is asked for
        return sorted(name for name in names if name != "*" and caller.may_use(name))

    def row(self, name: str) -> dict[str, Any]:
        """A model as OpenAI's list shows it."""
        settings = self._current.settings
        configured_s = settings.times.modified_ms // 1000 if name in settings.models else 0
        return {"id": name, "object": "model", "created": configured_s or self._since, "owned_by": "fairlane"}
