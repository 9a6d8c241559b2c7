"""`fairlane queues` and `fairlane models`, as an operator runs them beside a gateway that works."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.integration.native.keys import key, secret
from tests.support.prepared import command
from tests.support.rawworkers import key as key_of
from tests.support.serving import until
from tests.support.talk import Talk

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Start = Callable[..., AbstractAsyncContextManager[Talk]]
Done = subprocess.CompletedProcess[str]


async def fairlane(talk: Talk, *arguments: str, **environ: str) -> Done:
    """The command, with the address of the gateway in its environment."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    env = {**clean, "FAIRLANE_GATEWAY": talk.served.url, "COLUMNS": "220", **environ}
    return await asyncio.to_thread(
        subprocess.run, command(*arguments), capture_output=True, text=True, timeout=60, check=False, env=env
    )


async def test_limits_are_listed_changed_and_taken_back(gateway: Start) -> None:
    async with gateway(models={"m": {"concurrency": 4}}) as talk:
        done = await fairlane(talk, "queues", "set", "free_batch", "weight=0.5", "paused=true")
        assert done.returncode == 0, done.stderr
        assert re.search(r"^free_batch +weight +1\.0 +0\.5 *$", done.stdout, re.MULTILINE)
        assert re.search(r"^free_batch +paused +false +true *$", done.stdout, re.MULTILINE)
        done = await fairlane(talk, "models", "set", "m", "concurrency=8", "requests_per_minute=60")
        assert re.search(r"^m +concurrency +4 +8 *$", done.stdout, re.MULTILINE)

        listed = (await fairlane(talk, "queues", COLUMNS="60")).stdout  # names stay whole
        assert re.search(r"^free_batch \(paused\) +0\.5\* ", listed, re.MULTILINE)
        assert re.search(r"^paid_stream +8 ", listed, re.MULTILINE)
        listed = (await fairlane(talk, "models", "list", COLUMNS="60")).stdout
        assert re.search(r"^m +0 +8\* +0 +tokens +60\* ", listed, re.MULTILINE)
        rows = json.loads((await fairlane(talk, "queues", "--json")).stdout)
        assert {row["queue"]: row["weight"] for row in rows}["free_batch"] == 0.5
        assert "free_batch (paused)" in (await fairlane(talk, "status")).stdout

        done = await fairlane(talk, "models", "set", "m", "concurrency=null", "--json")
        assert json.loads(done.stdout)["values"]["concurrency"] == 4
        assert "8*" not in (await fairlane(talk, "models")).stdout


async def test_a_model_that_nobody_knows_is_changed_with_a_warning_and_forgotten(gateway: Start) -> None:
    async with gateway(models={"qwen": {"concurrency": 4}}) as talk, talk.worker2(["llama"]):
        for name, warned in (("qwenn", True), ("qwen", False), ("llama", False)):
            done = await fairlane(talk, "models", "set", name, "concurrency=1")
            assert done.returncode == 0
            sentence = f"no worker offers {name} now, and it is not configured; known: llama, qwen"
            assert done.stderr == (f"fairlane: {sentence}\n" if warned else "")
        assert [row["model"] for row in (await talk.state())["models"]] == ["llama", "qwen", "qwenn"]
        done = await fairlane(talk, "models", "set", "qwenn", "concurrency=null")
        assert (done.returncode, done.stderr) == (0, "")
        assert [row["model"] for row in (await talk.state())["models"]] == ["llama", "qwen"]


async def test_what_the_gateway_refuses_is_one_sentence(gateway: Start) -> None:
    async with gateway() as talk:
        for arguments, sentence in (
            (["queues", "set", "vip", "weight=1"], "There is no queue 'vip'; there are paid_stream, "),
            (
                ["queues", "set", "free_batch", "wieght=1"],
                "'wieght' is no setting of a queue; did you mean weight?",
            ),
            (["models", "set", "m", "cost=euros"], "cost should be 'tokens', 'requests' or 'slot_seconds'"),
        ):
            done = await fairlane(talk, *arguments)
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr.startswith(f"fairlane: {sentence}")
            assert done.stderr.count("\n") == 1


