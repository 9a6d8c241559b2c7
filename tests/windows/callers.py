"""Callers at both gateways, who ask again as soon as they are answered. One user has half of them, as a user does who floods."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

from tests.windows.wire import Line, post

CALL_MS = 120_000
OTHERS = 5
"""Users beside the one who floods."""


class Callers:
    """They keep what went wrong."""

    def __init__(self, ports: Sequence[int], model: str) -> None:
        self._ports = ports
        self._model = model
        self.answered = 0
        self.wrong: list[str] = []

    async def ask_on(self, number: int, user: str) -> None:
        """One caller: one call after the other, until it is cancelled or something goes wrong."""
        body = {"type": "call", "model": self._model, "timeout": CALL_MS, "payload": {"user": user}}
        request = post("/api/tasks", json.dumps(body).encode(), user)
        try:
            line = await Line.open(self._ports[number % len(self._ports)])
            try:
                while True:
                    await line.send(request)
                    status, answer = await line.answer()
                    if status != 200:
                        raise ValueError(f"{status} {answer[:200]!r}")
                    self.answered += 1
            finally:
                line.close()
        except (OSError, EOFError, ValueError) as error:
            self.wrong.append(f"{type(error).__name__}: {error}")


def users_of(number: int) -> list[str]:
    """Whose each of so many callers is."""
    return ["floods" if n % 2 else f"user-{n // 2 % OTHERS + 1}" for n in range(number)]


@contextlib.asynccontextmanager
async def calling(ports: Sequence[int], model: str, number: int) -> AsyncIterator[Callers]:
    """So many callers, until the block ends."""
    callers = Callers(ports, model)
    running = [asyncio.create_task(callers.ask_on(at // 2, user)) for at, user in enumerate(users_of(number))]
    try:
        yield callers
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
