"""SIGHUP reads keys and limits again, in one process and in several, and never opens a gateway by mistake."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.prepared import command
from tests.support.processes import GatewayProcess, gateway_process
from tests.support.serving import DEADLINE_S, http_client, until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def config(*names: str) -> str:
    keys = [f'  - {{id: {name}, sha256: "{hashlib.sha256(name.encode()).hexdigest()}"}}' for name in names]
    return "keys:\n" + "\n".join(keys) + "\n" if keys else ""


@pytest.mark.parametrize("processes", [1, 2])
async def test_keys_are_read_again_by_every_process(redis_url: str, tmp_path: Path, processes: int) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text(config("old"))
    async with gateway_process(tmp_path, redis_url, processes=processes) as gateway:

        async def status(key: str) -> set[int]:
            """What several connections are answered: they may reach different processes."""
            answers = set()
            for _ in range(8):
                async with http_client(gateway.url) as client:
                    headers = {"Authorization": f"Bearer {key}"}
                    answers.add((await client.get("/v1/models", headers=headers)).status_code)
            return answers

        async def taken_over() -> bool:
            return await status("new") == {200} and await status("old") == {401}

        assert await status("old") == {200}
        assert gateway.log.count("a new worker token is in a file") == 1
        file.write_text(config("new"))
        gateway.signal(signal.SIGHUP)
        await until(taken_over, "the new keys")

        file.write_text("")  # cut short by an editor, or forgotten: must not open the gateway
        gateway.signal(signal.SIGHUP)
        await until(lambda: "would open the gateway" in gateway.log, "the refusal")
        assert await status("new") == {200}
        assert await status("nobody") == {401}
        assert gateway.log.count("is in a file") == 1


async def test_keys_that_come_to_an_open_gateway_close_it_to_workers_without_a_token(
    redis_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "fairlane.yaml"
    file.write_text("")
    async with gateway_process(tmp_path, redis_url) as gateway, connect(gateway.ws, proxy=None) as worker:
        assert "no keys are configured: every program on this machine" in gateway.log
        file.write_text(config("new"))
        gateway.signal(signal.SIGHUP)
        await until(lambda: "a new worker token is in a file" in gateway.log, "the token")
        token = (tmp_path / "data" / "first-worker-token.secret").read_text().strip()
        assert token not in gateway.log
        with pytest.raises(ConnectionClosed):
            async with asyncio.timeout(DEADLINE_S):
                await worker.recv()
        with pytest.raises(InvalidStatus):
            async with connect(gateway.ws, proxy=None):
                pass
        async with connect(
            gateway.ws, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None
        ) as known:
            await known.ping()


SECRETS = ("ops", "app", "leaked", "new")


def several(path: Path, *names: str) -> None:
    """Keys, of which `ops` is an admin's, and a worker token."""
    path.parent.mkdir(exist_ok=True)
    text = config(*names).replace("{id: ops,", "{id: ops, scopes: [admin],")
    path.write_text(text + "workers:" + config("gpu").removeprefix("keys:"))


