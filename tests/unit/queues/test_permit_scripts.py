"""Permits to call an endpoint: who takes them, who is let in, how long they hold a slot, and how each of them ends."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.store.store import World, drive
from tests.support.audit import audit
from tests.support.direct import Subscription
from tests.support.pool import Pool
from tests.support.servers import Server

from fairlane.queues.scheduler import MAX_TAKEN
from fairlane.queues.tasks import (
    PERMIT,
    PERMIT_HOLDER,
    Admitted,
    ExistingTask,
    Grant,
    PermitEnd,
    Rejection,
    Submitted,
)

IMAGE = "http:image"
REST = b'"permit":"secret","endpoint":"image"'
DONE = b'"finishReason":null,"result":{"reported":true}'
UNUSED_MS, USED_MS = 30_000, 60_000


class Line(Pool):
    """One replica's calls into the line of an endpoint that takes two requests at a time."""

    def __init__(self, world: World, replica: str = "r1", *, limit: int = 2, set_up: bool = True) -> None:
        super().__init__(world, replica, set_up=False)
        self.accepted: list[str] = []
        if set_up:
            self.configure(limit, "requests", model=IMAGE)
        self.offer()

    def submit(self, task_id: str, *args: Any, **more: Any) -> Submitted | ExistingTask | Rejection:
        self.accepted.append(task_id)
        return super().submit(task_id, *args, **more)

    def audit(self) -> None:
        audit(self.world, self.accepted)

    def ask_for(self, task_id: str, **more: Any) -> Submitted:
        answer = self.submit(task_id, IMAGE, task_type=PERMIT, **more)
        assert isinstance(answer, Submitted), answer
        return answer

    def hold(self, want: int = MAX_TAKEN) -> list[Grant]:
        """What a replica takes to give out."""
        return self.take(IMAGE, want=want, worker=PERMIT_HOLDER)

    def give_out(self, grant: Grant, unused_ms: int = UNUSED_MS, used_ms: int = USED_MS) -> bytes | None:
        row = drive(self.scheduler.issue_permit(grant, unused_ms, used_ms, REST))
        return row and row.data

    def out(self, task_id: str, **more: Any) -> Grant:
        """Ask for a permit, and give it out."""
        self.ask_for(task_id, **more)
        (grant,) = self.hold()
        assert grant.task_id == task_id
        assert self.give_out(grant)
        return grant

    def enter(self, grant: Grant, nonce: str = "") -> Admitted:
        nonce = nonce or self.scheduler.nonce()
        answer: Admitted = drive(self.scheduler.use_permit(grant.task_id, grant.epoch, nonce))[0]
        return answer

    def leave(self, grant: Grant) -> PermitEnd:
        answer: PermitEnd = drive(self.scheduler.release_permit(grant.task_id, grant.epoch, DONE))
        return answer

    def pass_time(self, ms: int, *, step_ms: int = 1000) -> None:
        """Time, with a sweep each second, in which the replica lives."""
        for at in range(0, ms, 5000):
            self.offer()
            super().pass_time(min(5000, ms - at), step_ms=step_ms)
        self.offer()

    def kinds(self, task_id: str) -> list[str]:
        return [kind for _, kind in self.events(task_id)]


@pytest.fixture
def line(world: World) -> Line:
    return Line(world)


@pytest.fixture
def ear(line: Line, any_server: Server) -> Iterator[Subscription]:
    """What the replica of the line is told."""
    ear = line.ears(any_server.socket_path)
    yield ear
    ear.close()


# ---- who takes them ----------


def test_only_a_holder_takes_permits(line: Line) -> None:
    line.offer(IMAGE)
    line.submit("call", IMAGE, task_type="http")
    line.ask_for("permit", user="v")
    assert line.taken(IMAGE, want=5) == ["call"]
    assert [grant.task_id for grant in line.hold()] == ["permit"]
    line.audit()


def test_one_live_replica_is_notified_of_a_permit(line: Line, ear: Subscription) -> None:
    Line(line.world, "dead", set_up=False)
    for number in range(10):
        line.world.advance(0.001)
        line.ask_for(f"a{number}")
        assert ear.drain() == [b"permit\nhttp:image"]


def test_a_freed_slot_wakes_a_worker_or_a_replica_as_the_next_task_needs(
    line: Line, ear: Subscription
) -> None:
    """A worker that ends a call, and finds a permit next, has a replica take that; and the other way round."""
    line.offer(IMAGE)
    line.configure(1, "requests", model=IMAGE)
    first = line.run("call", IMAGE, task_type="http")
    line.ask_for("permit")
    assert ear.drain() == []
    line.finish(first, want=1, models=(IMAGE,))
    assert ear.drain() == [b"permit\nhttp:image"]
    (grant,) = line.hold()
    line.give_out(grant)
    line.submit("later", IMAGE, task_type="http")
    line.ask(IMAGE)
    ear.drain()
    assert line.enter(grant) is Admitted.IN
    assert line.leave(grant) is PermitEnd.ENDED
    assert ear.drain() == [b"wake\nhttp:image"]
    line.audit()


