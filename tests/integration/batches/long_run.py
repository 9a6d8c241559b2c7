"""A batch on two gateways that are killed while it runs, and an interactive user beside it."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil
from tests.support.processes import GatewayProcess
from tests.support.serving import WORKER_TOKEN, http_client

from fairlane.gateway.accounts.callers import digest
from fairlane.workers.sdk import Context, Task, Usage, Worker

from .crew import CHAT, ENDED, Caller, line

MODEL = "sim"
CALL_EACH_S = 0.2
RECOVERS_S = 6.0
"""For so long behind a kill the waits of the interactive user are not compared: slots are missing, and leases of the dead run."""
TEXT = "x" * 200


class Waited(NamedTuple):
    """A call of the interactive user."""

    at: float
    waited_ms: int


class Play:
    """The gateways, their workers and what is measured of them."""

    def __init__(self, gateways: Sequence[GatewayProcess], slots: int, service_s: float) -> None:
        self.gateways = gateways
        self.slots = slots
        self.service_s = service_s
        self.waits: list[Waited] = []
        self.kills: list[float] = []
        self.memory: dict[int, list[int]] = {}
        """By process, MiB, each second."""
        self.alive = [True] * len(gateways)

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Workers for each gateway, in this process; they come back when theirs does."""
        async with contextlib.AsyncExitStack() as stack:
            for number, gateway in enumerate(self.gateways):
                worker = Worker(
                    f"sim {number}", gateway=gateway.url, token=WORKER_TOKEN, slots=self.slots, drain_ms=100
                )
                worker.handler([MODEL], ["openaiLike"])(self._answer)
                task = asyncio.create_task(worker.serve())
                stack.callback(task.cancel)
            yield

    async def _answer(self, task: Task, _: Context) -> AsyncIterator[Any]:
        await asyncio.sleep(self.service_s)
        yield str(task.payload["messages"][-1]["content"]).upper() + TEXT
        yield Usage(20, 60)

    def client(self, key: str = "", timeout: float = 30.0) -> httpx.AsyncClient:
        return http_client(timeout=timeout, headers={"authorization": f"Bearer {key}"})

    async def anywhere(
        self, http: httpx.AsyncClient, method: str, path: str, **request: Any
    ) -> httpx.Response:
        """What a gateway answers that lives: whichever, and again until one does."""
        for number in range(10_000):
            gateway = self.gateways[number % len(self.gateways)]
            with contextlib.suppress(httpx.TransportError):
                answer = await http.request(method, f"{gateway.url}{path}", **request)
                if answer.status_code < 500:
                    return answer
            await asyncio.sleep(0.1)
        raise AssertionError("no gateway answers")

    async def interact(self, over: asyncio.Event) -> None:
        """Somebody asks again and again, of a gateway that lives, and notes how long each call waited for its turn."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "quick"}]}
        number = 0
        async with self.client("person") as http:
            while not over.is_set():
                number += 1
                gateway = self.gateways[number % len(self.gateways)]
                at = time.monotonic()
                with contextlib.suppress(httpx.TransportError):
                    answer = await http.post(f"{gateway.url}{CHAT}", json=body)
                    if answer.status_code == 200:
                        self.waits.append(Waited(at, int(answer.headers["x-fairlane-waited-ms"])))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), CALL_EACH_S)

    async def watch(self, over: asyncio.Event) -> None:
        """Note how much memory each process takes."""
        while not over.is_set():
            for number, gateway in enumerate(self.gateways):
                if self.alive[number]:
                    with contextlib.suppress(psutil.Error):
                        used = psutil.Process(gateway.pid).memory_info().rss >> 20
                        self.memory.setdefault(gateway.pid, []).append(used)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), 1.0)

    async def kill_leader(self, http: httpx.AsyncClient, batch_id: str) -> bool:
        """Kill the gateway that leads the batch, and start it again. False: nobody leads it now."""
        page = (await self.anywhere(http, "GET", "/api/admin/batches")).json()["batches"]
        replica = next(one["replica"] for one in page if one["id"] == batch_id)
        for number, gateway in enumerate(self.gateways):
            if replica and f'"replica":"{replica}"' in gateway.log.replace(" ", ""):
                self.kills.append(time.monotonic())
                self.alive[number] = False
                await gateway.kill()
                await gateway.start()
                self.alive[number] = True
                return True
        return False

    def compared(self, since: float, until: float) -> list[int]:
        """Waits of calls between, sorted, but for those right behind a kill."""
        return sorted(
            wait.waited_ms
            for wait in self.waits
            if since <= wait.at < until and not any(0 <= wait.at - at < RECOVERS_S for at in self.kills)
        )


def share(values: Sequence[int], part: float) -> int:
    """What so large a part of sorted values does not exceed."""
    return values[min(int(len(values) * part), len(values) - 1)] if values else 0


def lines_file(folder: Path, lines: int) -> Path:
    """A file of so many lines."""
    path = folder / "lines.jsonl"
    with path.open("w") as file:
        for number in range(lines):
            file.write(json.dumps(line(number, model=MODEL)) + "\n")
    return path


async def upload(play: Play, http: httpx.AsyncClient, path: Path) -> str:
    """The file's id."""
    with path.open("rb") as file:
        answer = await http.post(
            f"{play.gateways[0].url}/v1/files",
            files={"file": ("lines.jsonl", file)},
            data={"purpose": "batch"},
            timeout=120,
        )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def progress(play: Play, http: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    """How the batch stands."""
    answer = await play.anywhere(http, "GET", f"/v1/batches/{batch_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def keys() -> list[dict[str, Any]]:
    """Of the batch's caller, of the interactive one, and of the operator."""
    known = {"robot": {"tier": "free"}, "person": {"tier": "free"}, "ops": {"scopes": ["admin"]}}
    return [{"id": name, "sha256": digest(name), **more} for name, more in known.items()]


__all__ = ["CHAT", "ENDED", "Caller", "Play", "keys", "lines_file", "progress", "share", "upload"]