def lines(gateway: GatewayProcess, event: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
    return [line for line in told if line["event"] == event]


async def replicas(gateway: GatewayProcess) -> list[dict[str, Any]]:
    async with http_client(gateway.url, headers={"Authorization": "Bearer ops"}) as client:
        answer = await client.get("/api/admin/overview")
    assert answer.status_code == 200, answer.text
    rows: list[dict[str, Any]] = answer.json()["replicas"]
    return rows


async def status(gateway: GatewayProcess) -> str:
    """What `fairlane status` prints."""
    line = command("status", "--gateway", gateway.url)
    env = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    env["FAIRLANE_API_KEY"] = "ops"
    return (await asyncio.to_thread(subprocess.run, line, stdout=subprocess.PIPE, env=env)).stdout.decode()


@pytest.mark.parametrize("processes", [1, 2])
async def test_replicas_that_differ_in_keys_and_a_refused_reload_are_shown(
    redis_url: str, tmp_path: Path, processes: int
) -> None:
    here, there = tmp_path / "here" / "fairlane.yaml", tmp_path / "there" / "fairlane.yaml"
    for file in (here, there):
        several(file, "ops", "app", "leaked")
    async with (
        gateway_process(here.parent, redis_url, processes=processes) as one,
        gateway_process(there.parent, redis_url) as other,
    ):

        async def hashes(count: int) -> bool:
            told = [row["keysHash"] for row in await replicas(other)]
            return len(told) == processes + 1 and None not in told and len(set(told)) == count

        await until(lambda: hashes(1), "all to have the same keys")
        assert "differ" not in await status(other)
        several(here, "ops", "new", "app")
        more = "models: {m: {concurrency: 3}}\nmax_calls_per_caller: 7\ndrain: 1ms\n"
        here.write_text(here.read_text().replace("{id: app,", "{id: app, weight: 2,") + more)
        one.signal(signal.SIGHUP)
        await until(lambda: hashes(2), "one to have other keys")
        assert "replicas differ in API keys or worker tokens" in await status(other)
        assert "differ in routes" not in await status(other), "a model's limits are the store's"
        read = lines(one, "keys and limits read again")
        assert len(read) == processes
        expected = {
            "keys_removed": ["leaked"],
            "keys_added": ["new"],
            "keys_changed": ["app"],
            "models_added": ["m"],
            "settings_changed": ["max_calls_per_caller"],
            "needs_restart": ["drain"],
            "level": "warning",
        }
        told = [{name: about for name, about in line.items() if name in expected} for line in read]
        assert told == [expected] * processes
        async with http_client(one.url, headers={"Authorization": "Bearer leaked"}) as client:
            refused = await client.get("/v1/models")
        assert refused.status_code == 401
        [line] = lines(one, "call with an unknown key")
        assert line["request_id"] == refused.headers["x-request-id"]
        assert (line["route"], line["address"], line["code"]) == ("/v1/models", "127.0.0.1", "UNAUTHORIZED")

        there.write_text("keys: [")
        other.signal(signal.SIGHUP)
        here.write_text("keys: [")
        one.signal(signal.SIGHUP)

        async def refusals(count: int) -> bool:
            told = [row["reloadError"] for row in await replicas(other)]
            assert all("not valid YAML" in refusal["reason"] for refusal in told if refusal)
            return len([refusal for refusal in told if refusal]) == count

        await until(lambda: refusals(processes + 1), "the refusals to be shown")
        assert (await status(other)).count("rejected its new configuration") == processes + 1
        several(there, "ops", "app", "leaked")
        other.signal(signal.SIGHUP)
        await until(lambda: refusals(processes), "the good one to count")
        shown = json.dumps(await replicas(other))
        assert not any(hashlib.sha256(name.encode()).hexdigest()[:12] in shown for name in SECRETS)


async def test_replicas_that_differ_in_fallbacks_are_shown(redis_url: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here" / "fairlane.yaml", tmp_path / "there" / "fairlane.yaml"
    for file in (here, there):
        several(file, "ops", "app")
    more = "models: {m: {fallbacks: [n]}}\n"
    there.write_text(there.read_text() + more)
    async with (
        gateway_process(here.parent, redis_url) as one,
        gateway_process(there.parent, redis_url) as other,
    ):

        async def hashes(count: int) -> bool:
            told = [row["routesHash"] for row in await replicas(other)]
            return len(told) == 2 and None not in told and len(set(told)) == count

        await until(lambda: hashes(2), "both to be known")
        assert "replicas differ in routes, templates, chains, endpoints or fallbacks" in await status(other)
        here.write_text(here.read_text() + more)
        one.signal(signal.SIGHUP)
        await until(lambda: hashes(1), "one to have the same")
        assert "differ" not in await status(other)