async def test_a_gateway_with_keys_wants_an_admins(gateway: Start) -> None:
    async with gateway(keys=[key("ops", admin=True), key("acme")]) as talk:
        change = ["queues", "set", "free_batch", "weight=3"]
        for environ, said in (
            ({}, "FAIRLANE_ADMIN_KEY"),
            ({"FAIRLANE_ADMIN_KEY": "wrong"}, "does not know the key that was sent"),
            ({"FAIRLANE_ADMIN_KEY": secret("acme")}, "admin: true"),
        ):
            done = await fairlane(talk, *change, **environ)
            assert (done.returncode, said in done.stderr) == (2, True), done
        assert (await fairlane(talk, *change, FAIRLANE_ADMIN_KEY=secret("ops"))).returncode == 0
        listed = await fairlane(talk, "queues", "--key", secret("ops"))
        assert re.search(r"^free_batch +3\* ", listed.stdout, re.MULTILINE)


async def test_who_waits_and_what_failed_is_found_in_a_shell(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"], slots=1) as worker:
        named = {"x-request-id": "order-77"}
        body = {"model": "m", "async": True}
        failed = (await talk.http.post("/api/openai", json=body, headers=named)).json()["taskId"]
        await worker.answer(await worker.take(), error="It broke")
        await talk.reaches(failed, "failed")
        await talk.submit(model="m")
        await worker.take()
        for _ in range(3):
            await talk.submit(model="m")

        async def counted() -> bool:  # the survey may be a second old
            rows = (await talk.http.get("/api/admin/users")).json()["users"]
            return [(row["waiting"], row["running"]) for row in rows] == [(3, 1)]

        await until(counted, "the tasks to be counted")
        done = await fairlane(talk, "users")
        assert re.search(r"^anonymous +3 +1 ", done.stdout, re.MULTILINE), done
        done = await fairlane(talk, "tasks", "order-7")
        [line] = [line for line in done.stdout.splitlines() if failed in line]
        assert line.split()[:6] == [failed, "failed", "anonymous", "m", "m", "free_batch"]
        assert "order-77" in line
        assert line.rstrip().endswith("It broke")
        done = await fairlane(talk, "tasks", "--state", "queued", "--json")
        assert len(json.loads(done.stdout)["tasks"]) == 3
        assert (
            await fairlane(talk, "tasks", "nothing-like-this")
        ).stdout == "no task is known that matches\n"


async def test_a_worker_is_drained_by_its_name_in_a_shell(gateway: Start) -> None:
    async with gateway() as talk, talk.worker2(["m"], slots=1, name="gpu-1") as worker:
        held: list[dict[str, Any]] = []

        async def beat() -> None:
            while True:
                await worker.send("heartbeat", running=[key_of(task) for task in held])
                await asyncio.sleep(1)

        async def seen() -> bool:
            return bool((await talk.http.get("/api/admin/state")).json()["workers"])

        talk.later(beat())
        await until(seen, "the worker to be seen")
        done = await fairlane(talk, "drain", "gpu-2")
        assert (done.returncode, "there are gpu-1" in done.stderr) == (2, True), done
        running = (await talk.http.post("/api/openai", json={"model": "m", "async": True})).json()["taskId"]
        held.append(await worker.skip_to("task"))
        await worker.ack(held[0])
        assert running in (await fairlane(talk, "tasks", "--worker", "gpu-1")).stdout
        done = await fairlane(talk, "cancel", "--worker", "gpu-2")
        assert (done.returncode, "there are gpu-1" in done.stderr) == (2, True), done
        assert (await fairlane(talk, "cancel", "--worker", "gpu-1")).stdout == "1 cancelled\n"
        done = await fairlane(talk, "drain", "gpu-1")
        assert (done.returncode, done.stdout) == (0, "gpu-1 drains\n"), done
        assert "gpu-1 (draining)" in (await fairlane(talk, "status")).stdout
