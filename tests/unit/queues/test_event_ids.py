"""The clock of scripts never goes back."""

from tests.contract.store.store import World

from fairlane.queues.store.scripts import CLAMP


def test_a_clock_that_is_set_back_still_advances_for_scripts(world: World) -> None:
    script = CLAMP + "local t = {} for i, us in ipairs(ARGV) do t[i] = clamped(us + 0) end return t"
    assert world.call("EVAL", script, 0, 50, 60, 20, 25, 80) == [50, 60, 60, 65, 120]
