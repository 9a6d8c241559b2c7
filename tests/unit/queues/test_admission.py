"""Who is let in: adaptive queues by the wait to expect; what every refusal says of when to come back; where a task stands."""

import pytest
from tests.support.direct import World
from tests.support.pool import Pool

from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import Grant, Rejection, State, Submitted


def adaptive(world: World, *, longest: int = 10_000) -> tuple[Pool, Grant]:
    """An adaptive queue with a limit of one slot that has measured its pace: a task a second. One runs, none waits."""
    pool = Pool(world, limit=1)
    (running,) = flowing(pool)
    pool.set_queue("free", admission="adaptive", max_wait_ms=longest)
    return pool, running


def flowing(pool: Pool, *, every_ms: int = 1000, number: int = 25, queue: str = "free") -> list[Grant]:
    """A lane that has measured its pace: a task leaves every so often while others wait. One runs at the end, none waits."""
    for n in range(number):
        pool.submit(f"warm{queue}{n}", queue=queue, user=f"w{n}")
        if n % 5 == 0:
            pool.offer("m")
    running = pool.take()
    for _ in range(number - 1):
        pool.world.advance(every_ms)
        running = pool.finish(running[0], want=1).grants
    pool.offer("m")
    return running


def admitted(pool: Pool, number: int, *, users: int = 0, wait_ms: int = 0) -> tuple[int, list[Rejection]]:
    """How many of so many submits are let in, of as many users or one each."""
    refused = []
    for n in range(number):
        user = f"u{n % users if users else n}"
        answer = pool.submit(f"t{n}", user=user, wait_ms=wait_ms)
        if isinstance(answer, Rejection):
            refused.append(answer)
    return number - len(refused), refused


def test_an_adaptive_queue_takes_what_can_leave_within_its_longest_wait(world: World) -> None:
    pool, _ = adaptive(world)
    let_in, refused = admitted(pool, 30)
    assert 8 <= let_in <= 11, "ten seconds at one a second"
    assert {r.reason for r in refused} == {"too_long"}
    assert all(r.waiting > r.limit == 10_000 and r.retry_ms == r.waiting - r.limit + 1 for r in refused[:1])
    assert all(r.retry_ms > 0 for r in refused)


def test_a_task_with_a_short_wait_is_rejected_and_a_patient_one_is_not(world: World) -> None:
    pool, _ = adaptive(world)
    admitted(pool, 5)
    hasty = pool.submit("hasty", user="h", wait_ms=2000)
    assert isinstance(hasty, Rejection)
    assert (hasty.reason, hasty.limit) == ("too_long", 2000)
    deadline = pool.submit("deadline", user="d", timeout_ms=3000)
    assert isinstance(deadline, Rejection)
    assert (deadline.reason, deadline.limit) == ("too_long", 3000)
    assert isinstance(pool.submit("patient", user="p"), Submitted)


def test_a_lane_that_holds_as_much_as_can_leave_is_full_for_those_in_line(world: World) -> None:
    """Many users of one task each: a second one of theirs is refused, a newcomer is let in while his own wait fits."""
    pool, _ = adaptive(world)
    for n in range(30):
        world.call("HSET", world.keys("queue", queue="free"), "admission", "fixed" if n < 12 else "adaptive")
        if n < 12:
            pool.submit(f"t{n}", user="u0")
    full = pool.submit("more", user="u0", wait_ms=10_000)
    assert isinstance(full, Rejection)
    new = pool.submit("new", user="new")
    assert isinstance(new, Submitted)
    again = pool.submit("again", user="new")
    assert isinstance(again, Rejection)
    assert again.reason == "full"
    assert (again.waiting, again.limit) == (13, 10)
    assert again.retry_ms > 0


def test_while_no_pace_is_known_the_fixed_length_holds(world: World) -> None:
    pool = Pool(world, limit=1)
    pool.set_queue("free", admission="adaptive", max_wait_ms=1, max_length=3)
    let_in, refused = admitted(pool, 5, users=1)
    assert (let_in, {r.reason for r in refused}) == (3, {"full"})


@pytest.mark.parametrize("idle_ms", [30_000, 600_000, 7_200_000])
def test_time_without_anybody_waiting_is_no_stall(world: World, idle_ms: int) -> None:
    """After a quiet night the first that has to wait is let in: nobody left because nobody was there."""
    pool, grant = adaptive(world)
    pool.finish(grant)
    world.advance(idle_ms)
    pool.offer("m")
    pool.run("busy", queue="paid", user="p")
    answer = pool.submit("first")
    assert isinstance(answer, Submitted), answer
    assert 0 < answer.place.wait_ms < 5000
    assert answer.place.wait_ms == pool.place("first").wait_ms


def test_the_estimate_shrinks_while_a_task_runs_and_does_not_grow_if_that_runs_long(world: World) -> None:
    pool, _ = adaptive(world)
    for user in "uvw":
        pool.submit(user, user=user)
    waits = []
    for _ in range(6):
        waits.append(pool.place("w").wait_ms)
        world.advance(500)
    assert 3100 > waits[0] > waits[1] > waits[2] > 1800
    assert waits[2:] == [waits[2]] * 4
    world.advance(20_000)
    assert pool.place("w").wait_ms == waits[2]


