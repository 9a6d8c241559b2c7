"""Breakers and holds of upstreams: when they open, whom they keep out, and how they close again."""

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from tests.contract.store.store import World, drive
from tests.support.audit import audit
from tests.support.pool import OPS, Pool
from tests.support.servers import Server

from fairlane.queues.tasks import Fragment, Rejection, State, Submitted

OPEN_MS, MAX_OPEN_MS, FAILURES, PROBES = 5000, 60_000, 5, 2
"""As in upstreams.lua."""
FALLS: dict[str, Any] = {"fallbacks": "b\t", "fallback_after_ms": 10_000, "asked": "route"}


class Through(Pool):
    """Tasks that run through upstreams, each by a number of its own."""

    number = 0

    def __init__(self, world: World, replica: str = "r1", *, set_up: bool = True) -> None:
        super().__init__(world, replica, set_up=set_up)
        if set_up:
            self.offers("m")

    def offers(self, *models: str, upstreams: Sequence[str] = ()) -> None:
        self.offer(*models, upstreams=upstreams, hold_ms=10**9)

    def fail(
        self, *, user: str = "u", worker: str = "w1", upstream: str = "", code: str = "UPSTREAM_ERROR"
    ) -> str:
        self.number += 1
        task = f"failed-{self.number}"
        grant = self.run(task, user=user, worker=worker, upstream=upstream)
        self.finish(grant, state=State.FAILED, code=code)
        return task

    def succeed(self, *, user: str = "u", worker: str = "w1", upstream: str = "") -> str:
        self.number += 1
        task = f"good-{self.number}"
        self.finish(self.run(task, user=user, worker=worker, upstream=upstream))
        return task

    def open(self, **whose: str) -> None:
        """Have a breaker open."""
        for _ in range(FAILURES):
            self.fail(**whose)

    def known(self, upstream: str = "", model: str = "m") -> dict[str, str]:
        flat = self.world.call("HGETALL", self.world.keys("upstream", model=model, upstream=upstream))
        return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}

    def audit(self) -> None:
        audit(self.world, [parts[0] for parts in _tasks(self.world)])

    def force(
        self, state: Literal["open", "closed", "auto"], upstream: str = "", model: str = "m"
    ) -> tuple[str, str]:
        answer: tuple[str, str] = drive(self.scheduler.force_breaker(model, upstream, state, OPS))
        return answer


def _tasks(world: World) -> list[tuple[str]]:
    prefix = world.keys("task", id="")
    return [(name.decode().removeprefix(prefix),) for name in world.call("KEYS", prefix + "*")]


def refused(pool: Through, task: str = "new", **more: Any) -> Rejection:
    answer = pool.submit(task, **more)
    assert isinstance(answer, Rejection), answer
    return answer


def test_failures_in_a_row_open_a_breaker_and_a_probe_that_goes_well_closes_it(world: World) -> None:
    pool = Through(world)
    pool.open()
    answer = refused(pool)
    assert (answer.reason, answer.retry_ms) == ("unavailable", OPEN_MS)
    assert (pool.known()["why"], pool.known()["number"]) == ("UPSTREAM_ERROR", "1")
    pool.audit()
    world.advance(OPEN_MS)
    grants = [pool.run(f"probe{n}") for n in range(PROBES)]
    pool.submit("third")
    assert pool.taken("m") == [], "as many probes as may are under way"
    pool.audit()
    pool.finish(grants[0])
    third = pool.take("m")[0]
    assert third.task_id == "third"
    pool.finish(grants[1])
    assert pool.known() == {}
    more = [pool.run(f"after{n}") for n in range(4)]
    assert len(more) == 4
    pool.audit()


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_minute(world: World) -> None:
    pool = Through(world)
    pool.open()
    for ms in (5000, 10_000, 20_000, 40_000, 60_000, 60_000):
        assert refused(pool).retry_ms == ms
        world.advance(ms)
        pool.fail()
        pool.audit()
    assert int(pool.known()["since"]) < world.now_ms - 190_000


def test_few_failures_or_fewer_than_half_open_nothing(world: World) -> None:
    pool = Through(world)
    for _ in range(20):
        pool.fail()
        pool.succeed()
        pool.succeed()
    assert "till" not in pool.known()
    rare = Through(world, "r2", set_up=False)
    rare.number = 1000
    for _ in range(FAILURES - 1):
        world.advance(61_000)
        rare.fail()
    world.advance(61_000)
    rare.fail()
    assert "till" not in rare.known(), "those of more than a minute ago count no more"
    pool.audit()


@pytest.mark.parametrize("code", ["WORKER_ERROR", "BAD_REQUEST", "CONTEXT_LENGTH", "TOTAL_TIMEOUT"])
def test_errors_that_no_upstream_causes_do_not_count(world: World, code: str) -> None:
    pool = Through(world)
    for _ in range(2 * FAILURES):
        pool.fail(code=code)
    assert pool.known() == {}


