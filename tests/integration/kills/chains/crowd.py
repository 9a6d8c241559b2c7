"""Callers who submit chains and read them to the end, at whichever gateway lives."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from tests.integration.kills.chains.play import NAME, Order, order
from tests.integration.native.keys import secret
from tests.support.following import Follower
from tests.support.streams import RawStream

AGAIN_S = 0.05
PATIENCE_S = 120.0
CANCELLED, HANG_UP = 0.06, 0.04
ENDS = ("completed", "failed", "cancelled")


@dataclass
class Run:
    """A chain that was accepted: what was asked, what its reader saw, and what a poll said then."""

    task_id: str
    order: Order | None
    """None: its caller never heard that it was accepted."""
    path: str
    reader: Follower = field(default_factory=Follower)
    told: dict[str, Any] = field(default_factory=dict)


class Crowd:
    """See the module. `runs`: what was accepted, by task id."""

    def __init__(self, urls: Sequence[str], keys: Sequence[str], dice: random.Random, moved: Any) -> None:
        self._urls, self._keys, self._dice, self._moved = urls, keys, dice, moved
        self._numbers = itertools.count(1)
        self.runs: dict[str, Run] = {}
        self.refused = 0
        self.cuts = 0

    async def call(self, http: httpx2.AsyncClient, over: asyncio.Event) -> None:
        """One caller: a chain after the other."""
        while not over.is_set():
            key_id = self._dice.choice(self._keys)
            wish = order(next(self._numbers), self._dice)
            body = {"chain": NAME, "variables": wish.variables}
            answer = await self.ask(http, key_id, "POST", "/api/tasks", json=body)
            if answer is None or answer.status_code != 202:
                assert answer is None or answer.status_code in (429, 503), answer.text
                self.refused += answer is not None and answer.status_code == 429
                await asyncio.sleep(AGAIN_S)
                continue
            told = answer.json()
            run = self.runs[told["taskId"]] = Run(told["taskId"], wish, told["streamUrl"])
            async with asyncio.timeout(PATIENCE_S):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.follow(run))
                    if self._dice.random() < CANCELLED:
                        await asyncio.sleep(self._dice.uniform(0, 0.5))
                        await self.ask(http, key_id, "POST", f"/api/task/{run.task_id}/cancel", json={})
                run.told = await self.poll(http, key_id, run.task_id)

    async def follow(self, run: Run) -> None:
        """Read to the end, here and there, coming back behind what was read."""
        while not run.reader.ended:
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                url = self._dice.choice(self._urls)
                async with await RawStream.open(url, run.path, last=run.reader.last or None) as stream:
                    assert stream.status in (200, 503), f"{run.task_id}: {stream.status}"
                    while stream.status == 200 and (frame := await stream.frame()) is not None:
                        run.reader.take(frame)
                        if frame.event == "stage":
                            self._moved()
                        if self._dice.random() < HANG_UP:
                            break
            if not run.reader.ended:
                self.cuts += 1
                await asyncio.sleep(self._dice.uniform(0, AGAIN_S))

    async def poll(self, http: httpx2.AsyncClient, key_id: str, task_id: str) -> dict[str, Any]:
        """How it ended, as soon as somebody says."""
        while True:
            answer = await self.ask(http, key_id, "GET", f"/api/task/{task_id}")
            if answer is not None and answer.status_code == 200:
                told: dict[str, Any] = answer.json()
                assert told["status"] in ENDS, f"its log has ended: {told}"
                return told
            assert answer is None or answer.status_code == 503, f"an accepted chain is gone: {answer.text}"
            await asyncio.sleep(AGAIN_S)

    async def ask(
        self, http: httpx2.AsyncClient, key_id: str, method: str, path: str, **more: Any
    ) -> httpx2.Response | None:
        """What one of the gateways answers; None if it is not there."""
        headers = {"Authorization": f"Bearer {secret(key_id)}"}
        with contextlib.suppress(httpx2.TransportError):
            return await http.request(method, self._dice.choice(self._urls) + path, headers=headers, **more)
        return None
