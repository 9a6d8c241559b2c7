"""The official SDKs for Node: their scenarios in `node/`."""

import asyncio
import atexit
import contextlib
import functools
import json
import os
import selectors
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.support.processes import NO_PROXIES, process
from tests.support.serving import DEADLINE_S


async def run_node(
    project: Path, scenario: str, base_url: str, *, client: str = "openai.mjs", **options: Any
) -> Any:
    """What a scenario of a client prints; its retries are off unless `maxRetries` says otherwise."""
    told = await asyncio.to_thread(_player(project).play, client, scenario, base_url, json.dumps(options))
    assert not (isinstance(told, dict) and "broke" in told), told["broke"]
    return told


class Player:
    """A process that plays scenarios one after the other: `node/serve.mjs`."""

    def __init__(self, project: Path) -> None:
        program = shutil.which("node")
        assert program is not None, "these tests need Node"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        self._process = subprocess.Popen(
            [program, "serve.mjs"],
            cwd=project,
            env=environ | NO_PROXIES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def play(self, *asked: str) -> Any:
        """What one prints. Raises TimeoutError."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(DEADLINE_S * 2):
                self.end()
                _player.cache_clear()
                raise TimeoutError(f"{asked}: nothing in {DEADLINE_S * 2} s")
        line = self._process.stdout.readline()
        assert line, "the player has ended"
        return json.loads(line)

    def end(self) -> None:
        """Nothing of it remains."""
        self._process.kill()
        self._process.communicate()


@functools.cache
def _player(project: Path) -> Player:
    """This session's."""
    player = Player(project)
    atexit.register(player.end)
    return player


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
