"""A gateway with disabled features: the others work, and calls, Lua and components of the disabled ones are left out."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.contract.gateway import Gateway as Caller
from tests.contract.gateway import polled
from tests.contract.http.test_life import CHAT, chunks, events, submit
from tests.support.features import with_dependents
from tests.support.processes import GatewayProcess
from tests.support.servers import Server
from tests.support.serving import Served, serving

from fairlane.gateway.features import BY_NAME, FEATURES, feature_of_path
from fairlane.queues.store.scripts import FEATURES as MODULES

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("redis_url")]  # which empties the store


@contextlib.asynccontextmanager
async def gateway_without(
    server: Server, folder: Path, *names: str, **settings: Any
) -> AsyncIterator[Served]:
    async with serving(server.url, folder, disabled_features=[*names], **settings) as served:
        yield served


async def check_core(served: Served) -> None:
    """Native sync, chat, SSE and poll."""
    caller = Caller(cast(GatewayProcess, served))
    async with caller.client() as client, caller.worker_v2("m") as worker:
        task_id = await submit(client)
        task = await worker.take()
        await chunks(worker, task, "one ", "two")
        await worker.finish(task, lastSeq=2)
        assert (await polled(client, task_id, "completed"))["result"]["content"] == "one two"
        seen = [event async for event in events(client, f"/api/task/{task_id}/events")]
        assert (
            "".join(json.loads(one["data"])["delta"] for one in seen if one["event"] == "chunk") == "one two"
        )
        for path in ("/api/openai", "/v1/chat/completions"):
            async with client.stream("POST", path, json=CHAT | {"stream": True}) as streamed:
                task = await worker.take()
                await chunks(worker, task, "hello")
                await worker.finish(task, lastSeq=1)
                assert "hello" in "".join([line async for line in streamed.aiter_lines()])
        await client.post("/api/task/none/cancel")
        assert (await client.get("/api/admin/overview")).status_code == 200
        assert (await client.get("/api/me")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200


async def check_left_out(served: Served, *names: str) -> None:
    """The calls of these features are gone, and so is their Lua."""
    caller = Caller(cast(GatewayProcess, served))
    async with caller.client() as client:
        shown = (await client.get("/api/admin/settings")).json()["features"]
        assert {name for name, on in shown.items() if not on} == {*names}
        for name in names:
            for path in BY_NAME[name].paths:
                answer = await client.get(path)
                assert answer.status_code == 404, path
                assert f"{name} disabled" in answer.text
    library = served.gateway.link._scripts
    lua = {f"features/{module}.lua" for name in names for module in BY_NAME[name].lua}
    assert not lua & {*library.files}


async def test_without_any_feature_the_core_works_and_the_library_holds_core_files_only(
    redis_server: Server, tmp_path: Path
) -> None:
    async with gateway_without(redis_server, tmp_path, *BY_NAME) as served:
        assert not [name for name in served.gateway.link._scripts.files if name.startswith("features/")]
        await check_core(served)
        await check_left_out(served, *BY_NAME)
        async with Caller(cast(GatewayProcess, served)).client() as client:
            document = (await client.get("/openapi.json")).json()  # built in a second, so once
        shown, schemas = document["paths"], document["components"]["schemas"]
        assert "/v1/chat/completions" in shown
        assert not [path for path in shown if feature_of_path(path, BY_NAME)]
        assert "TaskStatus" in schemas
        assert not {"WebhookShown", "AnyBatch", "LedgerEntry", "PlainTask", "MessagesRequest"} & {*schemas}


@pytest.mark.parametrize("name", BY_NAME)
async def test_without_a_feature_the_core_works(redis_server: Server, tmp_path: Path, name: str) -> None:
    names = sorted(with_dependents([name]))
    async with gateway_without(redis_server, tmp_path, *names) as served:
        await check_core(served)
        await check_left_out(served, *names)


def test_each_module_of_lua_belongs_to_one_feature() -> None:
    assert sorted(module for feature in FEATURES for module in feature.lua) == sorted(MODULES)


def test_a_feature_is_listed_behind_those_that_it_requires() -> None:
    names = [*BY_NAME]
    assert all(names.index(other) < names.index(one.name) for one in FEATURES for other in one.requires)


async def test_requests_that_need_a_disabled_feature_are_rejected(
    redis_server: Server, tmp_path: Path
) -> None:
    off = ("idempotency", "permits", "breakers", "pacing", "chains")
    endpoints = {"e": {"url": "https://images.example.com/v1/*"}}
    async with gateway_without(redis_server, tmp_path, *off, endpoints=endpoints) as served:
        caller = Caller(cast(GatewayProcess, served))
        async with caller.client() as client:
            keyed = await client.post("/api/openai", json=CHAT, headers={"Idempotency-Key": "k"})
            assert (keyed.status_code, keyed.json()["code"]) == (400, "INVALID_REQUEST")
            assert "idempotency disabled" in keyed.text
            chained = await client.post("/api/tasks", json={"chain": "none", "variables": {}})
            assert (chained.status_code, "chains disabled" in chained.text) == (400, True)
            permit = {"target_url": "https://images.example.com/v1/x", "task_type": "online"}
            assert "permits disabled" in (await client.post("/api/submitTask", json=permit)).text
            breaker = {"breaker": "open", "upstream": ""}
            assert (await client.patch("/api/admin/models/m", json=breaker)).status_code == 400
            paced = await client.patch("/api/admin/models/m", json={"requests_per_minute": 5})
            assert (paced.status_code, "pacing" in paced.text) == (400, True)
            over = {"target": "model", "name": "m", "values": {"windows": "5/1s"}}
            assert (await client.post("/api/admin/overrides", json=over)).status_code == 400
            assert (await client.patch("/api/admin/models/m", json={"concurrency": 5})).status_code == 200


async def test_a_key_of_the_database_that_needs_a_disabled_feature_is_not_valid(
    redis_server: Server, tmp_path: Path
) -> None:
    async with (
        gateway_without(redis_server, tmp_path) as served,
        Caller(cast(GatewayProcess, served)).client() as client,
    ):
        admin = (await client.post("/api/admin/keys", json={"id": "a", "scopes": ["admin"]})).json()["secret"]
        headers = {"Authorization": f"Bearer {admin}"}
        limited = {"id": "l", "limits": {"requests_per_minute": 5}}
        made = await client.post("/api/admin/keys", json=limited, headers=headers)
        secret = made.json()["secret"]
    async with (
        gateway_without(redis_server, tmp_path, "limits", "credits", "chains") as served,
        Caller(cast(GatewayProcess, served)).client() as client,
    ):
        plain = await client.get("/api/me", headers={"Authorization": f"Bearer {secret}"})
        assert plain.status_code == 401
        assert (await client.get("/api/me", headers=headers)).status_code == 200
        shown = await client.get("/api/admin/keys/l", headers=headers)
        assert shown.json()["status"] == "unusable"
        again = await client.post("/api/admin/keys", json={**limited, "id": "m"}, headers=headers)
        assert (again.status_code, "limits" in again.text) == (400, True)
