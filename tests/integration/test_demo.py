"""`fairlane demo` as a user runs it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from tests.support.serving import NO_TLS

DEADLINE_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    environ = {**os.environ, "TMPDIR": str(tmp_path), "FAIRLANE_PORT": "1"}  # the demo heeds no settings
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "fairlane.gateway.cli", "demo", "--port", str(port)],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def answers(client: httpx.Client, url: str) -> bool:
    request = {"model": "demo-fast", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
    try:
        return client.post(f"{url}/v1/chat/completions", json=request).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_demo_answers_and_nothing_of_it_is_left_however_it_ends(
    demo: tuple[subprocess.Popen[bytes], str], tmp_path: Path, how: signal.Signals
) -> None:
    process, url = demo
    with httpx.Client(trust_env=False, verify=NO_TLS) as client:
        until(lambda: answers(client, url))
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3  # Redis and two workers
    process.send_signal(how)
    assert process.wait(DEADLINE_S) == (-how if how == signal.SIGKILL else 0)
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_S)
    assert alive == []
    if how != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []
