"""What the processes that a gateway starts inherit from it: listed environment variables, and no descriptor but their own."""

import ast
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tests.support.processes import CHILD_S
from tests.support.servers import free_port
from tests.support.serving import http_client, until

ROOT = Path(__file__).parents[3]
STARTERS = {"queues/embedded/child.py", "queues/embedded/launcher.py", "queues/embedded/server.py"}
"""The files that start processes: `ChildProcess`, what it starts, and the look at a server's version."""
STARTS = {
    "Popen",
    "run",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "Process",
    "execv",
    "fork",
    "system",
}
SECRETS = {
    "FAIRLANE_STREAM_TOKEN_SECRET": "canary-of-links-and-long-enough",
    "FAIRLANE_API_KEY": "canary-admin",
    "OPENAI_API_KEY": "canary-openai",
    "UP_KEY": "canary-upstream",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
    "PGPASSWORD": "canary-pg",
    "GITHUB_TOKEN": "canary-other",
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"type": "object"}}}


def kind_of(process: psutil.Process, gateway: int) -> str:
    words = " ".join(process.cmdline())
    for kind, mark in (
        *(("upstream", "--name=up"), ("http", "--name=http"), ("checker", "structured.child")),
        *(("redis", "redis.conf"), ("redis", "valkey-server"), ("tracker", "resource_tracker")),
    ):
        if mark in words:
            return kind
    return "gateway" if process.pid == gateway or "spawn_main" in words else words


def descriptors(process: psutil.Process) -> set[str]:
    folder, found = Path(f"/proc/{process.pid}/fd"), set[str]()
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(one.readlink()))
    return found


@pytest.fixture(params=[1, 2])
def running(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, str, str]]:
    """A gateway that starts every kind of child, with secrets around it: its process id, its URL, a file that it inherits."""
    port = free_port()
    config: dict[str, Any] = {
        "upstreams": {"up": {"provider": "openai", "base_url": "http://127.0.0.1:9/v1", "models": ["m"]}},
        "endpoints": {"e": {"url": "http://127.0.0.1:9/", "concurrency": 1}},
        "processes": request.param,
        "port": port,
        "data_dir": str(tmp_path / "data"),
    }
    config["upstreams"]["up"]["api_key_env"] = "UP_KEY"
    (tmp_path / "fairlane.yaml").write_text(json.dumps(config))
    secret = tmp_path / "inherited"
    secret.write_text("x")
    with secret.open() as inherited:
        command = [sys.executable, "-m", "fairlane.gateway.cli.main", "serve"]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**os.environ, **SECRETS},
            pass_fds=[inherited.fileno()],
            stderr=subprocess.DEVNULL,
        )
    try:
        yield process.pid, f"http://127.0.0.1:{port}", str(secret)
    finally:
        process.terminate()
        process.wait(CHILD_S)


@pytest.mark.slow
@pytest.mark.anyio
async def test_every_child_gets_its_own_secrets_and_descriptors_alone(running: tuple[int, str, str]) -> None:
    gateway, url, inherited = running
    wanted = {"gateway", "upstream", "http", "checker", "redis"}

    async def all_run() -> bool:
        with contextlib.suppress(httpx2.TransportError):
            body = {"model": "m", "messages": [], "response_format": FORMAT, "async": True}
            await http.post("/api/openai", json=body)
        found.clear()
        for process in psutil.Process(gateway).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append((kind_of(process, gateway), process))
        return wanted - {"gateway"} <= {kind for kind, _ in found}

    found: list[tuple[str, psutil.Process]] = []
    async with http_client(url, timeout=5) as http:
        await until(all_run, "all kinds of children", CHILD_S)
    listening = {f"socket:[{line.split()[9]}]" for line in _tcp() if line.split()[3] == "0A"}
    assert {kind for kind, _ in found} <= {*wanted, "tracker"}
    for kind, process in found:
        has = {name for name in SECRETS if name in process.environ()}
        if kind in ("gateway", "tracker"):
            has -= {"AWS_SECRET_ACCESS_KEY", "PGPASSWORD"}
        assert has == ({"UP_KEY"} if kind == "upstream" else set()), kind
        if kind != "gateway":
            assert not descriptors(process) & {*listening, inherited}, kind


def _tcp() -> list[str]:
    return [
        line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]


def test_no_other_file_starts_processes() -> None:
    found = set()
    for folder in ("gateway", "queues", "streaming", "workers", "web"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in STARTS
                ):
                    owner = ast.unparse(node.func.value)
                    if owner in ("subprocess", "os", "asyncio", "multiprocessing", "self._context") and (
                        owner,
                        node.func.attr,
                    ) != ("asyncio", "run"):
                        found.add(str(file.relative_to(ROOT)))
    assert found == STARTERS
