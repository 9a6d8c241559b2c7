"""Random lives of a pool of which many tasks are chains (see test_scheduler_machine.py)."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.contract.store.test_scheduler_machine import MODELS, NEEDS, QUEUES, USERS, WHO, Life, live_counted
from tests.support.servers import Server

NUMBER = st.integers(0, 9)
FOLLOWS = st.sampled_from(("nothing", "stage", "stage", "parts", "parts", "end", "short"))


class ChainsLife(Life):
    @rule(
        who=WHO,
        model=st.sampled_from(MODELS),
        user=st.sampled_from(USERS),
        parts=st.sampled_from((0, 2, 3)),
        times=st.sampled_from(((0, 0, 0), (0, 0, 0), (20_000, 0, 3000))),
        waiting=st.booleans(),
        lost=st.sampled_from((False, False, True)),
    )
    def begin_a_chain(
        self,
        who: int,
        model: str,
        user: str,
        parts: int,
        times: tuple[int, int, int],
        waiting: bool,
        lost: bool,
    ) -> None:
        """Somebody offers the model, and takes what there is."""
        self.offer(who)
        self.look()
        self.submit(
            who=who,
            model=model,
            queue=QUEUES[0],
            user=user,
            priority=0,
            size=2,
            times=times,
            linger=0,
            tokens=(90, 10, 1.0),
            flags=(waiting, True, True),
            falls_after=-1,
            named="",
            lost=lost,
            parts=parts,
        )
        self.look()
        self.take(who=who, want=3, lost=lost)

    def go_on(
        self,
        who: int,
        which: int,
        follows: str,
        second: int,
        used: int,
        *,
        output: int = 30,
        lost: bool = False,
    ) -> None:
        """One of its grants of chains comes to its end. What came of that is looked at before anything else happens."""
        self.take(who=who, want=3, lost=False)
        self.look()
        self.advance_chain(
            who=who,
            which=which,
            follows=follows,
            model=MODELS[second],
            queue=QUEUES[second],
            wait_ms=0,
            falls_after=second - 1,
            output=output,
            events=second,
            told=1,
            used=(10, 2000) if used else (-1, -1),
            want=used == 1,
            lost=lost,
            written_by_owner=which != 8,
        )

    @rule(
        who=WHO,
        which=NUMBER,
        follows=FOLLOWS,
        second=st.integers(0, 1),
        used=st.integers(0, 2),
        output=st.sampled_from((30, 700_000)),
        lost=st.booleans(),
    )
    def go_on_once(
        self, who: int, which: int, follows: str, second: int, used: int, output: int, lost: bool
    ) -> None:
        self.go_on(who, which, follows, second, used, output=output, lost=lost)

    @rule(follows=st.lists(FOLLOWS, min_size=2, max_size=8), second=st.integers(0, 1), used=st.integers(0, 2))
    def go_on_and_on(self, follows: list[str], second: int, used: int) -> None:
        """Nothing is in the way."""
        for at, then in enumerate(follows):
            if at:
                self.look()
            who = at % len(self.replicas)
            self.offer(who)
            self.go_on(who, 0, then, second, used)

    @rule(parts=st.sampled_from((0, 2, 3)), follows=st.lists(FOLLOWS, min_size=2, max_size=8), who=WHO)
    def live_through_a_chain(self, parts: int, follows: list[str], who: int) -> None:
        self.begin_a_chain(
            who=who, model=MODELS[0], user=USERS[0], parts=parts, times=(0, 0, 0), waiting=False, lost=False
        )
        self.go_on_and_on(follows=follows, second=0, used=1)

    @rule(which=st.integers(0, 3))
    def cancel_one_of_the_last(self, which: int) -> None:
        self.cancel(which=which, tombstone=0)


@NEEDS
@pytest.mark.timeout(0)
def test_any_life_of_a_pool_with_chains_keeps_the_promises(
    redis_server: Server, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Counter[str]()
    life = type("ChainsLifeHere", (ChainsLife,), {"server": redis_server, "steps_of_chains": steps})
    live_counted(life, request, capsys, long=1000, short=60)
    with capsys.disabled():
        print(f" {dict(steps)}")
    assert set(steps) >= {"moved", "ended", "waits", "next", "late", "stale"}, "it came to what matters"
