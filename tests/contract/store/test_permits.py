"""Permits to call an endpoint: when they are issued, who is let in, how long they hold a slot, and how each of them ends."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.store.store import Store, World

pytestmark = pytest.mark.feature("endpoints", "permits")

IMAGE = "http:image"
UNUSED_MS, USED_MS = 30_000, 60_000
EVENT = '"permit":"secret","endpoint":"image"'


class Line(Store):
    """One replica's calls into the line of an endpoint that takes two requests at a time."""

    def __init__(self, world: World, replica: str = "r1", *, set_up: bool = True) -> None:
        super().__init__(world, replica, set_up=False)
        if set_up:
            self.limit(2)
        self.offer()

    def limit(self, concurrency: int) -> None:
        self.configure(concurrency, "requests", model=IMAGE)

    def ask_for(self, *task_ids: str, **more: Any) -> None:
        of: dict[str, Any] = {"unused_ms": UNUSED_MS, "used_ms": USED_MS, "event": EVENT}
        for task_id in task_ids:
            self.ask_permit(task_id, IMAGE, **of | more)

    def out(self, *task_ids: str) -> list[str]:
        """Those of these tasks whose permits have been issued and may be used."""
        return [task for task in task_ids if self.state(task) == "executing" and self.permit(task)]


@pytest.fixture
def line(world: World) -> Iterator[Line]:
    yield Line(world)
    world.check()


# ---- issued ----------


def test_a_permit_is_issued_as_soon_as_a_slot_is_free_by_no_worker(line: Line) -> None:
    line.ask_for("a", "b", "c")
    assert line.out("a", "b", "c") == ["a", "b"]
    assert line.place("c").position == 1
    line.use_permit("a")
    assert line.release_permit("a") == "ended"
    assert line.out("b", "c") == ["b", "c"]


def test_an_answer_says_that_it_is_issued(line: Line) -> None:
    line.limit(1)
    first, second = line.ask_permit("a", IMAGE), line.ask_permit("b", IMAGE)
    assert (first.state, first.place.position, first.granted) == ("executing", 0, [])
    assert (second.state, second.place.position) == ("queued", 1)


def test_an_issued_permit_is_an_event_of_its_log(line: Line) -> None:
    line.ask_for("a")
    assert line.permit("a") == {
        "taskId": "a",
        "ts": line.world.now_ms,
        "permit": "secret",
        "endpoint": "image",
        "expiresAt": line.world.now_ms + UNUSED_MS,
    }
    assert line.kinds("a") == ["start", "permit"]
    assert line.slots(IMAGE) == {"a": UNUSED_MS}


def test_readers_get_it_and_its_end(line: Line) -> None:
    line.heard()
    line.ask_for("a", follow=True)
    line.use_permit("a")
    line.release_permit("a")
    assert [message[3] for message in line.heard() if message[0] == "event"] == ["start", "permit", "done"]
    assert line.usage()["a"]["state"] == "completed"


def test_a_permit_does_not_outlast_the_deadline_of_its_task(line: Line) -> None:
    line.ask_for("a", timeout_ms=10_000)
    issued = line.permit("a")
    assert issued
    assert issued["expiresAt"] == line.world.now_ms + 10_000


def test_an_endpoint_without_limits_issues_nothing(line: Line) -> None:
    line.apply()
    line.ask_for("a")
    assert line.state("a") == "queued"
    line.limit(1)
    assert line.out("a") == ["a"]


def test_workers_are_given_calls_alone(line: Line) -> None:
    line.limit(3)
    line.offer(IMAGE)
    line.apply()
    line.submit("call", IMAGE, task_type="http")
    line.ask_for("permit", user="v")
    line.submit("later", IMAGE, task_type="http", user="w")
    line.limit(3)
    assert line.taken(IMAGE, want=5) == ["call", "later"]
    assert line.out("permit") == ["permit"]


