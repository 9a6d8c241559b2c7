"""The calculator of waits, against known values and a simulation."""

import heapq
import random
from typing import Any

import pytest
from playwright.async_api import expect
from tests.integration.web.conftest import OpenBrowser
from tests.integration.web.test_static import accessible, fits
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio


def simulated_wait(slots: int, seconds: float, users: int, pause: float, answers: int = 200_000) -> float:
    """The mean wait of users who pause, ask, wait for a slot and for the answer; times vary exponentially."""
    rng = random.Random(3)
    asks = [rng.expovariate(1 / pause) for _ in range(users)]
    free = [0.0] * slots
    heapq.heapify(asks)
    waited = 0.0
    for _ in range(answers):
        at = heapq.heappop(asks)
        begin = max(at, heapq.heappop(free))
        waited += begin - at
        end = begin + rng.expovariate(1 / seconds)
        heapq.heappush(free, end)
        heapq.heappush(asks, end + rng.expovariate(1 / pause))
    return waited / answers


async def test_waits_are_those_of_the_books_and_of_a_simulation(
    talk: Talk, open_browser: OpenBrowser
) -> None:
    page = await (await open_browser(talk.served.url)).open("/sizing")

    async def size(slots: int, seconds: float, users: int, per_hour: float) -> dict[str, Any]:
        given = {"slots": slots, "seconds": seconds, "users": users, "perHour": per_hour}
        script = "given => import('/static/sizing/closed.js').then(module => module.size(given))"
        found: dict[str, Any] = await page.evaluate(script, given)
        return found

    two = await size(1, 1, 2, 1800)  # by hand: 1, 2 and 2 fifths of the time nobody, one and both are there
    assert [round(two[name], 9) for name in ("wait", "waits", "use", "perSecond")] == [0.5, 0.4, 0.8, 0.8]
    open_ = await size(
        4, 1, 100_000, 3600 * 3.2 / 100_000
    )  # so many users come like Erlang's: C(4, 3.2) = 0.596
    assert open_["wait"] == pytest.approx(0.7455, rel=0.01)
    assert (await size(8, 5, 8, 60))["wait"] == 0
    assert (await size(2, 1, 5, 100_000))["wait"] == pytest.approx(1.5), "nobody pauses"
    for slots, seconds, users, per_hour in ((16, 20, 200, 20), (4, 10, 30, 40), (64, 20, 200, 60)):
        found = await size(slots, seconds, users, per_hour)
        simulated = simulated_wait(slots, seconds, users, 3600 / per_hour - seconds)
        assert found["wait"] == pytest.approx(simulated, rel=0.05, abs=0.02 * seconds)


async def test_the_calculator_answers_as_one_types(talk: Talk, open_browser: OpenBrowser) -> None:
    page = await (await open_browser(talk.served.url)).open(
        "/sizing?slots=16&seconds=20&users=200&perHour=20"
    )
    wait = page.locator("#found tr").first.locator("td")
    await expect(wait).to_have_text("1m 10s")
    await page.locator("#slots").fill("64")
    await expect(wait).not_to_have_text("1m 10s")
    assert "slots=64" in page.url
    await page.locator("#slots").fill("0")
    await expect(page.locator("#problem")).to_be_visible()
    await page.locator("#slots").fill("16")
    await expect(page.locator("#problem")).to_be_hidden()
    await accessible(page)
    await fits(page)
