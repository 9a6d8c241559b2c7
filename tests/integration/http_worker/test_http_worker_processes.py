"""The HTTP worker as a process: by hand, and as a gateway starts it where there are endpoints."""

import asyncio
import contextlib
import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import yaml
from tests.integration.http_worker.targets import LOOPBACK, Asked, answer, payload, says, target
from tests.integration.workers_sdk.sdk_bench import COMMAND, DEADLINE_S
from tests.support.processes import GatewayProcess, gateway_process, process, runs
from tests.support.serving import http_client, until

from fairlane.gateway.accounts.secrets import new_secret
from fairlane.workers.testing import FakeGateway

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

START_S = 40.0
KEY, KEY_SHA256 = new_secret("key", "app")
OPS, OPS_SHA256 = new_secret("key", "ops")
KEYS = [{"id": "app", "sha256": KEY_SHA256}, {"id": "ops", "sha256": OPS_SHA256, "scopes": ["admin"]}]


def write(folder: Path, endpoints: dict[str, Any], **more: Any) -> None:
    (folder / "fairlane.yaml").write_text(yaml.safe_dump({"endpoints": endpoints, **more}))


def http_worker(gateway: GatewayProcess) -> psutil.Process | None:
    """The process that the gateway has started for its endpoints."""
    for child in psutil.Process(gateway.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends just now
            if "--name=http" in child.cmdline():
                return child
    return None


async def ask(gateway: GatewayProcess, url: str, key: str = "", **more: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with http_client(gateway.url, headers=headers) as client:
        return await client.post("/api/tasks", json={"type": "http", "url": url, "method": "GET", **more})


async def gets(gateway: GatewayProcess, url: str, body: str, key: str = "") -> None:
    """Wait until a call is answered so."""

    async def got() -> bool:
        told = await ask(gateway, url, key)
        return told.is_success and told.json()["body"] == body

    await until(got, f"{url} to answer {body!r}", START_S)


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_gateway_with_endpoints_makes_their_calls(tmp_path: Path, processes: int) -> None:
    async with target(says(answer(b"hello"))) as server:
        endpoint = {
            "url": server.url("/v1/*"),
            "allow_private": LOOPBACK,
            "set_headers": {"X-Own": "a-secret"},
        }
        write(tmp_path, {"one": endpoint}, keys=KEYS, processes=processes, http_worker_slots=3)
        async with gateway_process(tmp_path) as gateway:
            await gets(gateway, server.url("/v1/x"), "hello", KEY)
            assert server.asked[-1].header("x-own") == ["a-secret"]
            async with http_client(gateway.url, headers={"Authorization": f"Bearer {OPS}"}) as client:
                [row] = (await client.get("/api/admin/overview")).json()["workers"]
            assert (row["name"], row["models"], row["slots"]) == ("http", ["http:one"], 3)
            worker = http_worker(gateway)
            assert worker is not None
            said = f"{worker.cmdline()} {gateway.log} {json.dumps(row)}"
            assert worker.environ()["FAIRLANE_WORKER_TOKEN"] not in said
            assert "a-secret" not in said

            worker.kill()
            await until(lambda: not runs(worker.pid), "its end")
            await gets(gateway, server.url("/v1/x"), "hello", KEY)
            assert "the HTTP worker has died and is started again" in gateway.log


async def test_it_comes_with_the_first_endpoint_and_goes_with_the_last(tmp_path: Path) -> None:
    async with (
        target(says(answer(b"hello"))) as server,
        gateway_process(tmp_path, processes=2) as gateway,
        http_client(gateway.url) as client,
    ):
        assert http_worker(gateway) is None
        added = {"name": "one", "url": server.url("/v1/*"), "allow_private": LOOPBACK}
        told = await client.post("/api/admin/endpoints", json=added)
        assert told.status_code == 201, told.text
        await gets(gateway, server.url("/v1/x"), "hello")
        assert (await client.delete("/api/admin/endpoints/one")).is_success
        await until(lambda: http_worker(gateway) is None, "its end", START_S)


async def test_a_gateway_that_is_to_start_none_starts_none(tmp_path: Path) -> None:
    """Whoever is started by hand makes the calls, also with a token."""
    async with target(says(answer(b"hello"))) as server:
        write(tmp_path, {"one": {"url": server.url("/*"), "allow_private": LOOPBACK}}, http_worker_slots=0)
        async with gateway_process(tmp_path) as gateway:
            told = await ask(gateway, server.url("/x"))
            assert (told.status_code, told.json()["code"]) == (503, "NO_WORKER")
            assert http_worker(gateway) is None
            async with process(
                *COMMAND, "start", "--provider", "http", "--slots", "2", FAIRLANE_GATEWAY=gateway.url
            ):
                await gets(gateway, server.url("/x"), "hello")


async def test_a_file_that_is_read_again_starts_and_ends_it(tmp_path: Path) -> None:
    async with target(says(answer(b"hello"))) as server:
        one = {"one": {"url": server.url("/*"), "allow_private": LOOPBACK}}
        write(tmp_path, {})
        async with gateway_process(tmp_path) as gateway:
            write(tmp_path, one)
            gateway.signal(signal.SIGHUP)
            await gets(gateway, server.url("/x"), "hello")
            before = http_worker(gateway)
            write(tmp_path, one, http_worker_slots=7)
            gateway.signal(signal.SIGHUP)
            await until(lambda: http_worker(gateway) not in (None, before), "another one", START_S)
            write(tmp_path, {})
            gateway.signal(signal.SIGHUP)
            await until(lambda: http_worker(gateway) is None, "its end", START_S)


async def test_a_call_that_runs_is_finished_on_the_way_down(tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "/slow" in asked.line:
            await goes_on.wait()
        writer.write(answer(b"at last"))

    async with target(slow) as server:
        write(tmp_path, {"one": {"url": server.url("/*"), "allow_private": LOOPBACK}})
        async with gateway_process(tmp_path) as gateway:
            await gets(gateway, server.url("/x"), "at last")
            calling = asyncio.create_task(ask(gateway, server.url("/slow")))
            await until(lambda: "/slow" in server.asked[-1].line, "the call")
            gateway.signal(signal.SIGTERM)

            async def goes() -> bool:
                return (await ask(gateway, server.url("/x"))).status_code == 503

            await until(goes, "it to go")
            goes_on.set()
            assert (await calling).json()["body"] == "at last"
            assert await gateway.ended() == 0


async def test_by_hand_it_finishes_what_it_runs_when_it_is_told_to_end() -> None:
    goes_on = asyncio.Event()

    async def slow(_: Asked, writer: asyncio.StreamWriter) -> None:
        await goes_on.wait()
        writer.write(answer(b"at last"))

    async with (
        FakeGateway() as gateway,
        target(slow) as server,
        process(
            *COMMAND, "start", "--provider", "http", "--slots", "5", FAIRLANE_GATEWAY=gateway.url
        ) as child,
    ):
        link = await gateway.worker("http:*")
        assert link.register is not None
        assert (link.register["slots"], link.register["taskTypes"]) == (5, ["http"])
        assert "upstream" not in link.register  # an endpoint's model has a breaker of its own
        given = await gateway.give("http", payload(server.url("/x")), model="http:*", tell_sent=True)
        await until(lambda: len(server.asked) == 1, "the call")
        async with asyncio.timeout(DEADLINE_S):
            await given.sent.wait()
        child.send_signal(signal.SIGTERM)
        await gateway.until(lambda: given.link.draining)
        goes_on.set()
        outcome = await given.outcome()
        async with asyncio.timeout(DEADLINE_S):
            assert await child.wait() == 0
    assert outcome.result["body"] == "at last"