def test_a_task_that_would_certainly_expire_is_rejected_in_every_queue(world: World) -> None:
    pool = Pool(world, limit=1)
    flowing(pool)
    for n in range(30):
        pool.submit(f"t{n}", user="u")
    late = pool.submit("late", user="u", timeout_ms=8000)
    assert isinstance(late, Rejection)
    assert (late.reason, late.limit) == ("too_long", 8000)
    assert late.waiting > 25_000
    assert 0 < late.retry_ms < late.waiting
    assert isinstance(pool.submit("patient", user="u", timeout_ms=60_000), Submitted)
    assert isinstance(pool.submit("perhaps", user="u", timeout_ms=20_000), Submitted), (
        "an estimate may be wrong"
    )
    assert isinstance(pool.submit("other", user="v", timeout_ms=8000), Submitted), (
        "the flooder's wait is his own"
    )


def failing(pool: Pool, running: Grant, number: int, *, users: int) -> Grant:
    """The next so many tasks that leave the lane fail, one each second; they are of so many users."""
    for n in range(number + 2):
        pool.submit(f"bad{n}", user=f"b{n % users}")
        if n > 1:
            pool.world.advance(1000)
            pool.offer("m")
            (running,) = pool.finish(running, state=State.FAILED, want=1).grants
    return running


def test_the_wait_is_the_lanes_measured_pace_and_its_bounds_embrace_it(world: World) -> None:
    pool = Pool(world, limit=1)
    flowing(pool, number=40)
    for n in range(20):
        pool.submit(f"t{n}", user=f"u{n}")
    for n in range(20):
        place = pool.place(f"t{n}")
        assert place.position == n + 1
        assert abs(place.wait_ms - 1000 * (n + 1)) <= 60 * (n + 1)
        assert 0 <= place.low_ms <= place.wait_ms <= place.high_ms


def test_the_wait_is_no_shorter_than_the_models_pace_before_that_is_measured(world: World) -> None:
    pool = Pool(world)
    pool.set_model(requests_per_minute=6)
    pool.run("r")
    world.advance(4000)
    for n in range(3):
        pool.submit(f"t{n}", user=f"u{n}")
    assert [pool.place(f"t{n}").wait_ms for n in range(3)] == [6000, 16_000, 26_000]
    world.advance(6000)
    assert pool.place("t0").wait_ms == 0


@pytest.mark.parametrize("state", ["cold", "measured", "parked", "paused", "held"])
def test_the_three_waits_are_in_order_whatever_the_state(world: World, state: str) -> None:
    pool = Pool(world, limit=2)
    if state == "measured":
        flowing(pool)
    if state == "parked":
        pool.set_model(max_running_per_user=1)
    pool.submit("runs")
    pool.submit("waits")
    pool.submit("behind", user="v")
    grants = pool.take(want=1)
    if state == "parked":
        pool.take(want=2)
    if state == "paused":
        pool.set_model(paused=True)
    if state == "held":
        pool.requeue(grants[0], "declined", hold_ms=30_000)
    for task in ("waits", "behind"):
        place = pool.place(task)
        if pool.state(task) == "queued":
            assert place.position >= 1
            if state not in ("measured", "held"):
                assert place[1:] == (-1, -1, -1), "nothing has been learnt"
                continue
            assert (30_000 if state == "held" else 0) <= place.low_ms <= place.wait_ms <= place.high_ms
        else:
            assert place == (0, 0, 0, 0)


# ---- refusals ----------


def refusals(world: World) -> dict[str, Rejection]:
    """One of each kind."""
    world.limits = Limits(max_queued_bytes=100, max_queue_length=50)
    pool = Pool(world, limit=1)
    found = {}

    def refuse(name: str, task: str, model: str = "m", **more: object) -> None:
        answer = pool.submit(task, model, **more)  # type: ignore[arg-type]
        assert isinstance(answer, Rejection), name
        assert answer.reason == name
        found[name] = answer

    refuse("no_worker", "x", "unheard-of")
    flowing(pool)
    refuse("full_bytes", "big", payload=b"x" * 200)
    pool.set_queue("free", max_length=1)
    pool.submit("a")
    refuse("full", "b")
    pool.set_model(max_waiting_per_user=1)
    refuse("user_full", "c")
    pool.set_model(max_waiting_per_user=None)
    pool.set_queue("free", admission="adaptive", max_wait_ms=500)
    refuse("too_long", "d", user="v")
    pool.offer(withdrawn=["m"])
    refuse("no_worker", "e")
    return found


def test_every_rejection_has_a_time_to_retry(world: World) -> None:
    found = refusals(world)
    assert set(found) == {"no_worker", "full_bytes", "full", "user_full", "too_long"}
    for name, refused in found.items():
        assert 0 < refused.retry_ms <= 120_000, (name, refused)


@pytest.mark.parametrize("grace", [0, 2000])
def test_retry_time_grows_with_the_time_that_a_model_has_been_without_workers(
    world: World, grace: int
) -> None:
    pool = Pool(world)
    world.advance(1000)
    pool.offer(withdrawn=["m"], grace_ms=grace)
    world.advance(grace)
    for away in (0, 1000, 5000):
        world.advance(away)
        refused = pool.submit("a")
        assert isinstance(refused, Rejection)
        assert refused.reason == "no_worker"
        assert not refused.others_offered, "nobody offers anything"
        assert 0 < refused.retry_ms <= 6001


def test_a_model_that_has_just_lost_its_worker_is_still_known(world: World) -> None:
    pool = Pool(world)
    pool.offer("other", "gone")
    pool.offer(withdrawn=["gone"])
    for model, known in (("gone", True), ("misspelt", False)):
        refused = pool.submit("a", model)
        assert isinstance(refused, Rejection)
        assert refused.others_offered is not known