def test_a_freed_slot_goes_to_a_worker_or_to_a_permit_as_the_next_task_needs(line: Line) -> None:
    line.offer(IMAGE)
    line.limit(1)
    first = line.run("call", IMAGE, task_type="http")
    line.ask_for("permit")
    assert line.out("permit") == []
    line.world.advance(1)
    line.submit("later", IMAGE, task_type="http")
    assert line.finish(first, want=1, models=(IMAGE,)).granted == []
    assert line.out("permit") == ["permit"]
    line.ask(IMAGE)
    line.heard()
    line.use_permit("permit")
    assert line.release_permit("permit") == "ended"
    assert line.heard() == [("wake", IMAGE)]
    assert line.taken(IMAGE) == ["later"]


def test_many_permits_are_issued_some_at_a_time(line: Line) -> None:
    line.apply()
    names = [f"a{number:03d}" for number in range(200)]
    line.ask_for(*names)
    line.limit(0)
    issued = len(line.out(*names))
    assert 0 < issued < 200
    assert line.ask(IMAGE, want=0).retry_at == {IMAGE: 1}
    line.pass_time(3000)
    assert line.out(*names) == names


@pytest.mark.feature("limits")
def test_a_user_with_too_many_running_tasks_waits(line: Line) -> None:
    line.set_model(IMAGE, max_running_per_user=1)
    line.ask_for("a", "b", user="u")
    line.ask_for("c", user="v")
    assert line.out("a", "b", "c") == ["a", "c"]
    line.cancel("a")
    assert line.out("b") == ["b"]


def test_a_reader_who_leaves_keeps_the_permit(line: Line) -> None:
    line.ask_for("a", linger_ms=1000)
    line.pass_time(5000)
    line.renew(read=["a"])
    line.pass_time(5000)
    assert line.out("a") == ["a"]


# ---- used ----------


def test_a_permit_lets_in_once(line: Line) -> None:
    line.ask_for("a", payload=b"body")
    other = line.replica("r2")
    assert other.use_permit("a", "n1") == "in"
    assert other.use_permit("a", "n1") == "in", "the reply was lost"
    assert other.use_permit("a", "n2") == "used"
    assert line.use_permit("a") == "used"
    assert line.slots(IMAGE) == {"a": USED_MS}
    assert line.payload("a") is None
    assert line.use_permit("b") == "unknown"


def test_a_task_that_waits_or_needs_a_worker_lets_nobody_in(line: Line) -> None:
    line.limit(1)
    line.offer(IMAGE)
    line.ask_for("a", "b")
    line.submit("call", IMAGE, task_type="http")
    assert [line.use_permit(task) for task in ("b", "call")] == ["over", "over"]
    assert [line.release_permit(task) for task in ("a", "b", "call", "x")] == [
        "unused",
        "over",
        "over",
        "unknown",
    ]


def test_a_used_permit_holds_its_slot_until_its_end_is_reported(line: Line) -> None:
    line.ask_for("a", "b", "c")
    assert line.use_permit("a") == "in"
    line.pass_time(UNUSED_MS - 1000)
    assert line.use_permit("b") == "in"
    line.pass_time(10_000)
    assert line.out("c") == [], "both are taken"
    assert line.release_permit("a", epoch=7) == "over", "of another grant"
    assert line.release_permit("a") == "ended"
    assert line.out("c") == ["c"]
    assert line.release_permit("a") == "over"
    assert (line.state("a"), line.kinds("a")) == ("completed", ["start", "permit", "done"])
    assert line.state("b") == "executing"


def test_a_used_permit_ends_when_its_time_is_over(line: Line) -> None:
    line.ask_for("a")
    assert line.use_permit("a") == "in"
    line.pass_time(USED_MS - 1000)
    assert line.state("a") == "executing"
    line.pass_time(2000)
    assert line.state("a") == "completed"
    last = line.last("a")
    assert last.kind == "done"
    assert b'"reported":false' in last.data
    assert line.release_permit("a") == "over"
    assert line.slots(IMAGE) == {}


# ---- not used ----------


def test_an_unused_permit_gives_its_slot_back_and_fails(line: Line) -> None:
    line.limit(1)
    line.ask_for("a")
    line.ask_for("b", user="v")
    assert line.out("b") == []
    line.pass_time(UNUSED_MS)
    assert line.end("a") == ("failed", "PERMIT_EXPIRED")
    assert line.out("b") == ["b"]
    assert line.use_permit("a") == "over"


