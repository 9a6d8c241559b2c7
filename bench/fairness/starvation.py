"""No task waits for ever: a queue that joins, a task that its own user's urgent ones pass, a client that returns."""

from collections.abc import Iterator

from bench.fairness.checks import ONE_QUEUE, TIERS, Check, Maker, around, at_most
from bench.fairness.measures import service
from bench.fairness.simulator import SECOND, SLOTS, Request, Run, simulate

GATE = "4 starvation"
HEAD_START_S = 10
"""Of priority 5 over 0."""


def joining(fairlane: Maker, joins: int = 25) -> Iterator[Check]:
    """A queue whose task comes while it is empty and all others wait, with requests eight times as long."""
    for queue in TIERS:
        length_s = 20 * (joins + 1)
        others = [
            Request(0, "user", 0, 800, queue=other)
            for other in TIERS
            if other != queue
            for _ in range(int(1.2 * SLOTS * length_s / 36))
        ]
        own = [Request(20 * (n + 1) * SECOND, "user", 0, 100, queue=queue) for n in range(joins)]
        run = simulate(fairlane(SLOTS, TIERS), others + own, until_us=(length_s + 40) * SECOND)
        ahead = [task.turn - task.arrived_turn for task in run.granted() if task.request.queue == queue]
        assert len(ahead) == joins
        what = f"dispatches before a task of {queue}, which joins"
        yield at_most(GATE, what, max(ahead), len(TIERS) - 1)


def _spam(fairlane: Maker, priority: int, length_s: int) -> Run:
    """Ten users always wait. One of them sends a task without priority every 20 s, and two with, every second."""
    requests = [Request(0, f"user {n}", 50, 200) for n in range(9) for _ in range(length_s)]
    for n in range(2 * length_s):
        at = n * SECOND // 2
        requests.append(Request(at, "spammer", 50, 200, priority=0 if n % 40 == 0 else priority))
    return simulate(fairlane(SLOTS, ONE_QUEUE), requests, until_us=3 * length_s * SECOND)


def priority_spam(fairlane: Maker, length_s: int = 120) -> Iterator[Check]:
    """Priority overtakes ten seconds of one's own tasks, and no other user's."""
    plain, spammed = (_spam(fairlane, priority, length_s) for priority in (0, 5))

    def others(run: Run) -> list[tuple[str, int]]:
        return [(task.client, task.granted_us) for task in run.granted() if task.client != "spammer"]

    moved = sum(a != b for a, b in zip(others(plain), others(spammed), strict=True))
    yield at_most(GATE, "others' tasks that start at another time when one user spams priority", moved, 0)
    mine = [task for task in spammed.granted() if task.client == "spammer"]
    passed = [
        (later.request.at_us - older.request.at_us) / SECOND
        for older in mine
        if not older.request.priority
        for later in mine
        if later.turn < older.turn and later.request.at_us > older.request.at_us
    ]
    what = "the latest own task that passed an older one came so much later"
    yield at_most(GATE, what, max(passed), HEAD_START_S, " s")


def returning(make: Maker, away_s: int = 300, measured_s: int = 200) -> float:
    """The share (0…1) of a client that has returned after a pause, next to one that never paused."""
    back = away_s * SECOND
    count = int(1.2 * SLOTS * (away_s + measured_s) / (200 * 0.045))
    requests = [Request(0, "steady", 50, 200) for _ in range(count)] + [Request(0, "returning", 50, 200)]
    requests += [Request(back, "returning", 50, 200) for _ in range(count)]
    end = (away_s + measured_s) * SECOND
    run = simulate(make(SLOTS, ONE_QUEUE), requests, until_us=end)
    got = service(run, back + 20 * SECOND, end)
    return got["returning"] / sum(got.values())


def lift(fairlane: Maker, away_s: int = 300, measured_s: int = 200) -> Iterator[Check]:
    """Capacity that a client did not use during a pause is not owed to it."""
    share = 100 * returning(fairlane, away_s, measured_s)
    yield around(GATE, "share of a client that returns, next to one other", share, 50, 2, " %")
