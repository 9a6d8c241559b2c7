"""The attacker with bytes: damaged requests over many sockets at once. A process of its own."""

import asyncio
import json
import time

import httpx2
from tests.hostile.cast import CANARY, STREAMING, VICTIM, secret
from tests.hostile.connection import carry_out
from tests.hostile.corpus import Known
from tests.hostile.mutations import plan
from tests.hostile.report import Part
from tests.hostile.spec import Spec, main
from tests.support.serving import http_client

IN_FLIGHT_BYTES = 48 << 20
"""So much is sent at once at most: a test of the gateway, not of the machine's memory."""
REFRESH_S = 0.5


class _Budget:
    """Lends out bytes; who wants more than are left waits."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._changed = asyncio.Condition()

    async def take(self, size: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._left >= size)
            self._left -= size

    async def give(self, size: int) -> None:
        async with self._changed:
            self._left += size
            self._changed.notify_all()


async def _learn(port: int, known: Known) -> None:
    """Submit tasks as attacker and as victim, so that there are ids to play with."""
    async with http_client(f"http://127.0.0.1:{port}", timeout=20) as http:
        while True:
            for key in ("mallory", VICTIM):
                content = CANARY.decode() + "bob" if key == VICTIM else "mine"
                body = {"model": STREAMING, "messages": [{"role": "user", "content": content}], "async": True}
                try:
                    answer = await http.post(
                        "/api/openai", json=body, headers={"Authorization": f"Bearer {secret(key)}"}
                    )
                except httpx2.HTTPError:
                    continue  # whether the gateway answers is for others to say
                if answer.status_code != 202:
                    continue
                told = json.loads(answer.content)
                if key == VICTIM:
                    known.theirs.append(told["taskId"])
                else:
                    known.mine.append(told["taskId"])
                    known.tickets.append((told["taskId"], told["streamUrl"].rpartition("token=")[2]))
            await asyncio.sleep(REFRESH_S)


async def attack(spec: Spec, part: Part) -> None:
    """Carry out plan after plan until enough was sent."""
    known = Known()
    budget = _Budget(IN_FLIGHT_BYTES)
    learner = asyncio.create_task(_learn(spec.port, known))
    end = time.monotonic() + spec.seconds
    number = 0

    async def attacker() -> None:
        nonlocal number
        while part.total < spec.requests and time.monotonic() < end:
            mine, number = number, number + 1
            made = plan(spec.seed, mine, known)
            size = min(made.size, IN_FLIGHT_BYTES)
            await budget.take(size)
            try:
                await carry_out(spec.port, made, part, mine)
            finally:
                await budget.give(size)

    try:
        await asyncio.sleep(REFRESH_S)
        await asyncio.gather(*(attacker() for _ in range(spec.sockets)))
    finally:
        learner.cancel()
        await asyncio.gather(learner, return_exceptions=True)


if __name__ == "__main__":
    main("wire", attack)
