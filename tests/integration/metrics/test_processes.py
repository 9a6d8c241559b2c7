"""The processes of one gateway are scraped together, whichever of them answers."""

import asyncio
import os
import signal
import stat
from pathlib import Path

import httpx2
import psutil
import pytest
from tests.support.processes import gateway_process
from tests.support.serving import http_client, until

from fairlane.gateway.metrics.siblings import Siblings, Snapshot, SnapshotServer, snapshots_of

from .scraping import Scrape, parse

pytestmark = pytest.mark.anyio

ANSWERS = "fairlane_http_request_duration_seconds_count"


async def fresh_scrape(url: str) -> Scrape:
    """Over a connection of its own: any of the processes may answer."""
    async with http_client(timeout=10) as http:
        return parse((await http.get(f"{url}/metrics")).text)


def of_each(seen: Scrape) -> dict[str, float]:
    """Answers counted by each process, but for those to /metrics itself."""
    counts: dict[str, float] = {}
    for labels, value in seen.samples.get(ANSWERS, []):
        if labels["route"] != "/metrics":
            counts[labels["process"]] = counts.get(labels["process"], 0) + value
    return counts


@pytest.mark.slow
async def test_each_scrape_tells_of_every_process_and_nothing_ever_falls(
    tmp_path: Path, redis_url: str
) -> None:
    async with gateway_process(tmp_path, redis_url, processes=2, drain_ms=500) as gateway:
        seen = await fresh_scrape(gateway.url)
        asked, last = 0, {"0": 0.0, "1": 0.0}
        while min(last.values()) < 5:
            asked += 1
            assert asked < 500, "both processes answer some time"
            async with http_client() as http:
                await http.get(f"{gateway.url}/v1/models")
            seen = await fresh_scrape(gateway.url)
            now = {process: count for process, count in of_each(seen).items() if process in last}
            assert all(now.get(process, 0.0) >= count for process, count in last.items()), (now, last)
            last |= now
        routes = [value for labels, value in seen.samples[ANSWERS] if labels["route"] == "/v1/models"]
        assert sum(routes) == asked
        assert len(seen.values("process_resident_memory_bytes")) == 2
        assert seen.values("fairlane_redis_connections_total") == [1, 1]

        [killed] = [child for child in psutil.Process(gateway.pid).children() if has_socket(child, "0.sock")]
        os.kill(killed.pid, signal.SIGKILL)

        async def is_back() -> bool:
            try:
                seen = await fresh_scrape(gateway.url)
            except httpx2.TransportError:
                return False
            started = {
                labels["process"]: value for labels, value in seen.samples["process_start_time_seconds"]
            }
            return started.get("0", 0) > killed_at

        killed_at = killed.create_time()
        await until(is_back, "the process that takes its place", 40)
        after = of_each(await fresh_scrape(gateway.url))
        assert after["1"] >= last["1"]
        assert after.get("0", 0) < last["0"], "it counts from zero under the same number"


def has_socket(process: psutil.Process, name: str) -> bool:
    return any(
        connection.laddr and str(connection.laddr).endswith(name)
        for connection in process.net_connections(kind="unix")
    )


async def test_one_that_hangs_is_left_out_in_time(tmp_path: Path) -> None:
    def snapshot(index: int) -> Snapshot:
        return Snapshot(index, os.getpid(), {"x": [(("a",), [1.0])]})

    siblings = [Siblings(tmp_path, index, 3) for index in range(3)]
    answering = SnapshotServer(siblings[1], lambda: snapshot(1))
    siblings[1].socket(1).touch()  # what a killed process leaves
    await answering.start()
    hung = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hung.wait()
        writer.close()

    hanging = await asyncio.start_unix_server(hang, siblings[2].socket(2))
    try:
        assert stat.S_ISSOCK(siblings[1].socket(1).stat().st_mode)
        async with asyncio.timeout(10):
            assert await snapshots_of(siblings[0], snapshot(0)) == [snapshot(0), snapshot(1)]
    finally:
        hung.set()
        await answering.close()
        hanging.close()
        await hanging.wait_closed()
