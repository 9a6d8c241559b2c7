"""Every setting of a running gateway: who set it, who changed it while running, and what a reload brought."""

import hashlib
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.integration.native.keys import key, secret
from tests.support.processes import gateway_process
from tests.support.serving import http_client, until
from tests.support.talk import Talk, talking

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
KEYS = [key("ops", scopes=["admin"]), key("eyes", scopes=["viewer"]), key("app")]


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret(name)}"}


async def told(http: httpx2.AsyncClient, who: str = "ops", **query: str) -> dict[str, Any]:
    answer = await http.get("/api/admin/settings", params=query, headers=bearer(who))
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def row(http: httpx2.AsyncClient, name: str) -> dict[str, Any]:
    [found] = [one for one in (await told(http, name=name))["settings"] if one["name"] == name]
    shown: dict[str, Any] = found
    return shown


async def test_a_change_is_told_with_who_made_it_until_it_is_taken_back(gateway: Start) -> None:
    async with gateway(keys=KEYS) as talk, gateway(keys=KEYS) as other:
        before = await row(talk.http, "queues.paid_stream.weight")
        assert (before["value"], before["source"], before["by"]) == (8, "default", None)
        path = "/api/admin/queues/paid_stream"
        changed = await talk.http.patch(path, json={"weight": 5, "paused": True}, headers=bearer("ops"))
        assert changed.status_code == 200
        for replica in (talk, other):
            weight = await row(replica.http, "queues.paid_stream.weight")
            assert (weight["value"], weight["source"], weight["by"]) == (5, "changed", "ops")
            assert weight["otherwise"]["value"] == 8
            assert abs(weight["since"] - (await told(replica.http))["now"]) < 60_000
        [override] = (await talk.http.get("/api/admin/overrides", headers=bearer("eyes"))).json()["overrides"]
        assert weight["where"] == f"override {override['id']}"
        assert (await row(talk.http, "queues.paid_stream.paused"))["value"] is True
        names = {
            one["name"] for one in (await told(talk.http, "eyes", changed="true", name="queues."))["settings"]
        }
        assert names == {"queues.paid_stream.weight", "queues.paid_stream.paused"}

        back = await other.http.patch(path, json={"weight": None}, headers=bearer("ops"))
        assert back.status_code == 200
        assert await row(talk.http, "queues.paid_stream.weight") == before
        assert (await row(talk.http, "queues.paid_stream.paused"))["by"] == "ops"


async def test_only_operators_may_look_and_no_secret_is_told(gateway: Start) -> None:
    async with gateway(keys=KEYS, stream_token_secret="keep this to yourself") as talk:
        refused = await talk.http.get("/api/admin/settings", headers=bearer("app"))
        assert refused.status_code == 403
        answer = await talk.http.get("/api/admin/settings", headers=bearer("eyes"))
        assert "keep this" not in answer.text
        assert not any(entry["sha256"] in answer.text for entry in KEYS)
        shown = {one["name"]: one["value"] for one in answer.json()["settings"]}
        assert (shown["stream_token_secret"], shown["keys.app.sha256"]) == ("(set)", "(set)")
        wrong = await talk.http.get("/api/admin/settings?nmae=port", headers=bearer("ops"))
        assert wrong.json()["error"] == "there is no parameter nmae: name, changed"


async def test_another_replicas_newer_configuration_is_told_where_it_holds(
    gateway: Start, redis_url: str, tmp_path: Path
) -> None:
    async with gateway(keys=KEYS) as old:
        more = {"queues": {"free_batch": {"weight": 3}}, "lease_ms": 14_000}
        async with talking(redis_url, tmp_path, keys=[*KEYS, key("new")], **more) as new:
            held = await row(old.http, "queues.free_batch.weight")
            replica = new.served.gateway.replica
            assert (held["value"], held["source"], held["where"]) == (3, "replica", replica)
            assert (held["otherwise"]["value"], held["otherwise"]["source"]) == (1, "default")
            assert (await told(old.http))["effective"]["replica"] == replica

            async def knows() -> bool:
                rows = {one["replica"]: one for one in (await told(old.http))["replicas"]}
                return (replica in rows) and rows[replica]["differs"] == [
                    "keys",
                    "others",
                    "queues and models",
                ]

            await until(knows, "the old replica to know in what the new one differs")
            mine = {one["replica"]: one["differs"] for one in (await told(new.http))["replicas"]}
            assert mine[replica] == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
async def test_a_reload_tells_since_when_and_what_waits_for_a_restart(
    redis_url: str, tmp_path: Path, processes: int
) -> None:
    sha = hashlib.sha256(secret("ops").encode()).hexdigest()
    keys = f'keys: [{{id: ops, scopes: [admin], sha256: "{sha}"}}]\n'
    file = tmp_path / "fairlane.yaml"
    file.write_text(keys + "max_queue_length: 50\ndrain: 2s\n")
    async with gateway_process(tmp_path, redis_url, processes=processes) as gateway:
        async with http_client(gateway.url) as http:
            length, workers = await row(http, "max_queue_length"), await row(http, "workers.first.sha256")
            assert (length["value"], length["source"]) == (50, "file")
            assert length["where"].endswith("fairlane.yaml")
            assert (workers["value"], workers["source"]) == ("(set)", "generated")
            assert (await row(http, "port"))["source"] in ("flag", "environment")
            assert (await told(http))["file"]["path"] == str(file)
        file.write_text(keys + "max_queue_length: 60\ndrain: 3s\n")
        gateway.signal(signal.SIGHUP)
        await until(
            lambda: gateway.log.count("keys and limits read again") == processes,
            "the reload of every process",
        )
        async with http_client(gateway.url) as http:
            again, drain = await row(http, "max_queue_length"), await row(http, "drain")
            assert (again["value"], again["since"] > length["since"]) == (60, True)
            assert (drain["value"], drain["reloads"], drain["afterRestart"]["value"]) == ("2s", False, "3s")
            file.write_text("port: no\n")
            gateway.signal(signal.SIGHUP)

            async def refused() -> bool:
                return (await told(http))["reloadError"] is not None

            await until(refused, "the refusal to be told")
