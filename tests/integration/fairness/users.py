"""Who calls in these tests, and what they ask for."""

from collections.abc import Iterable
from dataclasses import replace

from bench.fairness.checks import ONE_QUEUE
from bench.fairness.live_clients import Again, Reading
from bench.fairness.live_experiments import Arrival, Experiment, Scale, isolation, shares
from bench.fairness.live_stack import Key
from bench.fairness.simulator import Request

SLOTS = 8
CHEAT = "cheat"
TRUSTED = "trusted"
"""Has a delegating key."""
HONEST = tuple(f"honest-{n + 1}" for n in range(3))

CONTEST = Scale(slots=SLOTS, token_us=10_000, length_s=8, warm_up_s=0)
PLAIN = Request(0, CHEAT, input=64, output=40, token_us=CONTEST.token_us)
"""What everybody asks for who is honest: 0.4 s of a slot."""
COST = PLAIN.input + 2 * PLAIN.output
EACH = round(1.5 * SLOTS * CONTEST.length_s * 1e6 / (PLAIN.output * PLAIN.token_us) / (len(HONEST) + 1))
"""Half as many again as fit: everybody always waits."""

SHARES = shares(Scale(slots=SLOTS, token_us=4_000, length_s=10, warm_up_s=3), large_where_heavy=True)
SHARES = replace(
    SHARES,
    arrivals=[(replace(asked, at_us=asked.at_us // 10), reading) for asked, reading in SHARES.arrivals],
)
"""All is sent at once: callers that a busy machine holds up would leave queues empty that are to have their shares.

Users of whom nothing is known yet pay ahead for more than they will use, so those who get short answers, and are known first, are
ahead for as long as the others' first answers take. Here that is 2,300 tokens of cost in the first second, paid back in the next
two: the warm-up.
"""
FLOODED = replace(isolation(CONTEST, flooded=True), expire_s=CONTEST.length_s + 2)

EVERYBODY = [
    *SHARES.keys.values(),
    *FLOODED.keys.values(),
    *(Key(user) for user in (*HONEST, CHEAT)),
    Key(TRUSTED, delegating=True),
]


def contest(
    name: str, tried: Iterable[Arrival], again: Again | None = None, **names: list[str]
) -> Experiment:
    """One who tries something next to three honest users; all ask at the beginning, in turn."""
    honest = [(replace(PLAIN, client=user), Reading.UNREAD) for _ in range(EACH) for user in HONEST]
    arrivals: list[Arrival] = []
    tries = iter(tried)
    for n, arrival in enumerate(honest):
        if n % len(HONEST) == 0 and (own := next(tries, None)):
            arrivals.append(own)
        arrivals.append(arrival)
    arrivals += tries
    service_s = PLAIN.output * PLAIN.token_us / 1e6
    return Experiment(name, name, CONTEST, arrivals, ONE_QUEUE, service_s, names=names, again=again)