@pytest.mark.parametrize("uses_late", [False, True])
def test_a_user_who_wastes_permits_takes_no_more_of_the_line_than_others(line: Line, uses_late: bool) -> None:
    """Not even one who uses each in the last instant: what counts is the time in which others could have called."""
    line.limit(1)
    for number in range(200):
        line.ask_for(f"waster{number}", user="waster", keep_ms=10**9)
        line.ask_for(f"user{number}", user="user", keep_ms=10**9)
    held, waiting = {"waster": 0, "user": 0}, {"waster": 0, "user": 0}
    while held["user"] < 6 * UNUSED_MS:
        (task,) = line.slots(IMAGE)
        user = task.rstrip("0123456789")
        began = line.world.now_ms
        if user == "waster":
            line.pass_time(UNUSED_MS - 1000 if uses_late else UNUSED_MS)
        if user == "user" or uses_late:
            assert line.use_permit(task) == "in"
            line.pass_time(1000)
            assert line.release_permit(task) == "ended"
        held[user] += line.world.now_ms - began
        waiting[user] += 1
    assert held["waster"] <= held["user"] + 2 * UNUSED_MS
    assert held["waster"] >= held["user"] / 2


def test_the_duration_of_a_call_costs_no_turns(line: Line) -> None:
    line.limit(1)
    for number in range(4):
        line.ask_for(f"slow{number}", user="slow")
        line.ask_for(f"quick{number}", user="quick")
    order = []
    for _ in range(8):
        (task,) = line.slots(IMAGE)
        line.use_permit(task)
        line.pass_time(20_000 if task.startswith("slow") else 1000)
        line.release_permit(task)
        order.append(task[:-1])
    assert order == ["slow", "quick"] * 4


# ---- windows ----------


@pytest.mark.feature("pacing")
def test_a_permit_counts_in_a_window_until_it_is_used_and_a_window_longer(line: Line) -> None:
    line.limit(0)
    line.set_model(IMAGE, windows="2/1s")
    line.ask_for("a", "b", "c")
    line.pass_time(5000)
    assert line.out("c") == [], "neither has left"
    assert line.use_permit("a") == "in"
    line.world.advance(500)
    outcome, later = line.use_permit_until("b")
    assert (outcome, later) == ("in", {IMAGE: 530}), (
        "a window after the first one, which came 30 ms after the check at most"
    )
    line.world.advance(529)
    line.ask(IMAGE, want=0)
    assert line.out("c") == []
    line.world.advance(1)
    line.ask(IMAGE, want=0)
    assert line.out("c") == ["c"]


@pytest.mark.feature("pacing")
def test_an_unused_permit_counts_in_no_window(line: Line) -> None:
    line.limit(0)
    line.set_model(IMAGE, windows="2/1h")
    line.ask_for("a", "b", "c", "d")
    assert line.out("c", "d") == []
    line.cancel("a")
    assert line.out("c", "d") == ["c"]
    line.pass_time(UNUSED_MS)
    assert line.end("b") == ("failed", "PERMIT_EXPIRED")
    assert line.out("d") == ["d"]


# ---- cancelled ----------


def test_cancelling_an_unused_permit_frees_its_slot_immediately(line: Line) -> None:
    line.limit(1)
    line.ask_for("a", "b")
    assert line.cancel("a").outcome == "ended"
    assert line.use_permit("a") == "over"
    assert line.out("b") == ["b"]
    assert list(line.usage()) == ["a"]


@pytest.mark.parametrize("reported", [True, False])
def test_a_call_that_is_under_way_keeps_its_slot_though_its_task_is_cancelled(
    line: Line, reported: bool
) -> None:
    line.limit(1)
    line.ask_for("a")
    line.ask_for("b", user="v")
    line.use_permit("a")
    line.cancel("a")
    assert line.state("a") == "cancelled"
    assert line.use_permit("a") == "used"
    line.pass_time(USED_MS // 2)
    assert line.out("b") == []
    line.world.check()
    if reported:
        assert line.release_permit("a") == "over"
    else:
        line.pass_time(USED_MS // 2)
    assert line.out("b") == ["b"]
    assert list(line.usage()) == ["a"]
