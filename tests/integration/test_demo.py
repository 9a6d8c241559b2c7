"""`fairlane demo` as a user runs it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest
from tests.support.serving import NO_TLS

DEADLINE_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_demo(tmp_path: Path, port: int) -> subprocess.Popen[str]:
    environ = {**os.environ, "TMPDIR": str(tmp_path), "FAIRLANE_PORT": "1"}  # the demo heeds no settings
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "fairlane.gateway.cli.main", "demo", "--port", str(port)],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    with start_demo(tmp_path, port) as process:
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def test_who_calls_as_soon_as_the_port_is_open_waits_for_the_models(
    demo: tuple[subprocess.Popen[str], str],
) -> None:
    process, url = demo
    with httpx2.Client(trust_env=False, verify=NO_TLS, timeout=DEADLINE_S) as client:
        while process.poll() is None:
            try:
                answered = answers(client, url)
                break
            except httpx2.ConnectError:
                time.sleep(0.02)  # the port is not open yet
        assert answered
        endpoint = {"name": "a", "url": "https://a.example/*"}
        assert client.post(f"{url}/api/admin/endpoints", json=endpoint).status_code < 300
        while len(psutil.Process(process.pid).children()) < 4:  # Redis, two workers, and one for endpoints
            time.sleep(0.1)


def answers(client: httpx2.Client, url: str) -> bool:
    request = {"model": "demo-fast", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
    return client.post(f"{url}/v1/chat/completions", json=request).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_demo_answers_and_nothing_of_it_is_left_however_it_ends(
    demo: tuple[subprocess.Popen[str], str], tmp_path: Path, how: signal.Signals
) -> None:
    process, url = demo
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"Fairlane runs at {url} ")
    with httpx2.Client(trust_env=False, verify=NO_TLS, timeout=DEADLINE_S) as client:
        assert answers(client, url)  # what is told to be there is there, at once
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 3  # Redis and two workers
    process.send_signal(how)
    assert process.wait(DEADLINE_S) == (-how if how == signal.SIGKILL else 0)
    _, alive = psutil.wait_procs(children, timeout=DEADLINE_S)
    assert alive == []
    if how != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_on_a_port_that_is_taken_the_demo_says_so_and_nothing_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.setblocking(False)
        port = taken.getsockname()[1]
        with start_demo(tmp_path, port) as process:
            said, problem = process.communicate(timeout=DEADLINE_S)
        with pytest.raises(BlockingIOError):
            taken.accept()  # its workers have not dialled whoever listens there
    assert process.returncode == 1
    assert said == ""
    assert problem == (
        f"fairlane: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose another one with --port, or with `make run PORT=8090`\n"
    )
