"""Redis is there and refuses writes: whoever looks sees it, and it is over when it takes them again."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.metrics.scraping import scrape
from tests.support.prepared import command
from tests.support.processes import gateway_process
from tests.support.servers import Server
from tests.support.serving import http_client, until
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("setting", "value", "answer"),
    [
        ("maxmemory", "1mb", "OOM command not allowed when used memory > 'maxmemory'"),
        ("min-replicas-to-write", "1", "NOREPLICAS Not enough good replicas to write"),
    ],
)
async def test_a_redis_that_rejects_writes_is_reported_until_it_accepts_them(
    own_redis: Server, tmp_path: Path, setting: str, value: str, answer: str
) -> None:
    with own_redis.client() as store, capture_logs() as lines:
        async with talking(own_redis.url, tmp_path) as talk, talk.worker():
            assert (await talk.http.get("/readyz")).json().keys() == {"status", "workers"}
            store.config_set(setting, value)
            assert (await talk.sync()).json()["code"] == "STORE_UNAVAILABLE"
            ready = await talk.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["missing"][0].startswith(f"Redis rejects writes: {answer}")
            seen = (await talk.state())["store"]
            assert (seen["up"], seen["rejectsWrites"]) == (True, True)
            assert seen["reason"].startswith(answer)
            assert (await scrape(talk.http)).value("fairlane_redis_rejects_writes") == 1
            shown = await status(talk)
            assert f"Redis at {own_redis.socket_path} has rejected writes for" in shown
            assert answer in shown
            await until(lambda: bool(told(lines)), "a line in the log")
            store.config_set(setting, "0")
            await until(
                lambda: not talk.served.gateway.store.first.monitor.rejects_writes, "writes to be taken again"
            )
            assert (await talk.http.get("/readyz")).status_code == 200
            assert (await talk.state())["store"] == {
                "address": own_redis.socket_path,
                "up": True,
                "rejectsWrites": False,
                "since": None,
                "reason": None,
            }
            assert (await scrape(talk.http)).value("fairlane_redis_rejects_writes") == 0
    first, *_, last = told(lines)
    assert (first["event"], first["log_level"]) == ("Redis rejects writes", "error")
    assert first["reason"].startswith(answer)
    assert (last["event"], last["log_level"]) == ("Redis accepts writes again", "info")


async def test_an_action_that_cannot_be_logged_is_no_rejection(own_redis: Server, tmp_path: Path) -> None:
    """A proxy sends a 503 to another replica, which finds nothing to do any more."""
    with own_redis.client() as store, capture_logs() as lines:
        async with talking(own_redis.url, tmp_path) as talk, talk.worker2(["m"]) as worker:
            (row,) = (await talk.state())["workers"]
            store.config_set("maxmemory", "1mb")
            told = await talk.http.post(f"/api/admin/workers/{row['workerId']}/drain")
            assert (told.status_code, told.json()["code"]) == (500, "AUDIT_MISSING")
            assert "It is done" in told.json()["error"]
            await worker.expect("drain")
            store.config_set("maxmemory", "0")
    events = [line["event"] for line in lines]
    assert "operator action" in events
    assert "call rejected" not in events


async def test_a_gateways_own_redis_is_named_by_the_directory_of_its_data(tmp_path: Path) -> None:
    """Its socket lies elsewhere: who looks for the disk that is full must not look there."""
    async with gateway_process(tmp_path) as gateway, http_client(gateway.url) as http:
        where = f"its own, in {tmp_path / 'data'}"
        with gateway.store() as store:
            store.config_set("maxmemory", "1mb")
            body = {"model": "m", "async": True}
            assert (await http.post("/api/openai", json=body)).json()["code"] == "STORE_UNAVAILABLE"
            assert (await http.get("/api/admin/overview")).json()["store"]["address"] == where
            await until(lambda: "Redis rejects writes" in gateway.log, "a line in the log")
    lines = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
    said = {line["event"]: line.get("store", line.get("address")) for line in lines}
    assert [said[event] for event in ("Fairlane serves", "connected to Redis", "Redis rejects writes")] == [
        where
    ] * 3


def told(lines: Any) -> list[Any]:
    return [line for line in lines if "writes" in line["event"]]


async def status(talk: Talk) -> str:
    """What `fairlane status` prints."""
    process = await asyncio.create_subprocess_exec(
        *command("status", "--gateway", talk.served.url),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


@pytest.mark.slow
async def test_the_history_holds_what_redis_did_not_take(own_redis: Server, tmp_path: Path) -> None:
    with own_redis.client() as store:
        async with talking(own_redis.url, tmp_path) as talk, talk.worker():
            store.config_set("maxmemory", "1mb")
            assert (await talk.sync()).json()["code"] == "STORE_UNAVAILABLE"

            await asyncio.sleep(11)  # a bucket is not written
            store.config_set("maxmemory", "0")

            async def shown() -> bool:
                return bool((await talk.http.get("/api/admin/timeseries")).json()["total"]["rejected"] == 1)

            await until(shown, "the rejection to be shown", 30)


async def test_a_survey_tells_how_much_memory_redis_takes_and_may_take(
    own_redis: Server, tmp_path: Path
) -> None:
    with own_redis.client() as store:
        store.config_set("maxmemory", "500mb")
        async with talking(own_redis.url, tmp_path) as talk:
            seen = await scrape(talk.http)
            assert seen.value("fairlane_redis_memory_max_bytes") == 500 * 1024 * 1024
            assert 0 < seen.value("fairlane_redis_memory_bytes") < 100e6