# ---- out ----------


def test_a_permit_that_is_given_out_is_an_event_of_its_log(line: Line) -> None:
    line.ask_for("a")
    (grant,) = line.hold()
    data = line.give_out(grant)
    assert data is not None
    said = json.loads(data)
    assert said == {
        "taskId": "a",
        "ts": line.world.now_ms,
        "permit": "secret",
        "endpoint": "image",
        "expiresAt": line.world.now_ms + UNUSED_MS,
    }
    assert line.give_out(grant) == data, "the reply was lost"
    assert line.kinds("a") == ["start", "permit"]
    assert line.slots(IMAGE) == {"a": UNUSED_MS}
    line.audit()


def test_a_permit_does_not_outlast_the_deadline_of_its_task(line: Line) -> None:
    line.ask_for("a", timeout_ms=10_000)
    (grant,) = line.hold()
    data = line.give_out(grant)
    assert data is not None
    assert json.loads(data)["expiresAt"] == line.world.now_ms + 10_000


def test_a_replica_that_dies_before_it_gives_a_permit_out_costs_nothing(line: Line) -> None:
    line.ask_for("a")
    (lost,) = line.hold()
    line.pass_time(5000)
    assert line.state("a") == "queued"
    (grant,) = Line(line.world, "r2", set_up=False).hold()
    assert grant.epoch > lost.epoch
    assert line.give_out(grant)
    assert line.give_out(lost) is None, "it comes too late"
    assert line.enter(lost) is Admitted.OVER
    assert line.enter(grant) is Admitted.IN
    assert line.record("a")["tries"] == "0" if "tries" in line.record("a") else True


# ---- used ----------


def test_a_permit_lets_in_once(line: Line) -> None:
    grant = line.out("a", payload=b"body")
    other = Line(line.world, "r2", set_up=False)
    assert other.enter(grant, "n1") is Admitted.IN
    assert other.enter(grant, "n1") is Admitted.IN, "the reply was lost"
    assert other.enter(grant, "n2") is Admitted.USED
    assert line.enter(grant) is Admitted.USED
    assert line.slots(IMAGE) == {"a": USED_MS}
    assert drive(line.scheduler.payload("a")) is None
    line.audit()


def test_a_used_permit_holds_its_slot_until_its_end_is_reported(line: Line) -> None:
    first, second = line.out("a"), line.out("b")
    line.ask_for("c")
    assert line.enter(first) is Admitted.IN
    line.pass_time(UNUSED_MS - 1000)
    assert line.enter(second) is Admitted.IN
    line.pass_time(10_000)
    assert line.hold() == [], "both are taken"
    assert line.leave(first) is PermitEnd.ENDED
    assert [grant.task_id for grant in line.hold()] == ["c"]
    assert line.leave(first) is PermitEnd.OVER
    assert (line.state("a"), line.kinds("a")) == ("completed", ["start", "permit", "done"])
    assert line.state("b") == "executing"
    line.audit()


def test_a_used_permit_ends_when_its_time_is_over(line: Line) -> None:
    grant = line.out("a")
    assert line.enter(grant) is Admitted.IN
    line.pass_time(USED_MS - 1000)
    assert line.state("a") == "executing"
    line.pass_time(2000)
    assert line.state("a") == "completed"
    last = drive(line.scheduler.last_event("a"))
    assert (last.kind, json.loads(last.data)["result"]) == ("done", {"reported": False})
    assert line.leave(grant) is PermitEnd.OVER
    assert line.slots(IMAGE) == {}
    line.audit()


def test_readers_get_the_end_and_it_is_counted(line: Line, ear: Subscription) -> None:
    line.ask_for("a", follow=True)
    (grant,) = line.hold()
    line.give_out(grant)
    line.enter(grant)
    ear.drain()
    line.leave(grant)
    assert any(message.startswith(b"event\na\n") and b"\ndone\n" in message for message in ear.drain())
    assert line.recorded()["a"].state == "completed"


# ---- not used ----------


def test_an_unused_permit_gives_its_slot_back_and_fails(line: Line) -> None:
    line.configure(1, "requests", model=IMAGE)
    grant = line.out("a")
    line.ask_for("b", user="v")
    assert line.hold() == []
    line.pass_time(UNUSED_MS)
    assert (line.state("a"), line.code("a")) == ("failed", "PERMIT_EXPIRED")
    assert [grant.task_id for grant in line.hold()] == ["b"]
    assert line.enter(grant) is Admitted.OVER
    line.audit()


