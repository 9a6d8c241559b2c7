"""Two gateways on one Redis and several workers of each, every one a process of its own; all ended when the block ends."""

import contextlib
import hashlib
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import redis
from tests.support.prepared import command
from tests.support.processes import GatewayProcess, gateway_process
from tests.support.servers import Server, running_server
from tests.support.serving import until

from bench.fairness.checks import TIERS
from bench.fairness.live_worker import Record, WorkerSpec
from fairlane.queues.keys import Keys, pool_prefix

REPLICAS = 2
WORKERS_EACH = 2
END_S = 15.0
KEEP_MS = 1_800_000
"""Logs are kept until an experiment has looked at them."""
PATIENCE_MS = 10_000
"""A machine that is busy with other things may be slow, but shall not look like a dead Redis."""
OPERATOR = "operator"
TOKEN = secrets.token_hex(16)
KEYS = Keys(pool_prefix())


@dataclass(frozen=True)
class Key:
    """A caller's key; its secret lives as long as this process."""

    id: str
    tier: str = "free"
    admin: bool = False
    delegating: bool = False
    """Its calls may say which user they are for."""

    @property
    def secret(self) -> str:
        return f"{self.id}-{TOKEN}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}

    def entry(self) -> dict[str, Any]:
        """Its entry in the configuration."""
        rights = {"scopes": ["admin" if self.admin else "call"], "delegating": self.delegating}
        return {"id": self.id, "tier": self.tier, "sha256": _digest(self.secret), **rights}


@dataclass
class Stack:
    """What runs, and what can be asked of it."""

    server: Server
    store: Any
    """A client of its Redis."""
    gateways: Sequence[GatewayProcess]
    records_file: Path
    operator: httpx2.AsyncClient

    @property
    def urls(self) -> list[str]:
        return [gateway.url for gateway in self.gateways]

    async def set(self, model: str, **values: int | bool | None) -> None:
        """Change settings of a model; they hold on both replicas from the next decision on."""
        answer = await self.operator.patch(f"/api/admin/models/{model}", json=values)
        answer.raise_for_status()

    async def set_queue(self, queue: str, **values: int | bool | None) -> None:
        """The same of a queue."""
        answer = await self.operator.patch(f"/api/admin/queues/{queue}", json=values)
        answer.raise_for_status()

    async def counts(self) -> dict[str, int]:
        """What an operator sees: queued, executing, completed, failed, cancelled."""
        answer = await self.operator.get("/api/admin/overview", params={"tasks": "0"})
        answer.raise_for_status()
        counts: dict[str, int] = answer.json()["counts"]
        return counts

    def records(self, model: str) -> list[Record]:
        """What the workers ran of a model, in the order of the ends."""
        lines = self.records_file.read_bytes().splitlines() if self.records_file.exists() else []
        found = (msgspec.json.decode(line, type=Record) for line in lines)
        return [record for record in found if record.model == model]


@contextlib.asynccontextmanager
async def running(folder: Path, keys: Iterable[Key], slots: int) -> AsyncIterator[Stack]:
    """Redis, gateways and workers, with `slots` worker slots in all; the workers take any model."""
    settings: dict[str, Any] = {
        "keys": [key.entry() for key in (*keys, Key(OPERATOR, admin=True))],
        "workers": [{"id": "workers", "sha256": _digest(TOKEN)}],
        "queues": {name: {"weight": weight} for name, weight in TIERS.items()},
        "task_result_ttl_ms": KEEP_MS,
        "max_result_ttl_ms": KEEP_MS,
        "redis_timeout_ms": PATIENCE_MS,
        "stream_flush_size": 1000,
        "log_level": "warning",
        "drain_ms": 1000,
    }
    async with contextlib.AsyncExitStack() as exits:
        server = exits.enter_context(running_server())
        gateways = [
            await exits.enter_async_context(gateway_process(folder / f"gateway-{n}", server.url, **settings))
            for n in range(REPLICAS)
        ]
        records = folder / "records.jsonl"
        count = REPLICAS * WORKERS_EACH
        for n in range(count):
            own = slots // count + (n < slots % count)
            spec = WorkerSpec(gateways[n % REPLICAS].url, TOKEN, f"worker-{n + 1}", own, str(records))
            exits.enter_context(_worker(spec, folder))
        store = redis.Redis(unix_socket_path=server.socket_path)
        exits.callback(store.close)
        operator = await exits.enter_async_context(
            httpx2.AsyncClient(
                base_url=gateways[0].url,
                headers=Key(OPERATOR, admin=True).headers,
                trust_env=False,
                timeout=30,
            )
        )

        async def connected() -> bool:
            state = (await operator.get("/api/admin/overview", params={"tasks": "0"})).json()
            return bool(sum(worker["slots"] for worker in state["workers"]) == slots)

        await until(connected, "the workers to connect", 30)
        yield Stack(server, store, gateways, records, operator)


@contextlib.contextmanager
def _worker(spec: WorkerSpec, folder: Path) -> Iterator[None]:
    with (folder / f"{spec.name}.log").open("wb") as output:
        process = subprocess.Popen(
            command(msgspec.json.encode(spec).decode(), module="bench.fairness.live_worker"),
            stdout=output,
            stderr=output,
            env={k: v for k, v in os.environ.items() if not k.startswith("FAIRLANE_")},
            cwd=Path(__file__).resolve().parents[2],
        )
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGTERM):  # the second cancels what still runs
            if process.poll() is None:
                process.send_signal(number)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
