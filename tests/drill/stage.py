"""The drill's gateways, workers and providers, and what an operator sees of them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.drill.faults import BEHIND, FALLBACK, FAULTS, PAIR, PRIMARY, TWINS
from tests.drill.provider import Provider, providers
from tests.integration.native.keys import key, secret
from tests.support.databases import place_database
from tests.support.processes import GatewayProcess
from tests.support.rawworkers import bearer
from tests.support.servers import running_server
from tests.support.serving import DEADLINE_S, WORKER_TOKEN, http_client, until

from fairlane.gateway.accounts.callers import digest
from fairlane.gateway.database.address import FILE
from fairlane.workers.adapters.dialects.base import Output
from fairlane.workers.adapters.dialects.openai import OpenAIDialect
from fairlane.workers.adapters.upstream import Upstream
from fairlane.workers.sdk import Context, Task, Worker

SLOTS = 32
GRANTED = 1_000_000
PRICES = {PRIMARY: Decimal(1), PAIR: Decimal(1), TWINS: Decimal(1), FALLBACK: Decimal("0.25")}
"""Credits of an answer."""
SETTLE_S = 60.0


def route(model: str) -> str:
    """What callers name to be answered by a model, or by the fallback."""
    return f"ask-{model}"


class Adapter(Upstream):
    """The adapter, which counts what it is given."""

    def __init__(self, provider: Provider, model: str) -> None:
        super().__init__(OpenAIDialect(), base_url=provider.url, models=[model])
        self._provider = provider

    async def __call__(self, task: Task, context: Context) -> AsyncGenerator[Output, None]:
        self._provider.attempts += 1
        async with contextlib.aclosing(super().__call__(task, context)) as items:
            async for item in items:
                yield item


class Stage:
    """What is there."""

    def __init__(self, gateways: list[GatewayProcess], of: dict[str, Provider]) -> None:
        self.gateways = gateways
        self.providers = of
        self.operators = [
            http_client(gateway.url, headers=bearer(secret("ops")), timeout=60) for gateway in gateways
        ]

    @property
    def urls(self) -> list[str]:
        """Of the gateways."""
        return [gateway.url for gateway in self.gateways]

    async def told(self, path: str, **query: Any) -> dict[str, Any]:
        """What an operator's call answers."""
        answer = await self.operators[0].get(path, params=query)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = json.loads(answer.text, parse_float=Decimal)
        return body

    async def troubles(self, model: str) -> list[str]:
        """What is not as it should be of a model's workers and their upstreams."""
        state = await self.told("/api/admin/overview")
        found = [
            f"{worker['name']} is unhealthy"
            for worker in state["workers"]
            if model in worker["models"] and worker["unhealthy"]
        ]
        for upstream in _upstreams(state, model):
            if upstream["breaker"] != "closed":
                found.append(f"the breaker of {upstream['upstream']} is {upstream['breaker']}")
            if upstream["cooldownUntil"]:
                found.append(f"{upstream['upstream']} is held")
        return found

    async def shut(self, model: str) -> list[str]:
        """The upstreams of a model at which nothing may start yet."""
        state = await self.told("/api/admin/overview")
        return [
            f"nothing starts at {upstream['upstream']}"
            for upstream in _upstreams(state, model)
            if upstream["breaker"] == "open" or upstream["cooldownUntil"]
        ]

    async def settled(self, key_id: str) -> None:
        """Return when all is in the ledger that tasks of a key have cost."""

        async def so() -> bool:
            row = (await self.told("/api/admin/balances", key=key_id))["rows"][0]
            counts = (await self.told("/api/admin/overview"))["counts"]
            return not (
                row["reserved"] or counts["recordsWaiting"] or counts["queued"] or counts["executing"]
            )

        await until(so, "the ledger to be complete", SETTLE_S)

    async def ledger(self, key_id: str) -> list[dict[str, Any]]:
        """All that was granted to a key, and that it paid."""
        rows: list[dict[str, Any]] = []
        after: str | None = ""
        while after is not None:
            page = await self.told("/api/admin/balances/ledger", key=key_id, limit=1000, after=after)
            rows += page["rows"]
            after = page["next"]
        return rows

    async def close(self) -> None:
        for operator in self.operators:
            await operator.aclose()


def _upstreams(state: dict[str, Any], model: str) -> list[dict[str, Any]]:
    return [upstream for row in state["models"] if row["model"] == model for upstream in row["upstreams"]]


def settings(first_output_ms: int, open_ms: int) -> dict[str, Any]:
    """Of both gateways."""
    each = {"first_output_ms": first_output_ms, "breaker_open_ms": open_ms, "fallback_after_ms": 0}
    quota = {"of": "key"}
    return {
        "keys": [
            key("ops", scopes=["admin"]),
            *(key(fault.name, quota=quota, tier="paid") for fault in FAULTS),
        ],
        "workers": [{"id": "drill", "sha256": digest(WORKER_TOKEN)}],
        "prices": [
            {"model": model, "input": 0, "output": 0, "request": str(price)}
            for model, price in PRICES.items()
        ],
        "models": dict.fromkeys(BEHIND, each),
        "routes": {
            route(model): {"model": model, "fallbacks": [FALLBACK]} for model in BEHIND if model != FALLBACK
        },
        "drain_ms": 0,
    }


@contextlib.asynccontextmanager
async def stage(folder: Path, *, first_output_ms: int, open_ms: int) -> AsyncIterator[Stage]:
    """Two gateways on one Redis and one database, and two workers of each model, one at each."""
    place_database(folder / "shared")
    said = settings(first_output_ms, open_ms)
    said["database_url"] = f"sqlite:///{folder}/shared/{FILE}"
    with running_server() as server:
        gateways = [GatewayProcess(_made(folder / name), server.url, **said) for name in ("a", "b")]
        async with contextlib.AsyncExitStack() as stack:
            for gateway in gateways:
                stack.push_async_callback(gateway.stop)
                await gateway.start()
            names = {name for behind in BEHIND.values() for name in behind}
            scene = Stage(gateways, await stack.enter_async_context(providers(*names)))
            stack.push_async_callback(scene.close)
            await stack.enter_async_context(_workers(scene))
            yield scene


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@contextlib.asynccontextmanager
async def _workers(scene: Stage) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running: list[asyncio.Task[None]] = []
    for model, behind in BEHIND.items():
        for gateway, name in zip(scene.gateways, behind, strict=True):
            worker = Worker(
                f"{model}-{name}",
                gateway=gateway.url,
                token=WORKER_TOKEN,
                slots=SLOTS,
                upstream=name if model != TWINS else TWINS,
            )
            Adapter(scene.providers[name], model).attach(worker)
            running.append(asyncio.create_task(worker.serve(stop, stop)))
    try:

        async def all_there() -> bool:
            return len((await scene.told("/api/admin/overview"))["workers"]) == len(running)

        await until(all_there, "the workers to be known", DEADLINE_S)
        yield
    finally:
        stop.set()
        await asyncio.wait(running, timeout=DEADLINE_S)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def grant(scene: Stage, key_id: str) -> None:
    """Let a key pay."""
    answer = await scene.operators[0].post(
        "/api/admin/balances/grants", json={"key": key_id, "credits": GRANTED, "id": f"drill-{key_id}"}
    )
    assert answer.status_code == 201, answer.text
