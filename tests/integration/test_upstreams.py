"""One process and one file in front of servers: a gateway that starts its workers itself, and what becomes of them."""

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import yaml
from tests.support.processes import GatewayProcess, gateway_process, runs
from tests.support.serving import http_client, until
from tests.support.upstream import Upstream, upstream

from fairlane.gateway.accounts.secrets import new_secret

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

START_S = 40.0
SECRET = "the-providers-secret"
KEY, KEY_SHA256 = new_secret("key", "app")
OPS, OPS_SHA256 = new_secret("key", "ops")
KEYS = [{"id": "app", "sha256": KEY_SHA256}, {"id": "ops", "sha256": OPS_SHA256, "scopes": ["admin"]}]


@pytest.fixture
async def one() -> AsyncIterator[Upstream]:
    async with upstream("one") as server:
        yield server


@pytest.fixture
async def two() -> AsyncIterator[Upstream]:
    async with upstream("two") as server:
        yield server


def settings(server: Upstream, *models: str, **more: Any) -> dict[str, Any]:
    return {"provider": "openai", "base_url": server.url, "models": list(models or ["m"]), **more}


def write(folder: Path, upstreams: dict[str, Any], **more: Any) -> None:
    (folder / "fairlane.yaml").write_text(yaml.safe_dump({"upstreams": upstreams, **more}))


async def ask(gateway: GatewayProcess, model: str = "m", key: str = "") -> httpx2.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    async with http_client(gateway.url, headers=headers) as client:
        return await client.post("/v1/chat/completions", json=body)


async def says(
    gateway: GatewayProcess, text: str, model: str = "m", key: str = "", *, never_fails: bool = False
) -> None:
    """Wait until a model answers so."""

    async def said() -> bool:
        answer = await ask(gateway, model, key)
        assert answer.is_success or not never_fails, answer.text
        return answer.is_success and answer.json()["choices"][0]["message"]["content"] == text

    await until(said, f"{model} to say {text!r}", START_S)


async def workers(gateway: GatewayProcess, key: str = "") -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with http_client(gateway.url, headers=headers) as client:
        told: list[dict[str, Any]] = (await client.get("/api/admin/overview")).json()["workers"]
        return told