def test_tasks_fall_back_immediately_while_all_breakers_of_their_model_are_open(world: World) -> None:
    pool = Through(world)
    pool.offers("b")
    running = [pool.run(f"runs{n}", user=f"u{n}") for n in range(FAILURES)]
    for n in range(3):
        pool.submit(f"waits{n}", **FALLS)
    for grant in running:
        pool.finish(grant, state=State.FAILED, code="UPSTREAM_ERROR")
    pool.sweep()
    assert [pool.record(f"waits{n}")["model"] for n in range(3)] == ["b"] * 3
    assert pool.record("waits0")["fallback_history"].endswith("\tbreaker_open")
    answer = pool.submit("new", **FALLS)
    assert isinstance(answer, Submitted)
    assert answer.model == "b"
    pool.audit()


def test_one_upstream_that_fails_leaves_the_others_of_its_model_alone(world: World) -> None:
    pool = Through(world)
    pool.offers("m", upstreams=["bad", "good"])
    pool.open(upstream="bad")
    assert isinstance(pool.submit("t"), Submitted)
    answer = pool.ask("m", upstream="bad")
    assert (answer.grants, answer.closed_upstreams) == ([], (("m", OPEN_MS),))
    assert answer.retry_at == (("m", OPEN_MS),)
    (grant,) = pool.take("m", upstream="good")
    pool.finish(grant)
    world.advance(OPEN_MS)
    (probe,) = [pool.run("p", upstream="bad")]
    assert pool.record("p")["probe"] == "1"
    pool.finish(probe)
    pool.succeed(upstream="bad")
    assert pool.known("bad") == {}
    pool.audit()


def test_a_429_holds_the_upstream_that_said_so_and_not_its_model(world: World) -> None:
    pool = Through(world)
    pool.offers("m", upstreams=["one", "two"])
    grant = pool.run("t", upstream="one")
    pool.requeue(grant, "declined", hold_ms=30_000)
    assert pool.take("m", upstream="one") == []
    (grant,) = pool.take("m", upstream="two")
    pool.requeue(grant, "declined", hold_ms=20_000)
    assert pool.take("m", upstream="two") == []
    assert pool.submit("more").state is State.QUEUED  # type: ignore[union-attr]
    assert pool.ask("m", upstream="one").retry_at == (("m", 20_000),), (
        "all of them are held: until the first is not"
    )
    world.advance(20_000)
    assert pool.take("m", upstream="one") == []
    assert len(pool.take("m", upstream="two", want=2)) == 2
    pool.audit()


def test_attempts_from_before_a_breaker_opened_do_not_count(world: World) -> None:
    pool = Through(world)
    early = [pool.run(f"early{n}") for n in range(6)]
    pool.open()
    for grant in early[:3]:
        pool.finish(grant)
    assert refused(pool).reason == "unavailable"
    world.advance(OPEN_MS)
    for grant in early[3:]:
        pool.finish(grant, state=State.FAILED, code="UPSTREAM_ERROR")
    assert pool.run("probe").task_id == "probe"
    pool.audit()


def test_an_operator_can_force_a_breaker_open_or_closed_and_release_it(
    world: World, any_server: Server
) -> None:
    pool = Through(world)
    pool.offers("m", upstreams=["up"])
    with pytest.raises(LookupError):
        pool.force("open", "other")
    ears = pool.ears(any_server.socket_path)
    assert pool.force("open", "up")[0] == "auto"
    assert refused(pool).retry_ms == 60_000
    world.advance(10 * MAX_OPEN_MS)
    pool.offers("m", upstreams=["up"])
    assert refused(pool).reason == "unavailable"
    assert pool.force("closed", "up")[0] == "open"
    for _ in range(2 * FAILURES):
        pool.fail(upstream="up")
    assert pool.run("t", upstream="up")
    assert pool.force("auto", "up")[0] == "closed"
    assert pool.known("up") == {}
    said = [message.decode().split("\n") for message in ears.drain() if message.startswith(b"b")]
    ears.close()
    assert [(what, why, model, up) for _, what, _, _, why, model, up in said] == [
        ("open", "FORCED", "m", "up"),
        ("closed", "FORCED", "m", "up"),
        ("closed", "FORCED", "m", "up"),
    ]
    pool.audit()


def test_a_model_can_have_its_own_bounds_or_no_breaker(world: World) -> None:
    pool = Through(world)
    pool.set_model("m", breaker_failures=0)
    for _ in range(3 * FAILURES):
        pool.fail()
    assert pool.known() == {}
    pool.set_model("m", breaker_failures=2, breaker_open_ms=90_000)
    pool.fail()
    world.advance(61_000)
    pool.offers("m")
    pool.fail()
    assert "till" not in pool.known()
    pool.fail()
    assert refused(pool).retry_ms == 60_000
    assert int(pool.known()["till"]) == world.now_ms + 90_000


def test_names_that_callers_choose_have_no_breaker(world: World) -> None:
    pool = Through(world)
    pool.offers("*")
    for n in range(3 * FAILURES):
        pool.submit(f"t{n}", f"name{n}")
        (grant,) = pool.take("*")
        pool.finish(grant, state=State.FAILED, code="UPSTREAM_ERROR")
    assert world.call("ZCARD", world.keys("upstreams")) == 0
    pool.audit()


