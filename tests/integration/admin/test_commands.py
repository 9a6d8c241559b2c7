"""The commands of `fairlane`, as an operator runs them next to a running gateway."""

import asyncio
import csv
import io
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.prepared import command
from tests.support.rawworkers import key as key_of
from tests.support.serving import until
from tests.support.talk import Talk, talking

from fairlane.gateway.settings import KeyQuota, PriceSettings

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Start = Callable[..., AbstractAsyncContextManager[Talk]]
Done = subprocess.CompletedProcess[str]
SECRET = re.compile(r"^  (flw?_\S+)$", re.MULTILINE)


async def fairlane(talk: Talk, *arguments: str, **environ: str) -> Done:
    """The command, with the address of the gateway in its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    env = {**clean, "FAIRLANE_GATEWAY": talk.served.url, "COLUMNS": "220", **environ}
    return await asyncio.to_thread(
        subprocess.run, command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=env
    )


@pytest.fixture
async def talk(redis_url: str, tmp_path: Path) -> AsyncIterator[Talk]:
    keys = [
        key("ops", scopes=["admin"]),
        key("app", tier="paid", quota=KeyQuota(otherwise="free")),
        key(
            "site", delegating=True, quota=KeyQuota.model_validate({"of": "user", "budget": 2, "per": "day"})
        ),
    ]
    prices = [PriceSettings.model_validate({"model": "*", "input": 1, "output": 1})]
    async with talking(
        redis_url, tmp_path, keys=keys, prices=prices, models={"m": {"concurrency": 4}}
    ) as talk:
        yield talk


async def run(talk: Talk, *arguments: str, code: int = 0) -> str:
    done = await fairlane(talk, *arguments, FAIRLANE_API_KEY=secret("ops"))
    assert done.returncode == code, done
    return done.stdout + done.stderr


def has_row(text: str, *cells: str) -> bool:
    return any(row.split()[: len(cells)] == list(cells) for row in text.splitlines())


async def test_queues_and_models_are_listed_and_updated(talk: Talk) -> None:
    changed = await run(talk, "queue", "update", "free_batch", "weight=0.5", "paused=true")
    assert has_row(changed, "weight", "1", "0.5")
    assert has_row(changed, "paused", "false", "true")
    await run(talk, "model", "update", "m", "concurrency=8", "requests_per_minute=60")
    assert has_row(await run(talk, "queue", "list"), "free_batch", "0.5*")
    assert has_row(await run(talk, "model", "list"), "m", "0", "8*")
    assert has_row(await run(talk, "status"), "free_batch", "0.5*")
    back = json.loads(await run(talk, "model", "update", "m", "concurrency=null", "--json"))
    assert back["values"]["concurrency"] == 4
    shown = await run(talk, "config", "show", "models.m")
    assert has_row(shown, "models.m.requests_per_minute", "60")
    assert "features on: idempotency, overrides" in shown
    assert "features off: none" in shown
    assert "requests_per_minute=60" in await run(talk, "audit", "list", "--target", "model m")


async def test_keys_are_created_shown_updated_rotated_and_revoked(talk: Talk) -> None:
    words = ("app2", "tier=paid", "models=m,n", "note=the shop", "expires=30d", "weight=2")
    found = SECRET.search(await run(talk, "key", "create", *words))
    assert found
    bearer = {"Authorization": f"Bearer {found[1]}"}
    assert (await talk.http.get("/api/me", headers=bearer)).json()["tier"] == "paid"
    token = SECRET.search(await run(talk, "key", "create", "--worker", "models=m"))
    assert token
    assert token[1].startswith("flw_worker-")
    assert has_row(await run(talk, "key", "list"), "app2", "caller", "valid", "paid", "call")
    assert "--after app" in await run(talk, "key", "list", "--limit", "1")
    await run(talk, "key", "update", "app2", "limits.requests_per_minute=60", "limits.max_running=4")
    await run(talk, "key", "update", "app2", "tier=null", "expires=2030-01-31", "limits.max_running=null")
    shown = await run(talk, "key", "show", "app2")
    assert has_row(shown, "settings.tier", "free")
    assert has_row(shown, "expires", "2030-01-31", "00:00Z")
    assert has_row(shown, "limits.requestsPerMinute.remaining", "60")
    assert SECRET.search(await run(talk, "key", "rotate", "app2", "--keep", "0"))
    assert (await talk.http.get("/api/me", headers=bearer)).status_code == 401
    await run(talk, "key", "revoke", "app2", "--now")
    assert json.loads(await run(talk, "key", "show", "app2", "--json"))["status"] == "revoked"


async def test_credits_are_granted_and_reported(talk: Talk) -> None:
    await run(talk, "balance", "grant", "50.5", "--key-id", "app", "--id", "invoice-17", "--note", "paid")
    again = await run(talk, "balance", "grant", "50.5", "--key-id", "app", "--id", "invoice-17")
    assert "granted before (invoice-17), the balance is 50.5" in again
    await run(talk, "balance", "grant", "-0.5", "--key-id", "app", "--id", "back")
    await run(talk, "balance", "grant", "2", "--user", "site/ann")
    assert "app" in await run(talk, "balance", "list", "--key-id", "app")
    rows = json.loads(await run(talk, "balance", "list", "--user", "site/ann", "--json"))["rows"]
    assert rows[0]["available"] == 4
    ledger = await run(talk, "balance", "ledger", "--key-id", "app", "--csv")
    assert [row["amount"] for row in csv.DictReader(io.StringIO(ledger))] == ["-0.5", "50.5"]
    assert "invoice-17" in await run(talk, "balance", "ledger")


async def test_tasks_workers_and_users_are_found_cancelled_and_erased(talk: Talk) -> None:
    talk.http.headers["Authorization"] = f"Bearer {secret('ops')}"
    async with talk.worker2(["m"], slots=1, name="gpu-1") as worker:
        held: list[dict[str, Any]] = []

        async def beat() -> None:
            while True:
                await worker.send("heartbeat", running=[key_of(task) for task in held])
                await asyncio.sleep(1)

        talk.later(beat())
        body = {"model": "m", "async": True}
        failed = (await talk.http.post("/api/openai", json=body, headers={"x-request-id": "order-77"})).json()
        await worker.answer(await worker.skip_to("task"), error="It broke")
        await talk.reaches(failed["taskId"], "failed")
        running = (await talk.http.post("/api/openai", json=body)).json()["taskId"]
        held.append(await worker.skip_to("task"))
        await worker.ack(held[0])
        waiting = (await talk.http.post("/api/openai", json=body)).json()["taskId"]

        async def listed() -> bool:
            return has_row(await run(talk, "user", "list"), "ops", "1", "1")

        await until(listed, "the tasks to be counted")
        found = await run(talk, "task", "list", "--text", "order-7")
        assert has_row(found, failed["taskId"], "failed", "ops")
        assert running in await run(talk, "task", "list", "--worker", "gpu-1")
        assert waiting in await run(talk, "task", "list", "--status", "queued")
        assert "there are gpu-1" in await run(talk, "task", "cancel", "--worker", "gpu-2", code=2)
        assert await run(talk, "task", "cancel", "--worker", "gpu-1") == "1 cancelled\n"
        assert await run(talk, "task", "cancel", "--user", "ops") == "1 cancelled\n"
        await run(talk, "worker", "drain", "gpu-1")
        assert has_row(await run(talk, "status"), "gpu-1")
    erased = json.loads(await run(talk, "user", "erase", "site/nobody", "--yes", "--json"))
    assert (erased["usage"], erased["more"]) == (0, False)
    usage = await run(talk, "usage", "list", "--by", "model,user", "--csv")
    assert {row["model"] for row in csv.DictReader(io.StringIO(usage))} <= {"m"}


async def test_endpoints_are_created_updated_and_deleted(talk: Talk) -> None:
    done = await fairlane(
        talk,
        *("endpoint", "create", "image", "https://image.test/v1/*", "concurrency=8", "methods=GET,POST"),
        *("set_headers.Authorization=env:TARGET_AUTH", "note=images"),
        FAIRLANE_API_KEY=secret("ops"),
        TARGET_AUTH="Bearer hidden",
    )
    assert (done.returncode, "hidden" in done.stdout) == (0, False), done
    assert has_row(await run(talk, "endpoint", "list"), "image", "https://image.test/v1/*")
    await run(talk, "endpoint", "update", "image", "concurrency=null", "set_headers.Authorization=null")
    assert "Authorization" not in await run(talk, "endpoint", "list", "--json")
    await run(talk, "endpoint", "delete", "image")
    assert "There is no endpoint" in await run(talk, "endpoint", "delete", "image", code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        *(("batch", "list", "--status", "unended"), ("webhook", "list")),
        *(("breaker", "list"), ("audit", "rejections", "--key-id", "app"), ("usage", "list", "--by", "day")),
        *(("status",), ("config", "show", "--all")),
    ],
)
async def test_a_list_is_a_table_or_the_gateways_answer(talk: Talk, arguments: tuple[str, ...]) -> None:
    assert await run(talk, *arguments)
    assert json.loads(await run(talk, *arguments, "--json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["queue", "update", "vip", "weight=1"], "There is no queue 'vip'"),
        (["queue", "update", "free_batch", "wieght=1"], "did you mean weight?"),
        (["key", "create", "b", "teir=paid"], "did you mean tier?"),
        (["balance", "grant", "1", "--key-id", "nosuch"], "There is no key 'nosuch'"),
        (["task", "cancel"], "user"),
        (["batch", "cancel", "batch_none"], "There is no batch"),
        (["webhook", "disable", "hook_0"], "webhook"),
        (["breaker", "update", "n", "open"], "No worker serves 'n'"),
    ],
)
async def test_a_rejection_is_one_line_and_exit_code_2(
    talk: Talk, arguments: list[str], message: str
) -> None:
    printed = await run(talk, *arguments, code=2)
    assert (printed.startswith("fairlane: "), printed.count("\n"), message in printed) == (True, 1, True), (
        printed
    )


async def test_a_gateway_with_keys_requires_an_admins_for_changes(talk: Talk) -> None:
    for environ in ({}, {"FAIRLANE_API_KEY": "wrong"}, {"FAIRLANE_API_KEY": secret("app")}):
        assert (await fairlane(talk, "queue", "update", "free_batch", "weight=3", **environ)).returncode == 2
    assert (await fairlane(talk, "queue", "list", "--api-key", secret("ops"))).returncode == 0


async def test_a_grant_with_an_unknown_outcome_can_be_repeated(talk: Talk) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        printed = await run(
            talk, "balance", "grant", "1", "--key-id", "app", "--gateway", f"127.0.0.1:{port}", code=2
        )
    assert re.search(r"--id grant-[0-9a-f]{16}", printed)
