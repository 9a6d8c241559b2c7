"""A survey of the store as gauges."""

from fairlane.gateway.metrics.gauges import MAX_UPSTREAMS, rows_of
from fairlane.queues.inspect.inspector import Model, StoreSnapshot
from fairlane.queues.inspect.upstreams import BreakerState, Upstream
from fairlane.queues.rules import EffectiveSettings


def test_names_of_upstreams_are_bounded_and_open_ones_are_told_first() -> None:
    upstreams = [Upstream(f"gpu-{n:03}") for n in range(MAX_UPSTREAMS + 5)]
    upstreams[-1].breaker = BreakerState.OPEN
    upstreams[-2].breaker = BreakerState.HALF_OPEN
    model = Model("m", EffectiveSettings({}, {}), upstreams=upstreams)
    rows = rows_of(StoreSnapshot(0, [], [model], [], [], {}, {}), str)["fairlane_breaker_state"]
    assert len(rows) == MAX_UPSTREAMS + 1
    assert rows["m", upstreams[-1].upstream] == 2
    assert rows["m", upstreams[-2].upstream] == 1
    assert rows["m", "gpu-000"] == rows["m", "other"] == 0
