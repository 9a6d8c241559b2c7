"""Random lives of a pool whose upstreams fail, are held, probed and forced (see test_scheduler_machine.py)."""

import contextlib
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from tests.contract.store.store import ANY_MODEL
from tests.contract.store.test_scheduler_machine import MODELS, NEEDS, QUEUES, USERS, WHO, Life, live_counted
from tests.support.audit import PROBES, Snapshot
from tests.support.servers import Server

FAR = 1 << 60


class BreakersLife(Life):
    upstreams = ("one", "two:é", "one")
    failure = "UPSTREAM_ERROR"

    @initialize(failures=st.integers(1, 3), open_ms=st.sampled_from((400, 3000)))
    def low_bounds(self, failures: int, open_ms: int) -> None:
        for model in MODELS:
            for setting, value in (("breaker_failures", failures), ("breaker_open_ms", open_ms)):
                self.replicas[0].store.set_model(model, **{setting: value})

    @rule(who=WHO, times=st.integers(1, 4))
    def fail_in_a_row(self, who: int, times: int) -> None:
        for _ in range(times):
            self.finish(
                who=who,
                which=0,
                state="failed",
                events=0,
                used=(0, 0),
                want=False,
                lost=False,
                written_by_owner=True,
            )
            self.look()

    @rule(who=WHO, which=st.integers(0, 1), times=st.integers(1, 3))
    def come_and_be_taken(self, who: int, which: int, times: int) -> None:
        """As callers come again when they were told to."""
        self.advance(3000)
        self.look()
        self.offer(who)
        for _ in range(times):
            self.submit(
                who=who,
                model=MODELS[which],
                queue=QUEUES[0],
                user=USERS[times % 2],
                priority=0,
                size=2,
                times=(0, 0, 0),
                linger=0,
                tokens=(0, 0, 1.0),
                flags=(False, False, False),
                falls_after=-1,
                named="",
                lost=False,
            )
            self.look()
        self.take(who=who, want=times, lost=False)

    @rule(who=WHO, which=st.integers(0, 9), hold_ms=st.sampled_from((700, 3000)))
    def be_refused(self, who: int, which: int, hold_ms: int) -> None:
        self.requeue(who=who, which=which, hold_ms=hold_ms, cause="declined", begun=True)

    @rule(
        which=st.integers(0, 1),
        upstream=st.sampled_from(("one", "two:é")),
        state=st.sampled_from(("open", "closed", *("auto",) * 8)),
    )
    def force(self, which: int, upstream: str, state: Any) -> None:
        with contextlib.suppress(LookupError):
            self.replicas[0].store.force_breaker(MODELS[which], upstream, state)

    # ---- what always holds ----------

    def through(self, shot: Snapshot, model: str, upstream: str) -> int:
        """Until when nothing of a model starts through an upstream; 0 = something may."""
        length = str(len(model.encode()))
        fields = shot.one("upstream", length, model, upstream)
        till, held, forced = (
            int(fields.get("till", 0)),
            int(fields.get("cooldown_until", 0)),
            fields.get("forced"),
        )
        if forced == "open":
            return FAR
        if forced != "closed" and till > shot.now_ms:
            return max(till, held)
        if held > shot.now_ms:
            return held
        probing = len(shot.one("probes", length, model, upstream)) >= PROBES
        return shot.now_ms + 1000 if till and not forced and probing else 0

    def startable(self, shot: Snapshot, model: str) -> tuple[bool, int]:
        startable, at = super().startable(shot, model)
        offered = {
            member.rpartition("\n")[0]
            for name in (model, ANY_MODEL)
            for member, until_ms in shot.one("serving", name).items()
            if until_ms > shot.now_ms
        }
        barred = min((self.through(shot, model, upstream) for upstream in offered), default=0)
        return startable and barred < FAR, max(at, barred)

    def check_woken(self, shot: Snapshot, model: str) -> None:
        idle = {*shot.one("idle", model), *shot.one("idle", ANY_MODEL)}
        idle -= {replica.name for replica in self.replicas if replica.free <= 0} & self.stale
        able = [r for r in self.replicas if r.name in idle and not self.through(shot, model, r.upstream)]
        under_way = any(woken == model for replica in self.replicas for _, woken in replica.wakes)
        assert not able or under_way, (model, idle)

    def leave_nothing(self) -> None:
        if self.begun:
            for model in MODELS:
                for upstream in set(self.upstreams):
                    self.force(which=MODELS.index(model), upstream=upstream, state="auto")
        super().leave_nothing()


@NEEDS
@pytest.mark.timeout(0)
def test_any_life_of_a_pool_with_failing_upstreams_keeps_the_promises(
    redis_server: Server, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    life = type("BreakersLifeHere", (BreakersLife,), {"server": redis_server})
    live_counted(life, request, capsys, long=1000, short=25)
