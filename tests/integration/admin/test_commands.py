"""`fairlane queues` and `fairlane models`, as an operator runs them beside a gateway that works."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.integration.native.keys import key, secret
from tests.support.talk import Talk

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Start = Callable[..., AbstractAsyncContextManager[Talk]]
Done = subprocess.CompletedProcess[str]


async def fairlane(talk: Talk, *arguments: str, **environ: str) -> Done:
    """The command, with the address of the gateway in its environment."""
    command = [sys.executable, "-P", "-m", "fairlane.gateway.process.cli", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")}
    env = {**clean, "FAIRLANE_GATEWAY": talk.served.url, "COLUMNS": "220", **environ}
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False, env=env
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
        for arguments, environ in ((change, {}), (change, {"FAIRLANE_ADMIN_KEY": secret("acme")})):
            done = await fairlane(talk, *arguments, **environ)
            assert done.returncode == 2
            assert "FAIRLANE_ADMIN_KEY" in done.stderr
        assert (await fairlane(talk, *change, FAIRLANE_ADMIN_KEY=secret("ops"))).returncode == 0
        listed = await fairlane(talk, "queues", "--key", secret("ops"))
        assert re.search(r"^free_batch +3\* ", listed.stdout, re.MULTILINE)
