"""Short versions of what `python -m bench.fairness` checks: what users get, in simulations that drive the real scripts.

In all of them each grant of the scripts is compared with the plain model's (bench/fairness/fairlane.py).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from bench.fairness import gaming, isolation, shares, starvation
from bench.fairness.checks import ONE_QUEUE, Check, Maker
from bench.fairness.comparison import Row, next_to_vtc, replication, weighted_shares, work_conservation
from bench.fairness.fairlane import Fairlane
from bench.fairness.policies import Fcfs, Vtc
from bench.fairness.simulator import SLOTS, simulate
from bench.fairness.workloads import WORKLOADS
from tests.contract.store.store import World
from tests.support.servers import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fairlane(redis_server: Server) -> Iterator[Maker]:
    """Makes the scripts' policy, on one empty store after the other."""
    world = World(redis_server.socket_path)
    yield lambda slots, queues: Fairlane(world, slots, queues)
    world.close()


def passed(checks: Iterable[Check]) -> None:
    """All of them, and there are some."""
    found = list(checks)
    assert found
    assert not [check for check in found if not check.passed]


@pytest.mark.parametrize("name", ["overload", "on_off_overload"])
def test_the_simulators_fcfs_is_the_papers(name: str) -> None:
    workload = WORKLOADS[name]()
    run = simulate(Fcfs(), workload.requests)
    passed(replication(Row.of(workload, [run])))


@pytest.fixture(scope="module", params=["overload", "weighted"])
def row(request: pytest.FixtureRequest, fairlane: Maker) -> Row:
    workload = WORKLOADS[request.param]()
    runs = [simulate(policy, workload.requests) for policy in (Vtc(), fairlane(SLOTS, ONE_QUEUE))]
    return Row.of(workload, runs)


def test_service_differs_less_than_under_vtc(row: Row) -> None:
    passed(next_to_vtc(row))


def test_no_slot_stays_free_while_a_task_waits(row: Row) -> None:
    passed(work_conservation(row))


def test_clients_get_their_weights_and_without_any_the_same(row: Row) -> None:
    weights = row.workload.weights or dict.fromkeys(
        sorted({request.client for request in row.workload.requests}), 1.0
    )
    passed(weighted_shares(replace(row, workload=replace(row.workload, weights=weights))))


def test_token_shares_follow_the_weights_whatever_the_sizes(fairlane: Maker) -> None:
    passed(shares.shares(fairlane, dispatches=1000, layouts=["large where heavy"]))


def test_equal_users_get_the_same(fairlane: Maker) -> None:
    passed(shares.equal_users(fairlane, length_s=240))


def test_a_flooder_delays_others_by_one_service_time_at_most(fairlane: Maker) -> None:
    passed(isolation.isolation(fairlane, length_s=120))


def test_a_joining_queue_waits_for_one_dispatch_of_each_other_at_most(fairlane: Maker) -> None:
    passed(starvation.joining(fairlane, joins=4))


def test_priority_overtakes_ten_seconds_of_ones_own_tasks_and_nobody_elses(fairlane: Maker) -> None:
    passed(starvation.priority_spam(fairlane, length_s=50))


def test_a_returning_client_gets_half_next_to_one_other(fairlane: Maker) -> None:
    passed(starvation.lift(fairlane, away_s=60, measured_s=120))


@pytest.mark.parametrize("trick", gaming.TRICKS, ids=lambda trick: trick.name)
def test_no_trick_pays(fairlane: Maker, trick: gaming.Trick) -> None:
    passed(gaming.verdicts([gaming.play(fairlane, trick, length_s=180)]))