def test_old_outcomes_are_forgotten(world: World) -> None:
    pool = Through(world)
    pool.fail()
    assert world.call("HGET", world.keys("model", model="m"), "upstream_state") == b"1"
    pool.audit()
    pool.pass_time(62_000)
    assert world.call("ZCARD", world.keys("upstreams")) == 0
    assert world.call("HGET", world.keys("model", model="m"), "upstream_state") is None
    pool.audit()
    pool.open()
    world.advance(3_700_000)
    pool.sweep()
    assert pool.known() == {}, "nobody has tried it for an hour"
    pool.audit()


def test_replicas_are_notified_when_a_breaker_opens_and_closes(world: World, any_server: Server) -> None:
    pool = Through(world)
    ears = pool.ears(any_server.socket_path)
    pool.open(user="other")
    world.advance(OPEN_MS)
    pool.submit("t")
    for grant in pool.take("m", want=2):
        pool.finish(grant)
    pool.succeed()
    said = [message.decode().split("\n") for message in ears.drain() if message.startswith(b"b")]
    ears.close()
    assert [(what, ms, by, why, model, up) for _, what, ms, by, why, model, up in said] == [
        ("open", "5000", "r1", "UPSTREAM_ERROR", "m", ""),
        ("probing", "0", "r1", "", "m", ""),
        ("probing", "0", "r1", "", "m", ""),
        ("closed", "0", "r1", "", "m", ""),
    ]


@pytest.mark.parametrize("waits", [True, False])
def test_a_sync_task_ends_when_the_breaker_of_its_upstream_opens(world: World, waits: bool) -> None:
    pool = Through(world)
    grant = pool.run("t", waiting=waits)
    pool.open()
    end = Fragment(b'"error":"no","code":"UPSTREAM_ERROR","retryable":true', "UPSTREAM_ERROR")
    outcome = pool.requeue(grant, "failed", begun=True, end=end, why="UPSTREAM_ERROR")
    assert outcome.outcome == ("ended" if waits else "queued")
    assert pool.record("t").get("code") == ("UPSTREAM_ERROR" if waits else None)
    pool.audit()


def test_sync_tasks_end_when_the_probes_have_failed_too(world: World) -> None:
    pool = Through(world)
    pool.offers("b")
    pool.open(user="u")
    world.advance(OPEN_MS)
    probes = [pool.run(f"p{n}", user=f"u{n}") for n in range(PROBES)]
    for task in ("probe", "waits", "async"):
        pool.submit(task, user="u", waiting=task != "async")
    pool.submit("falls", user="u", waiting=True, fallbacks="nobody\t", fallback_after_ms=0)
    for grant in probes:
        pool.finish(grant, state=State.FAILED, code="CONNECT_TIMEOUT")
    pool.sweep()
    left = {task for task in ("probe", "waits", "async", "falls") if pool.state(task) == "queued"}
    assert left == {"async"}
    ended = {task for task in ("waits", "falls") if pool.state(task) == "failed"}
    assert {pool.code(task) for task in ended} == {"MODEL_UNAVAILABLE"}
    pool.audit()


def test_one_model_fills_no_more_than_a_part_of_what_is_remembered(world: World) -> None:
    pool = Through(world)
    pool.offers("m", "other")
    for n in range(1100):
        grant = pool.run("t" if not n else f"t{n}", upstream=f"up{n}")
        pool.requeue(grant, "declined", hold_ms=1)
        pool.cancel(grant.task_id)
        world.advance(2)
    grants = [pool.run(f"other{n}", "other", upstream="up") for n in range(FAILURES)]
    for grant in grants:
        pool.finish(grant, state=State.FAILED, code="UPSTREAM_ERROR")
    assert "till" in pool.known("up", "other"), "no worker of m keeps others from theirs"
    assert world.call("ZCARD", world.keys("upstreams")) < 200
    pool.audit()


@pytest.mark.parametrize("answer", ["", "object"])
def test_answers_that_cannot_be_read_count_where_they_had_to_match_nothing(world: World, answer: str) -> None:
    pool = Through(world)
    for n in range(FAILURES):
        grant = pool.run(f"t{n}", answer=answer)
        pool.finish(grant, state=State.FAILED, code="JSON_PARSE_FAILED")
    assert ("till" in pool.known()) == (answer == "")
    pool.audit()


def test_the_first_output_of_a_probe_counts_as_success(world: World) -> None:
    pool = Through(world)
    pool.open()
    world.advance(OPEN_MS)
    probes = [pool.run(f"p{n}") for n in range(PROBES)]
    pool.submit("next")
    assert pool.taken("m") == []
    pool.append(probes[0], 2)
    pool.audit()
    (third,) = pool.take("m")
    pool.append(third, 2)
    assert pool.known() == {}, "two of them have output; none has ended"
    for grant in (probes[0], third):
        pool.finish(grant, 3)
    pool.finish(probes[1], state=State.FAILED, code="UPSTREAM_ERROR")
    assert pool.known() == {}
    pool.audit()