@pytest.mark.parametrize("uses_late", [False, True])
def test_a_user_who_wastes_permits_takes_no_more_of_the_line_than_others(line: Line, uses_late: bool) -> None:
    """Not even one who uses each in the last instant: what counts is the time in which others could have called."""
    line.configure(1, "requests", model=IMAGE)
    for number in range(200):
        line.ask_for(f"waste{number}", user="waster")
        line.ask_for(f"use{number}", user="user")
    held = {"waster": 0, "user": 0}
    while held["user"] < 6 * UNUSED_MS:
        (grant,) = line.hold()
        line.give_out(grant)
        began = line.world.now_ms
        if grant.user == "waster":
            line.pass_time(UNUSED_MS - 1000 if uses_late else UNUSED_MS)
        if grant.user == "user" or uses_late:
            assert line.enter(grant) is Admitted.IN
            line.pass_time(1000)
            assert line.leave(grant) is PermitEnd.ENDED
        held[grant.user] += line.world.now_ms - began
    assert held["waster"] <= held["user"] + 2 * UNUSED_MS
    assert held["waster"] >= held["user"] / 2


def test_the_duration_of_a_call_costs_no_turns(line: Line) -> None:
    line.configure(1, "requests", model=IMAGE)
    for number in range(4):
        line.ask_for(f"slow{number}", user="slow")
        line.ask_for(f"quick{number}", user="quick")
    order = []
    for _ in range(8):
        (grant,) = line.hold()
        line.give_out(grant)
        line.enter(grant)
        line.pass_time(20_000 if grant.user == "slow" else 1000)
        line.leave(grant)
        order.append(grant.user)
    assert order == ["slow", "quick"] * 4


# ---- windows ----------


def test_a_permit_counts_in_a_window_until_it_is_used_and_a_window_longer(
    line: Line, ear: Subscription
) -> None:
    line.configure(0, "requests", model=IMAGE)
    line.set_model(IMAGE, windows="2/1s")
    first, second = line.out("a"), line.out("b")
    line.ask_for("c")
    line.pass_time(5000)
    assert line.hold() == [], "neither has left"
    assert line.enter(first) is Admitted.IN
    line.world.advance(500)
    _, later = drive(line.scheduler.use_permit(second.task_id, second.epoch, "n"))
    assert later == ((IMAGE, 530),), "a window after the first one, which came 30 ms after the check at most"
    line.world.advance(529)
    assert line.hold() == []
    line.world.advance(1)
    (grant,) = line.hold()
    assert grant.task_id == "c"
    line.audit()


def test_an_unused_permit_counts_in_no_window(line: Line) -> None:
    line.configure(0, "requests", model=IMAGE)
    line.set_model(IMAGE, windows="2/1h")
    line.out("a")
    line.out("b")
    for name in ("c", "d"):
        line.ask_for(name)
    assert line.hold() == []
    line.cancel("a")
    (third,) = line.hold()
    line.give_out(third)
    line.pass_time(UNUSED_MS)
    assert line.code("b") == "PERMIT_EXPIRED"
    (fourth,) = line.hold()
    assert (third.task_id, fourth.task_id) == ("c", "d")
    line.audit()


# ---- cancelled ----------


def test_cancelling_an_unused_permit_frees_its_slot_immediately(line: Line, ear: Subscription) -> None:
    line.configure(1, "requests", model=IMAGE)
    grant = line.out("a")
    line.ask_for("b")
    ear.drain()
    assert line.cancel("a").outcome == "ended"
    assert b"permit\nhttp:image" in ear.drain()
    assert line.enter(grant) is Admitted.OVER
    assert [grant.task_id for grant in line.hold()] == ["b"]
    line.audit()


@pytest.mark.parametrize("reported", [True, False])
def test_a_call_that_is_under_way_keeps_its_slot_though_its_task_is_cancelled(
    line: Line, reported: bool
) -> None:
    line.configure(1, "requests", model=IMAGE)
    grant = line.out("a")
    line.ask_for("b", user="v")
    line.enter(grant)
    line.cancel("a")
    assert line.state("a") == "cancelled"
    assert line.enter(grant) is Admitted.USED
    line.pass_time(USED_MS // 2)
    assert line.hold() == []
    line.audit()
    if reported:
        assert line.leave(grant) is PermitEnd.OVER
    else:
        line.pass_time(USED_MS // 2)
    assert [grant.task_id for grant in line.hold()] == ["b"]
    assert list(line.recorded()) == ["a"]
    line.audit()


# ---- when the store was away ----------
