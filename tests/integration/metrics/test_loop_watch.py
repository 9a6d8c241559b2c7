"""A gateway tells of its own standstills."""

import time

import pytest
from tests.support.talk import Talk

from fairlane.gateway.watch.event_loop import STALL_S, TICK_S

from .scraping import scrape, scrape_when

pytestmark = pytest.mark.anyio

STALLS = "fairlane_loop_stalls_total"


async def test_a_gateway_whose_loop_stood_still_says_so_to_prometheus(here: Talk) -> None:
    assert (await scrape(here.http)).value(STALLS, cause="computing") == 0
    end = time.thread_time() + STALL_S + 2 * TICK_S
    while time.thread_time() < end:  # the gateway runs in this loop
        pass
    seen = await scrape_when(here.http, 1, STALLS, cause="computing")
    assert seen.value(STALLS, cause="computing") == 1
    assert seen.value("fairlane_loop_lag_max_seconds") > STALL_S
