"""Callers at both gateways, who ask again as soon as they are answered. One user has half of them, as a user does who floods."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from tests.windows.wire import Line, get, post

CALL_MS = 120_000
AGAIN_S = 0.5
LOST = (403, 500, 502, 503)
"""What the proxy answers whose permit was lost, or could not be checked."""
OTHERS = 5
"""Users beside the one who floods."""
ROUND = 4 * OTHERS
"""Among so many callers, one behind the other, all users are at both gateways."""


class Session(Protocol):
    """Somebody at a gateway."""

    async def ask(self) -> tuple[int, bytes]:
        """Have one request made; status and body of the answer."""

    def close(self) -> None: ...


Way = Callable[[int, str], Session]
"""How requests come to the target: for a gateway's port and a user."""


class Asking:
    """Asks the gateway for each request, over one connection, and waits for the answer."""

    def __init__(self, port: int, body: dict[str, Any], user: str) -> None:
        self._port = port
        self._request = post("/api/tasks", json.dumps({**body, "timeout": CALL_MS}).encode(), user)
        self._line: Line | None = None

    async def ask(self) -> tuple[int, bytes]:
        if self._line is None:
            self._line = await Line.open(self._port)
        await self._line.send(self._request)
        return await self._line.answer()

    def close(self) -> None:
        if self._line:
            self._line.close()


class Permitted:
    """Asks the gateway for a permit, and makes the request itself as soon as it has it, at the proxy in front of the target."""

    def __init__(self, port: int, body: dict[str, Any], user: str, proxy: int, known_as: str) -> None:
        self._port, self._proxy, self._known_as = port, proxy, known_as
        body = {**body, "timeout": CALL_MS, "stream": True}
        self._request = post("/api/tasks", json.dumps(body).encode(), user)

    async def ask(self) -> tuple[int, bytes]:
        stream = await Line.open(self._port)
        try:
            await stream.send(self._request)
            told = await stream.line_with(b'"permit":"')
        finally:
            stream.close()
        permit = json.loads(told.partition(b":")[2])["permit"]
        line = await Line.open(self._proxy)
        try:
            await line.send(get("/call", self._known_as, X_Fairlane_Permit=permit))
            return await line.answer()
        finally:
            line.close()

    def close(self) -> None:
        """There is nothing to end."""


class Callers:
    """They keep what went wrong. Who loses the connection comes again, as long as it is not answered otherwise; also who was
    refused at the proxy, as whoever dies on the way takes a permit along."""

    def __init__(self, ports: Sequence[int], ways: Sequence[Way]) -> None:
        self._ports, self._ways = ports, ways
        self.lost = 0
        self.wrong: list[str] = []

    async def ask_on(self, number: int, user: str) -> None:
        """One caller: one call after the other, until it is cancelled or something goes wrong."""
        way = self._ways[number // ROUND % len(self._ways)]
        while True:
            session = way(self._ports[number // 2 % len(self._ports)], user)
            try:
                while True:
                    status, answer = await session.ask()
                    if status in LOST and isinstance(session, Permitted):
                        raise EOFError
                    if status != 200:
                        self.wrong.append(f"{status} {answer[:200]!r}")
                        return
            except (OSError, EOFError):
                self.lost += 1
                await asyncio.sleep(AGAIN_S)
            finally:
                session.close()


def users_of(number: int) -> list[str]:
    """Whose each of so many callers is."""
    return ["floods" if n % 2 else f"user-{n // 2 % OTHERS + 1}" for n in range(number)]


@contextlib.asynccontextmanager
async def calling(ports: Sequence[int], ways: Sequence[Way], number: int) -> AsyncIterator[Callers]:
    """So many callers, by all of these ways, until the block ends."""
    callers = Callers(ports, ways)
    running = [asyncio.create_task(callers.ask_on(at, user)) for at, user in enumerate(users_of(number))]
    try:
        yield callers
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
