"""Forks that stand for processes of `fairlane`: they end as such processes do, and none is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.prepared import FORKS, MODULE, command, launch, program
from tests.support.processes import runs
from tests.support.serving import until

pytestmark = pytest.mark.skipif(not FORKS, reason="there are no forks on this system")

WAITS = """
import os, signal, sys
print(os.getpid(), os.getcwd(), os.environ["GIVEN"], sys.argv[1:], flush=True)
signal.pause()
"""


def run(line: list[str], folder: Path) -> tuple[int, str, str]:
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--port", "70000"], ["cancel"], ["nothing"]])
def test_a_command_says_and_ends_as_the_real_one_does(arguments: list[str], tmp_path: Path) -> None:
    assert run(command(*arguments), tmp_path) == run(
        [sys.executable, "-P", "-m", MODULE, *arguments], tmp_path
    )


@pytest.mark.parametrize(
    "text", ["import sys; print(sys.argv, __name__)", "print('so far'); exit('no')", "openai"]
)
def test_a_program_says_and_ends_as_the_real_one_does(text: str, tmp_path: Path) -> None:
    *seen, said = run(program(text), tmp_path)
    *expected, complaint = run([sys.executable, "-P", "-c", text], tmp_path)
    assert (seen, said.splitlines()[-1:]) == (expected, complaint.splitlines()[-1:])


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_a_fork_is_a_process_of_its_own_that_a_signal_ends(tmp_path: Path, number: int) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    with (tmp_path / "log").open("wb") as log:
        line = [sys.executable, "-m", "waits", "one", "two"]
        child = await asyncio.to_thread(launch, line, log.fileno(), {"GIVEN": "this"}, tmp_path)
    said = tmp_path / "log"
    await until(lambda: b"\n" in said.read_bytes(), "its line")
    assert said.read_text() == f"{child.pid} {tmp_path} this ['one', 'two']\n"
    assert os.getsid(child.pid) == child.pid
    assert child.poll() is None
    child.send_signal(number)
    assert child.wait(10) == -number
    assert child.poll() == -number


@pytest.mark.anyio
async def test_what_nobody_holds_any_more_is_ended(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    line = command()
    line[line.index("-P") :] = ["-m", "waits"]
    child = await asyncio.create_subprocess_exec(
        *line, cwd=tmp_path, env={"GIVEN": "this"}, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout
    pid = int((await child.stdout.readline()).split()[0])
    assert runs(pid)
    assert pid != child.pid
    child.kill()
    await child.wait()
    await until(lambda: not runs(pid), "the fork to end")
    assert await child.stdout.read() == b""
