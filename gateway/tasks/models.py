"""The models that callers may name."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.current import Current


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
        names = {*await self._offered(), *self._current.settings.models}
        return sorted(name for name in names if name != "*" and caller.may_use(name))

    def row(self, name: str) -> dict[str, Any]:
        """A model as OpenAI's list shows it."""
        return {"id": name, "object": "model", "created": self._since, "owned_by": "fairlane"}
