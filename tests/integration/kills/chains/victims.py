"""What is killed while chains run: gateways, workers, Redis."""

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.support.servers import Server

MOVE_S = 2.0
MAX_AWAY_S = 0.4


class Victim(Protocol):
    """Is killed, and started again."""

    async def kill(self) -> None: ...
    async def start(self) -> None: ...


class Store:
    """A Redis with its file."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def kill(self) -> None:
        await asyncio.to_thread(self._server.stop)

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)


class WorkerProcess:
    """A worker of the chain's stages."""

    def __init__(self, folder: Path, gateway: str, token: str) -> None:
        self._log = folder / "worker.log"
        self._command = [sys.executable, "-m", f"{__package__}.worker", gateway, token]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdout=output, stderr=output)

    async def kill(self) -> None:
        if self._process:
            assert self._process.returncode is None, "a worker has ended by itself"
            self._process.kill()
            await self._process.wait()
            self._process = None


class Moments:
    """When somebody is killed: at any instant, or right behind the end of a stage."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._move = asyncio.Event()

    def moved(self) -> None:
        """A reader has just seen a stage end or begin."""
        self._move.set()
        self._move.clear()

    async def next(self, longest_s: float) -> None:
        await asyncio.sleep(self._dice.uniform(0.1, longest_s))
        if self._dice.random() < 0.5:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._move.wait(), MOVE_S)
            await asyncio.sleep(self._dice.uniform(0, 0.02))

    async def away(self) -> None:
        """For how long it stays away."""
        await asyncio.sleep(self._dice.uniform(0, MAX_AWAY_S))


async def kill(victims: Mapping[str, tuple[Victim, float]], kills: int, moments: Moments) -> Counter[str]:
    """Kill any of them at any time, also several at once, each at least once, so many in all, and each by so long (s) after it
    came back; then all of them live. How often each kind was killed."""
    done = Counter[str]()

    async def one(kind: str, victim: Victim, longest_s: float) -> None:
        first = True
        while first or sum(done.values()) < kills:
            first = False
            await moments.next(longest_s)
            done[kind] += 1
            await victim.kill()
            await moments.away()
            await victim.start()

    async with asyncio.TaskGroup() as group:
        for name, (victim, longest_s) in victims.items():
            group.create_task(one(name.partition(" ")[0], victim, longest_s))
    return done
