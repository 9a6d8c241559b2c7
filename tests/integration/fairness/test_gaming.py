"""Tricks that gain nothing, end to end: the tokens that one user is served, against an honest one's next to him.

All of them always wait. The one may be ahead by a request of each, which is the rule's own bound, and by what the estimates of
the tasks under way can be wrong by: a request for each slot. Neither grows with time.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from bench.fairness.live_clients import Call, Reading
from bench.fairness.live_experiments import Arrival, Experiment, carry_out
from bench.fairness.live_stack import Stack
from bench.fairness.measures import service
from bench.fairness.simulator import SECOND, Request
from tests.integration.fairness.test_live import sound
from tests.integration.fairness.users import CHEAT, COST, EACH, HONEST, PLAIN, SLOTS, TRUSTED, contest

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NAMES = ["anna", "ben", "cleo", "dora", "emil"]


def repeated(request: Request, reading: Reading, times: int) -> Sequence[Arrival]:
    return [(request, reading)] * times


async def served(stack: Stack, experiment: Experiment, *, together: bool = False) -> tuple[float, float]:
    """Service of the one who tries, and of an honest user, in the mean; `together`: nothing starts before all have asked."""
    live = await carry_out(stack, experiment, together=together)
    sound(live)
    got = service(live.run, 0, experiment.end_us)
    honest = [got.pop(user) for user in HONEST]
    assert min(honest) > EACH / 4 * COST, "too little was served to tell"
    (own,) = got.values()
    return own, sum(honest) / len(honest)


async def test_inventing_users_under_a_plain_key_gains_nothing(stack: Stack) -> None:
    tried = repeated(PLAIN, Reading.UNREAD, 3 * EACH)
    own, honest = await served(stack, contest("names", tried, cheat=NAMES))
    assert own <= honest + (2 + SLOTS) * COST


async def test_a_delegating_keys_users_have_a_share_each(stack: Stack) -> None:
    tried = repeated(replace(PLAIN, client=TRUSTED), Reading.UNREAD, 3 * EACH)
    own, honest = await served(stack, contest("delegated", tried, trusted=NAMES))
    assert own > 3 * honest, "five users, five shares"


@pytest.mark.parametrize("told", [1, 100_000])
async def test_lying_about_max_tokens_gains_nothing(stack: Stack, told: int) -> None:
    tried = repeated(replace(PLAIN, max_output=told), Reading.UNREAD, EACH)
    own, honest = await served(stack, contest(f"lying-{told}", tried), together=True)
    assert own <= honest + (2 + SLOTS) * COST


async def test_cancelling_what_waits_and_sending_it_again_gains_nothing(stack: Stack) -> None:
    tried = repeated(replace(PLAIN, patience_us=SECOND), Reading.LATER, 3 * SLOTS)

    def again(call: Call) -> list[Request]:
        return [call.request] if call.request.client == CHEAT else []

    own, honest = await served(stack, contest("cancelling", tried, again))
    assert own <= honest + (2 + SLOTS) * COST


async def test_cancelling_before_the_end_and_sending_it_again_gains_nothing(stack: Stack) -> None:
    tried = repeated(
        replace(PLAIN, output=2 * PLAIN.output, stop_after=PLAIN.output), Reading.STREAM, 3 * SLOTS
    )

    def again(call: Call) -> list[Request]:
        return [call.request] if call.request.client == CHEAT else []

    own, honest = await served(stack, contest("stopping", tried, again))
    assert own <= honest + (2 + SLOTS) * COST


async def test_holding_streams_open_gains_nothing(stack: Stack) -> None:
    long = replace(PLAIN, output=5 * PLAIN.output)
    own, honest = await served(stack, contest("holding", repeated(long, Reading.STREAM, EACH // 2)))
    assert own <= honest + COST + long.input + 2 * long.output + SLOTS * COST
