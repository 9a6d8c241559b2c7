"""What a peak of small blocks took is given back, although some that live lie between them."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
from pathlib import Path
from fairlane.gateway.process import memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

async def main():
    memory.GIVE_BACK_S = 0.01
    assert memory.give_back_peaks()
    blocks = [bytes(3000) for _ in range(60_000)]
    lives = blocks[::100]
    before = resident()
    del blocks
    freed = resident()
    async with memory.giving_back():
        async with asyncio.timeout(20):
            while resident() > before - 120:
                await asyncio.sleep(0.01)
    print(before, freed, resident(), len(lives))

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where the allocator is glibc's")
def test_whole_pages_between_blocks_that_live_are_given_back() -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    before, freed, after, _ = map(int, told.stdout.split())
    assert freed > before - 60, "which the allocator does not do by itself"
    assert after <= before - 120
