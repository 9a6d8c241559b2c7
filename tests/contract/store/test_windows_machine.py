"""Random lives of a pool of which all models have windows (see test_scheduler_machine.py)."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from tests.contract.store.test_scheduler_machine import MODELS, NEEDS, WHO, Life, live_counted
from tests.support.servers import Server

WINDOWS = ("1/1s", "2/700ms", "1/300ms, 3/5s", "3/2s, 4/20s")


class WindowsLife(Life):
    @initialize(windows=st.tuples(*2 * (st.sampled_from(WINDOWS),)))
    def set_windows(self, windows: tuple[str, str]) -> None:
        for model, text in zip(MODELS, windows, strict=True):
            self.replicas[0].store.set_model(model, windows=text)

    @rule(who=WHO, ms=st.sampled_from((0, 3, 300)))
    def all_have_left(self, who: int, ms: int) -> None:
        """As workers do that send what they are given."""
        replica = self.replicas[who]
        grants = [grant for grant in replica.held.values() if grant.token not in self.have_left]
        self.pass_ms(ms)
        self.have_left |= {grant.token for grant in grants}
        self.told(replica, replica.store.sent(*grants))

    @rule(who=WHO)
    def take_in_time(self, who: int) -> None:
        """A replica asks when it was told that something may start."""
        replica = self.replicas[who]
        if replica.timers and replica.free:
            at = min(replica.timers.values())
            if at > self.world.now_ms:
                self.pass_ms(at - self.world.now_ms)
                self.look()
            self.take(who, 3, lost=False)


@pytest.fixture
def life(redis_server: Server) -> type[WindowsLife]:
    return type("LifeHere", (WindowsLife,), {"server": redis_server})


@NEEDS
@pytest.mark.timeout(0)
def test_any_life_of_a_pool_with_windows_keeps_the_promises(
    life: type[WindowsLife], request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    live_counted(life, request, capsys, long=1500, short=30)
