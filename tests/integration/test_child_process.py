"""Child processes that do not outlive us, beyond what the tests of the embedded Redis show."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fairlane.queues.embedded.child import ChildProcess, Guard
from fairlane.queues.embedded.launcher import _NOT_STARTED

GUARDS: list[Guard] = ["prctl", "watch"] if sys.platform == "linux" else ["watch"]
SLEEP = ["/bin/sleep", "60"]


@pytest.fixture(params=GUARDS)
def guard(request: pytest.FixtureRequest) -> Guard:
    guard: Guard = request.param
    return guard


def run_for_status(argv: list[str], output: Path, guard: Guard) -> int:
    async def main() -> int:
        with output.open("wb") as log:
            child = ChildProcess(argv, output=log, guard=guard)
        try:
            async with asyncio.timeout(30):
                return await child.wait()
        finally:
            child.kill()

    return asyncio.run(main())


def test_status_and_output_are_the_commands(tmp_path: Path, guard: Guard) -> None:
    argv = ["/bin/sh", "-c", "echo out; echo err >&2; exit 7"]
    assert run_for_status(argv, tmp_path / "log", guard) == 7
    assert (tmp_path / "log").read_text() == "out\nerr\n"


def test_command_that_does_not_exist_is_told_in_the_output(tmp_path: Path, guard: Guard) -> None:
    assert run_for_status(["/nowhere/command"], tmp_path / "log", guard) == _NOT_STARTED
    assert "cannot run /nowhere/command" in (tmp_path / "log").read_text()


def test_files_of_the_child_are_private(tmp_path: Path, guard: Guard) -> None:
    made = tmp_path / "made"
    assert run_for_status(["/bin/sh", "-c", f"echo x > {made}"], tmp_path / "log", guard) == 0
    assert made.stat().st_mode & 0o077 == 0


def test_wait_can_be_cancelled_and_repeated(guard: Guard) -> None:
    async def main() -> None:
        child = ChildProcess(SLEEP, output=subprocess.DEVNULL, guard=guard)
        waiting = asyncio.create_task(child.wait())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert child.status is None
        assert await child.stop(30) == -signal.SIGTERM
        assert await child.wait() == -signal.SIGTERM
        child.kill()

    asyncio.run(main())


def test_child_started_in_a_thread_outlives_the_thread() -> None:
    started: list[ChildProcess] = []
    thread = threading.Thread(target=lambda: started.append(ChildProcess(SLEEP, output=subprocess.DEVNULL)))
    thread.start()
    thread.join()
    [child] = started
    assert child.status is None
    child.kill()
    assert child.status == -signal.SIGKILL
