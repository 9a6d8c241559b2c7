"""Short versions of `python -m bench.fairness.live`: the work that users are served, end to end. No time is tested."""

from collections import Counter

import pytest
from bench.fairness.live_experiments import FLOODER, Live, carry_out
from bench.fairness.live_stack import Stack
from bench.fairness.measures import cost, service
from tests.integration.fairness.users import FLOODED, SHARES

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def sound(live: Live) -> None:
    """The limit held, every accepted task ended once, and was written to the end if it completed."""
    assert not [check for check in live.ledger.checks("live", live.slots) if not check.passed]


async def test_queues_get_their_weights_of_the_tokens(stack: Stack) -> None:
    live = await carry_out(stack, SHARES, together=True)
    sound(live)
    served = service(live.run, SHARES.scale.warm_up_s * 1e6, SHARES.end_us)
    queue_of = {request.client: request.queue for request in SHARES.requests}
    got: Counter[str] = Counter()
    for client, tokens in served.items():
        got[queue_of[client]] += round(tokens)
    for queue, weight in SHARES.queues.items():
        due = weight / sum(SHARES.queues.values())
        assert got[queue] / got.total() == pytest.approx(due, rel=0.15), got


async def test_a_flooder_takes_nothing_that_others_ask_for(stack: Stack) -> None:
    live = await carry_out(stack, FLOODED)
    sound(live)
    served = service(live.run, 0, FLOODED.end_us)
    asked: Counter[str] = Counter()
    for task in live.run.tasks:
        asked[task.client] += cost(task)
    victims = [client for client in asked if client != FLOODER]
    assert sum(served[victim] for victim in victims) > 0.7 * sum(asked[victim] for victim in victims)
    assert served[FLOODER] < 0.3 * asked[FLOODER]
