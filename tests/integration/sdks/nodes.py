"""The official SDKs for Node: their scenarios in `node/`."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.processes import NO_PROXIES, process
from tests.support.serving import DEADLINE_S


async def run_node(
    project: Path, scenario: str, base_url: str, *, client: str = "openai.mjs", **options: Any
) -> Any:
    """What a scenario of a client prints; its retries are off unless `maxRetries` says otherwise."""
    async with node(project, scenario, base_url, client=client, **options) as child:
        return await outcome(child, DEADLINE_S * 2)


@contextlib.asynccontextmanager
async def node(
    project: Path, scenario: str, base_url: str, *, client: str = "openai.mjs", **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A scenario under way; killed at the end if it still runs."""
    program = shutil.which("node")
    assert program is not None, "these tests need Node"
    arguments = (client, scenario, base_url, json.dumps(options))
    async with process(*arguments, program=program, cwd=project, **NO_PROXIES) as child:
        yield child


async def first_status(child: asyncio.subprocess.Process) -> int:
    """The status of its first HTTP answer, whose first bytes are there."""
    assert child.stderr is not None
    async with asyncio.timeout(DEADLINE_S):
        line = await child.stderr.readline()
    return int(line.removeprefix(b"status "))


async def outcome(child: asyncio.subprocess.Process, within_s: float = DEADLINE_S) -> Any:
    """What it prints at its end."""
    async with asyncio.timeout(within_s):
        out, err = await child.communicate()
    assert child.returncode == 0, err.decode()
    return json.loads(out.splitlines()[-1])
