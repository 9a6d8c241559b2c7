"""A short hostile run: the same as `make hostile`, a fiftieth of its size."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.hostile.report import render
from tests.hostile.run import Size, run


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform != "linux", reason="counts the gateway's open files")
def test_a_gateway_under_attack_serves_those_who_behave(tmp_path: Path) -> None:
    outcome = asyncio.run(run(Size(requests=4000, seconds=15, seed=9), tmp_path))
    assert outcome.held, render(outcome)
    assert outcome.requests > 100