def children(gateway: GatewayProcess) -> dict[str, psutil.Process]:
    """The processes of its own workers, by their names."""
    found = {}
    for child in psutil.Process(gateway.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends just now
            for part in child.cmdline():
                if part.startswith("--name="):
                    found[part.removeprefix("--name=")] = child
    return found


async def first_word(client: httpx2.AsyncClient, gateway: GatewayProcess, stack: list[Any]) -> Any:
    """The lines of a stream whose first word has come."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    response = await client.send(
        client.build_request("POST", f"{gateway.url}/v1/chat/completions", json=body), stream=True
    )
    stack.append(response)
    assert response.status_code == 200
    lines = response.aiter_lines()
    async for line in lines:
        if '"content":"one ' in line.replace('": "', '":"'):
            return lines
    raise AssertionError("the stream has ended")


async def rest_of(lines: Any) -> str:
    """The words that follow, of a stream that ends as it should."""
    told, ended = "", False
    async for line in lines:
        if line == "data: [DONE]":
            ended = True
        elif line.startswith("data: "):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                told += choice["delta"].get("content") or ""
    assert ended
    return told


@pytest.mark.parametrize("processes", [1, 2])
async def test_one_file_is_enough_with_keys_too_and_nothing_tells_a_secret(
    tmp_path: Path, one: Upstream, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONES_KEY", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", "another-ones")
    write(
        tmp_path,
        {
            "keyed": settings(one, slots=3, api_key_env="ONES_KEY") | {"models": {"m": "its/name"}},
            "plain": settings(one, "n"),
        },
        keys=KEYS,
        processes=processes,
    )
    async with gateway_process(tmp_path) as gateway:
        await says(gateway, "one says hello", "m", KEY)
        await says(gateway, "one says hello", "n", KEY)
        asked = {body["model"]: headers.get("authorization") for headers, body in one.asked}
        assert asked == {"its/name": f"Bearer {SECRET}", "n": None}
        told = {worker["name"]: worker for worker in await workers(gateway, OPS)}
        assert {name: (row["models"], row["slots"]) for name, row in told.items()} == {
            "keyed": (["m"], 3),
            "plain": (["n"], 1),
        }
        for child in children(gateway).values():
            environ = child.environ()
            token = environ["FAIRLANE_WORKER_TOKEN"]
            said = f"{child.cmdline()} {gateway.log} {json.dumps(told)}"
            assert token not in said
            assert SECRET not in said
            assert {name for name in environ if "KEY" in name} <= {"ONES_KEY"}
        assert "ONES_KEY" not in children(gateway)["plain"].environ()


async def test_a_worker_that_dies_comes_back_and_one_that_is_drained_when_the_file_is_read_again(
    tmp_path: Path, one: Upstream
) -> None:
    write(tmp_path, {"local": settings(one)})
    async with gateway_process(tmp_path) as gateway:
        await says(gateway, "one says hello")
        before = children(gateway)["local"]
        before.kill()
        await until(lambda: not runs(before.pid), "its end")
        await says(gateway, "one says hello")
        assert "an upstream's worker has died and is started again" in gateway.log

        [worker] = await workers(gateway)
        drained = children(gateway)["local"]
        async with http_client(gateway.url) as client:
            answer = await client.post(f"/api/admin/workers/{worker['workerId']}/drain")
            assert answer.status_code == 200
        await until(lambda: "it stays down until SIGHUP or a restart" in gateway.log, "the line")
        assert not runs(drained.pid)
        assert not children(gateway)
        gateway.signal(signal.SIGHUP)
        await says(gateway, "one says hello")


@pytest.mark.parametrize("processes", [1, 2])
async def test_no_worker_outlives_a_gateway_that_is_killed(
    tmp_path: Path, one: Upstream, processes: int
) -> None:
    write(tmp_path, {"local": settings(one)}, processes=processes)
    async with gateway_process(tmp_path) as gateway:
        await says(gateway, "one says hello")
        worker = children(gateway)["local"]
        await gateway.kill()
        await until(lambda: not runs(worker.pid), "the worker to end", START_S)


@pytest.mark.parametrize("processes", [1, 2])
async def test_reading_the_file_again_starts_changes_and_stops_and_leaves_the_others_alone(
    tmp_path: Path, one: Upstream, two: Upstream, processes: int
) -> None:
    stays = {"stays": settings(one, "s"), "gone": settings(one, "g"), "changed": settings(one)}
    write(tmp_path, stays, processes=processes)
    async with gateway_process(tmp_path) as gateway:
        for model in "sgm":
            await says(gateway, "one says hello", model)
        before = children(gateway)
        now = {"stays": settings(one, "s"), "changed": settings(two, slots=5), "new": settings(two, "n")}
        write(tmp_path, now, processes=processes)
        gateway.signal(signal.SIGHUP)
        await says(gateway, "two says hello", never_fails=True)  # the model is offered all the time
        await says(gateway, "two says hello", "n")
        for name in ("gone", "changed"):
            await until(lambda name=name: not runs(before[name].pid), f"{name} to end")  # type: ignore[misc]
        assert (await ask(gateway, "g")).status_code in (404, 503)
        assert children(gateway)["stays"].pid == before["stays"].pid

        ids: set[str] = set()

        async def told() -> bool:  # (what another process tells is a quarter of a second old)
            listed = await workers(gateway)
            ids.clear()
            ids.update(worker["workerId"] for worker in listed)
            rows = [(worker["name"], worker["slots"]) for worker in listed]
            return sorted(rows) == [("changed", 5), ("new", 1), ("stays", 1)]

        await until(told, "the state to tell of them")

        after = {name: child.pid for name, child in children(gateway).items()}
        write(tmp_path, {"stays": settings(one, "s", api_key_env="NOT_SET_ANYWHERE")}, processes=processes)
        gateway.signal(signal.SIGHUP)
        await until(lambda: "NOT_SET_ANYWHERE is not set" in gateway.log, "the refusal")
        assert {name: child.pid for name, child in children(gateway).items()} == after

        write(tmp_path, now, processes=processes, keys=KEYS)  # others would be cut off: they showed no token
        gateway.signal(signal.SIGHUP)
        await until(lambda: gateway.log.count("keys_added") == processes, "keys to be wanted")
        for model, text in (("s", "one says hello"), ("m", "two says hello"), ("n", "two says hello")):
            await says(gateway, text, model, KEY, never_fails=True)

        async def same() -> bool:
            return {worker["workerId"] for worker in await workers(gateway, OPS)} == ids

        await until(same, "the same workers to be connected")


async def test_a_running_stream_ends_well_when_its_upstream_is_changed(
    tmp_path: Path, one: Upstream, two: Upstream
) -> None:
    write(tmp_path, {"local": settings(one)})
    responses: list[Any] = []
    async with gateway_process(tmp_path) as gateway, http_client() as client:
        await says(gateway, "one says hello")
        one.goes_on.clear()
        lines = await first_word(client, gateway, responses)
        before = children(gateway)["local"]
        write(tmp_path, {"local": settings(two)})
        gateway.signal(signal.SIGHUP)
        await says(gateway, "two says hello")
        await until(lambda: "draining: 1 running" in gateway.log, "the worker before to drain")
        assert runs(before.pid)
        one.goes_on.set()
        assert await rest_of(lines) == "says hello"
        await until(lambda: not runs(before.pid), "the worker before to end")


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_gateway_that_is_told_to_stop_lets_a_stream_end_and_leaves_nothing(
    tmp_path: Path, one: Upstream, processes: int
) -> None:
    write(tmp_path, {"local": settings(one)}, processes=processes)
    responses: list[Any] = []
    async with gateway_process(tmp_path) as gateway, http_client() as client:
        await says(gateway, "one says hello")
        one.goes_on.clear()
        lines = await first_word(client, gateway, responses)
        worker = children(gateway)["local"]
        gateway.signal(signal.SIGTERM)
        await until(lambda: "the gateway drains" in gateway.log, "the drain")
        assert runs(worker.pid)
        one.goes_on.set()
        assert await rest_of(lines) == "says hello"
        assert await gateway.ended() == 0
        assert not runs(worker.pid)
        assert "has died" not in gateway.log


async def test_what_dies_again_and_again_is_said_in_few_lines_and_the_others_are_served(
    tmp_path: Path, one: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_KEY", "a key that no header can carry: \N{HORIZONTAL ELLIPSIS}")
    write(tmp_path, {"local": settings(one), "bad": settings(one, "b", api_key_env="NO_KEY")})
    async with gateway_process(tmp_path) as gateway:

        def deaths() -> list[dict[str, Any]]:
            lines = [json.loads(line) for line in gateway.log.splitlines() if line.startswith("{")]
            return [line for line in lines if "has died" in line["event"]]

        await says(gateway, "one says hello")
        await until(lambda: len(deaths()) == 3, "it to die four times", START_S)
        assert [line["times"] for line in deaths()] == [1, 2, 4]
        for line in deaths():
            assert (line["upstream"], line["exit_code"]) == ("bad", 2)
            assert "secrets are plain ASCII" in line["said"][-1]
        assert len(re.findall("secrets are plain ASCII", gateway.log)) <= 5
        await says(gateway, "one says hello")
        assert (await ask(gateway, "b")).status_code == 503  # it is known, and not there


async def test_a_file_that_cannot_be_used_is_refused_at_the_start(tmp_path: Path, one: Upstream) -> None:
    write(tmp_path, {"local": settings(one, api_key_env="NOT_SET_ANYWHERE")})
    gateway = GatewayProcess(tmp_path)
    assert await asyncio.to_thread(gateway.launch().wait, START_S) == 2
    assert gateway.log.startswith(
        "fairlane: fairlane.yaml: upstreams.local.api_key_env: the environment variable NOT_SET_ANYWHERE is not set"
    )
