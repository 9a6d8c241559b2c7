"""Random lives of a state machine: the same few in `make test`, three times as many in `make nightly`; with --long or
FAIRLANE_LONG=1 others each time, many more and longer.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def live(
    machine: type[RuleBasedStateMachine],
    config: pytest.Config,
    *,
    short: int,
    long: int,
    steps: tuple[int, int] = (40, 60),
) -> None:
    """Live so many lives. `steps`: of each, in the short run and in the long one."""
    runs_long = config.getoption("--long") or os.environ.get("FAIRLANE_LONG") == "1"
    few = short if config.getoption("--nightly") else short // 3
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=long if runs_long else few,
            stateful_step_count=steps[runs_long],
            deadline=None,
            derandomize=not runs_long,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink] if runs_long else [Phase.generate],
            print_blob=True,
        ),
    )
