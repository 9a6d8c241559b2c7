"""Callers at both gateways, who ask again as soon as they are answered. One user has half of them, as a user does who floods."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

from tests.windows.wire import Line, post

CALL_MS = 120_000
AGAIN_S = 0.5
OTHERS = 5
"""Users beside the one who floods."""


class Callers:
    """They keep what went wrong. Who loses the connection comes again, as long as it is not answered otherwise."""

    def __init__(self, ports: Sequence[int], model: str) -> None:
        self._ports = ports
        self._model = model
        self.lost = 0
        self.wrong: list[str] = []

    async def ask_on(self, number: int, user: str) -> None:
        """One caller: one call after the other, until it is cancelled or something goes wrong."""
        body = {"type": "call", "model": self._model, "timeout": CALL_MS, "payload": {"user": user}}
        request = post("/api/tasks", json.dumps(body).encode(), user)
        while True:
            try:
                await self._ask_on(self._ports[number % len(self._ports)], request)
            except (OSError, EOFError):
                self.lost += 1
                await asyncio.sleep(AGAIN_S)
            else:
                return

    async def _ask_on(self, port: int, request: bytes) -> None:
        line = await Line.open(port)
        try:
            while True:
                await line.send(request)
                status, answer = await line.answer()
                if status != 200:
                    self.wrong.append(f"{status} {answer[:200]!r}")
                    return
        finally:
            line.close()


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
