"""What a gateway is made of, as seen by who starts and stops it."""

from collections.abc import Awaitable
from typing import Protocol


class Part(Protocol):
    """What begins and ends with a gateway."""

    def start(self) -> Awaitable[None] | None: ...

    def close(self) -> Awaitable[None] | None: ...
