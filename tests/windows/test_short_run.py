"""A short `make windows`. That no window is passed can be proved, so it is asserted. Of how much is used nothing is: a machine
may be slow.
"""

import asyncio
from pathlib import Path

import pytest
from tests.support.nginx import NGINX
from tests.windows.run import Size, measure

pytestmark = pytest.mark.slow


@pytest.mark.timeout(200)
@pytest.mark.parametrize("kills", [0, 1])
def test_a_target_never_sees_more_than_its_windows_allow(tmp_path: Path, kills: int) -> None:
    """Also not when a gateway is killed while requests of its worker are on their way."""
    size = Size(windows="10/200ms, 80/2s", callers=160, seconds=5, answer_ms=100, kills=kills)
    report = asyncio.run(measure(tmp_path, size))
    assert not report.passed(), report.render()
    assert not report.wrong, report.render()
    assert set(report.by_user) == {"floods", *(f"user-{n}" for n in range(1, 6))}, report.render()


@pytest.mark.timeout(200)
@pytest.mark.skipif(NGINX is None, reason="there is no nginx on this machine")
def test_calls_and_permits_of_an_endpoint_share_its_windows(tmp_path: Path) -> None:
    """No gateway sees how long a request takes from the check to the target, so what comes of it is measured, not asserted."""
    size = Size(windows="10/200ms", callers=160, seconds=3, answer_ms=100, endpoint=True)
    report = asyncio.run(measure(tmp_path, size))
    assert not report.wrong, report.render()
    assert set(report.by_user) == {"floods", *(f"user-{n}" for n in range(1, 6))}, report.render()
    assert {request.way for request in report.measured} == {"calls", "permits"}, report.render()
