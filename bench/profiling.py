"""Where the gateway's time goes while it is measured: py-spy's samples, summed up per function."""

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

RATE_PER_S = 400
MAX_LINES = 40
END_S = 30.0


class ProfilerMissing(Exception):
    """There is no py-spy to be found; the message says what to do."""


class Profiler:
    """Records a running process from outside."""

    def __init__(self) -> None:
        """Raises ProfilerMissing."""
        beside = Path(sys.executable).with_name("py-spy")
        found = str(beside) if beside.is_file() else shutil.which("py-spy")
        if found is None:
            raise ProfilerMissing("--profile needs py-spy: pip install py-spy, or put it on PATH")
        self._path = found

    async def record(self, pid: int, output: Path, seconds: float) -> list[str]:
        """Sample a process, write its stacks to `output` (one a line, for flame graphs), return the top functions.

        When sampling is not permitted, what py-spy says about it is returned instead.
        """
        process = await asyncio.create_subprocess_exec(
            self._path,
            *(
                "record",
                "--pid",
                str(pid),
                "--duration",
                str(max(int(seconds), 1)),
                "--rate",
                str(RATE_PER_S),
            ),
            *("--format", "raw", "--function", "--output", str(output)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(seconds + END_S):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            return said.decode("utf-8", "replace").splitlines()[-5:]
        stacks = await asyncio.to_thread(output.read_text, "utf-8", "replace")
        return top_functions(stacks.splitlines())


def top_functions(stacks: Iterable[str]) -> list[str]:
    """`own %  with callees %  function`, the costliest first, from lines `outer;…;inner count`."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    samples = 0
    for line in stacks:
        stack, _, count_text = line.rpartition(" ")
        if not count_text.isdigit():
            continue
        count = int(count_text)
        names = stack.split(";")
        samples += count
        own[names[-1]] += count
        for name in set(names):
            total[name] += count
    outermost = max(total.values(), default=0)  # what only leads to the event loop says nothing
    named = [name for name in total if own[name] or total[name] < outermost]
    order = sorted(named, key=lambda name: -max(own[name], total[name] / 4))
    return [
        f"{100 * own[name] / samples:5.1f} %  {100 * total[name] / samples:5.1f} %  {name}"
        for name in order[:MAX_LINES]
    ]
