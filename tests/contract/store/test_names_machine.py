"""Random lives of a pool whose callers also ask for models that nobody configured (see test_scheduler_machine.py).

Some of these names a worker offers now and then: its tasks then have their own line, else they share that of `*`.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.contract.store.store import ANY_MODEL, Rejected
from tests.contract.store.test_scheduler_machine import MODELS, NEEDS, QUEUES, USERS, WHO, Life, live_counted
from tests.support.audit import Snapshot
from tests.support.servers import Server

NAMED_AT_TIMES = "late"
NAMES = (NAMED_AT_TIMES, "invented", "invented:é 2")


class NamesLife(Life):
    models = (*MODELS, NAMED_AT_TIMES, ANY_MODEL)
    offers = (((*MODELS, NAMED_AT_TIMES), 3), ((ANY_MODEL,), 2), (MODELS[:1], 1))

    @rule(
        who=WHO,
        name=st.sampled_from(NAMES),
        queue=st.sampled_from(QUEUES),
        user=st.sampled_from(USERS),
        times=st.sampled_from(((0, 0), (4000, 0), (0, 2000))),
        flags=st.tuples(st.booleans(), st.booleans()),
    )
    def submit_a_name(
        self, who: int, name: str, queue: str, user: str, times: tuple[int, int], flags: tuple[bool, bool]
    ) -> None:
        replica = self.replicas[who]
        task_id = f"t{next(self.numbers)}"
        want = 1 if replica.serves(name) and replica.free > 0 else 0
        offers = Snapshot(self.world).one("offers", name)
        offered = any(until_ms > self.world.now_ms for until_ms in offers.values())
        named = replica.models != (ANY_MODEL,)
        more = {"timeout_ms": times[0], "wait_ms": times[1], "waiting": flags[0], "follow": flags[1]}
        answer: Any = replica.store.submit(
            task_id, name, queue=queue, user=user, want=want, worker="w", named=named, **more
        )
        if isinstance(answer, Rejected):
            return
        own = offered or bool(want and named)
        assert answer.line == (name if own else ANY_MODEL), "a worker that offers it gives a name a line"
        self.accepted.append(task_id)
        replica.keep(answer.grants)
        self.told(replica, answer.retry_at)
        if len(answer.grants) < want:
            replica.idle_for.add(answer.line)
            self.check_told(answer.retry_at, (answer.line,))

    def check_limits(self, shot: Snapshot) -> None:
        super().check_limits(shot)
        self.check_lines(shot)

    def check_lines(self, shot: Snapshot) -> None:
        """Lines are those of real models, and no others."""
        for kind in ("model", "lanes", "slots"):
            assert {model for (model,) in shot.by_kind[kind]} <= set(self.models)
        assert set(shot.one("models")) <= set(self.models)
        for replica in self.replicas:
            for grant in replica.held.values():
                served = grant.model in replica.models or replica.models == (ANY_MODEL,)
                assert served, "no worker is given what it does not serve"
                assert grant.asked in (*MODELS, *NAMES)
                assert (grant.asked == grant.model) != (grant.model == ANY_MODEL)


@NEEDS
@pytest.mark.timeout(0)
def test_any_life_of_a_pool_with_invented_names_keeps_the_promises(
    redis_server: Server, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    life = type("NamesLifeHere", (NamesLife,), {"server": redis_server})
    live_counted(life, request, capsys, long=1000, short=25)
