"""Where models are placed."""

from collections import Counter

import pytest

from fairlane.gateway.routing.plans import Plans
from fairlane.gateway.settings import Settings
from fairlane.queues.ids import could_be_ours, in_pool, issued_ms, new_task_id, pool_of
from fairlane.queues.placement import Placement

NAMES = [f"model-{number}" for number in range(2000)]


def test_models_are_spread_evenly_and_a_new_pool_takes_only_its_share() -> None:
    four, five = Placement(["a", "b", "c", "d"]), Placement(["a", "b", "c", "d", "e"])
    before = {name: four.of_model(name) for name in NAMES}
    assert all(400 < count < 600 for count in Counter(before.values()).values())
    moved = {name for name in NAMES if five.of_model(name) != before[name]}
    assert 300 < len(moved) < 500
    assert {five.of_model(name) for name in moved} == {4}


def test_models_that_tasks_can_move_between_share_a_pool() -> None:
    settings = Settings(
        pools=4,
        models={"a": {"fallbacks": ["b"]}, "c": {"pool": "pool-3"}, "lonely": {"pool": "pool-2"}},
        routes={"r": {"model": "b", "tiers": {"paid": {"model": "c"}}}},
        chains={
            "k": {
                "stages": [
                    {"name": "one", "model": "r", "messages": [{"role": "user", "content": "x"}]},
                    {"name": "two", "model": "d", "messages": [{"role": "user", "content": "x"}]},
                ]
            }
        },
    )
    placed = Plans(settings).placement
    assert {placed.of_model(name) for name in "abcd"} == {2}
    assert placed.of_model("lonely") == 1


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"pools": ["x", "x"]}, "a name of its own"),
        ({"pools": 2, "redis_url": ["redis://a"]}, "one URL for each of the 2 pools"),
        (
            {"pools": 2, "keys": [{"id": "k", "sha256": "0" * 64, "quota": {"of": "key"}}]},
            "a quota needs one pool",
        ),
        ({"models": {"a": {"pool": "q"}}}, "there is no pool 'q'"),
        (
            {"pools": 2, "models": {"a": {"pool": "main", "fallbacks": ["b"]}, "b": {"pool": "pool-2"}}},
            "they need one pool: a in main, b in pool-2",
        ),
    ],
)
def test_contradictions(values: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Settings(**values)


def test_an_id_carries_its_pool() -> None:
    task_id = new_task_id(1_764_374_400_000)
    moved = in_pool(task_id, 200)
    assert (pool_of(task_id), pool_of(moved), issued_ms(moved)) == (0, 200, 1_764_374_400_000)
    assert could_be_ours(moved, 1_764_374_400_000)
    assert pool_of("no id") == 0
