"""The gateway under attack, with its Redis and workers: processes of their own, ended with the block."""

import asyncio
import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import redis
from tests.hostile import cast
from tests.hostile.report import Part
from tests.hostile.spec import Spec
from tests.integration.metrics.scraping import Scrape, parse
from tests.support.prepared import command
from tests.support.processes import GatewayProcess
from tests.support.servers import running_server
from tests.support.serving import http_client, until

from fairlane.queues.replies import decode_map
from fairlane.workers.server.cancel import TOMBSTONE_MS

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_S = 0.2
LIBRARY_LINE = "Invalid UTF-8 sequence received from client."
"""What uvicorn says, with a traceback, of a text frame that is none: noted among the other errors."""
GRACE_S = 60.0
"""How much longer than it should an attacker may take."""


KEPT_MS = 70_000
HOUR_MS = 3_600_000
"""At most, by the settings of a run."""


def _longest_kept(record: dict[str, Any]) -> int:
    """For how long, in ms, a record of these fields may stay when its task is over."""
    if record["state"] == "gone":
        return TOMBSTONE_MS
    if record["type"] in ("http", "permit"):
        return HOUR_MS
    return KEPT_MS if "idempotency" in record else 0


class Stage:
    """What was started, and what can be seen of it from outside."""

    def __init__(self, gateway: GatewayProcess, store: "redis.Redis") -> None:
        self.gateway = gateway
        self._store = store
        self._process = psutil.Process(gateway.pid)
        self.samples: list[int] = []
        """Its memory while it is attacked."""

    @property
    def rss_bytes(self) -> int:
        """Resident memory of the gateway."""
        return int(self._process.memory_info().rss)

    @property
    def files(self) -> int:
        """Open files and sockets of the gateway."""
        return int(self._process.num_fds())

    async def sample(self) -> None:
        """Sample its memory, until cancelled."""
        while True:
            self.samples.append(self.rss_bytes)
            await asyncio.sleep(SAMPLE_S)

    def keys(self) -> Counter[str]:
        """The keys in Redis by kind, as `queues/keys.py` begins them.

        `kept` are records that go by themselves: of ended tasks for those who come again with their idempotency key, a minute at
        least, or to a task of an endpoint, an hour; marks that refuse a submit which its gateway gave up, should it come late.
        """
        kinds: Counter[str] = Counter()
        for name in self._store.scan_iter(count=1000):
            prefix, _, rest = name.partition(b"}:")
            kind, _, task = rest.partition(b":")
            if kind in (b"task", b"log"):
                parts = self._store.hmget(prefix + b"}:task:" + task, "spec", "run")
                record = {name: value for part in parts if part for name, value in decode_map(part).items()}
                if record and 0 < self._left_ms(name, record) <= _longest_kept(record):
                    kind = b"kept"
            kinds[kind.decode("utf-8", "replace")] += 1
        return kinds

    def _left_ms(self, name: bytes, record: dict[str, Any]) -> float:
        """For how long a record or a log is kept yet; 0: the task has not ended."""
        if record.get("state") == "gone":
            return float(self._store.pttl(name))
        return record["expires_at"] - time.time() * 1000 if "expires_at" in record else 0

    async def scrape(self) -> Scrape:
        """Its metrics."""
        head = {"Authorization": f"Bearer {cast.secret('watch')}"}
        async with http_client(timeout=30, headers=head) as http:
            answer = await http.get(f"{self.gateway.url}/metrics")
            answer.raise_for_status()
        return parse(answer.text)

    async def warm_up(self) -> None:
        """Ask for what is loaded or made once, and is part of its memory from then on: the library for metrics, the document."""
        await self.scrape()
        async with http_client(timeout=30) as http:
            (await http.get(f"{self.gateway.url}/openapi.json")).raise_for_status()

    def complaints(self) -> tuple[Counter[str], Counter[str]]:
        """What its log says that should not be: (tracebacks, other errors), by their first line without addresses."""
        tracebacks: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for line in self.gateway.log.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            event = re.sub(r"0x[0-9a-f]+|Task-\d+", "…", str(entry.get("event", "")).split("\n")[0])[:90]
            if "exception" in entry and event != LIBRARY_LINE:
                last = str(entry["exception"]).strip().splitlines()[-1]
                tracebacks[f"{event}: {re.sub('0x[0-9a-f]+', '…', last)[:110]}"] += 1
            elif entry.get("level") in ("error", "critical"):
                errors[event] += 1
        return tracebacks, errors


@contextlib.asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """A gateway with the cast's keys and settings, and an echo and a simulate worker that it knows."""
    with running_server() as server:
        gateway = GatewayProcess(folder, server.url, **cast.settings())
        children: list[asyncio.subprocess.Process] = []
        store = server.client()
        try:
            await gateway.start()
            pace = ["--ttft-ms", "10", "--tokens-per-second", "500", "--tokens", "16"]
            for kind, model, more in (
                ("start", cast.STREAMING, ["--provider", "echo"]),
                ("simulate", cast.SLOW, pace),
            ):
                children.append(await _worker(gateway.url, kind, model, more, folder))
            await until(lambda: _offered(gateway.url), "the workers to be known", 40)
            yield Stage(gateway, store)
        finally:
            for child in children:
                if child.returncode is None:
                    child.terminate()
                await child.wait()
            await gateway.stop()
            store.close()


async def _worker(
    url: str, kind: str, model: str, more: list[str], folder: Path
) -> asyncio.subprocess.Process:
    line = command("worker", kind, "--model", model, "--slots", "64")
    with (folder / f"{kind}.log").open("wb") as log:
        return await asyncio.create_subprocess_exec(
            *(*line, "--gateway", url, "--drain-ms", "0", *more),
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, "FAIRLANE_WORKER_TOKEN": cast.secret(cast.GOOD_WORKER)},
        )


async def _offered(url: str) -> bool:
    head = {"Authorization": f"Bearer {cast.secret('watch')}"}
    async with http_client(timeout=10, headers=head) as http:
        names = {model["id"] for model in (await http.get(f"{url}/v1/models")).json()["data"]}
    return {cast.STREAMING, cast.SLOW} <= names


async def attack(module: str, spec: Spec) -> Part:
    """Run one attacker to its end: its report."""
    process = await asyncio.create_subprocess_exec(
        *command(spec.text(), module=f"tests.hostile.{module}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        limit=1 << 24,
    )
    try:
        async with asyncio.timeout(spec.seconds + GRACE_S):
            said, complained = await process.communicate()
    except TimeoutError:
        part = Part(module)
        part.fault("attacker", 0, f"{module} did not come to its end")
        return part
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"the attacker {module} failed: {complained.decode()[-3000:]}")
    return msgspec.json.decode(said.splitlines()[-1], type=Part)
