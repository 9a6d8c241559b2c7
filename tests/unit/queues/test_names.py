"""Names of models that nobody vouches for: they share one line, so that inventing names gains nothing and costs nothing."""

import re
from collections import Counter

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.keys import ANY_MODEL
from fairlane.queues.tasks import State, Submitted

ANY = ANY_MODEL


def any_pool(world: World, replica: str = "r1") -> Pool:
    """A replica with a worker that takes every model; nothing is configured."""
    pool = Pool(world, replica, set_up=False)
    pool.offer(ANY)
    return pool


def scheduled_as(pool: Pool, task_id: str) -> str:
    return pool.record(task_id)["model"]


def test_a_name_without_a_worker_shares_one_line_and_is_still_reported(world: World) -> None:
    pool = any_pool(world)
    answer = pool.submit("a", "never:heard/of é", want=1)
    assert isinstance(answer, Submitted)
    assert (answer.state, answer.line, answer.model) == (State.EXECUTING, ANY, "never:heard/of é")
    (grant,) = answer.grants
    assert (grant.model, grant.asked) == (ANY, "never:heard/of é")
    assert '"model":"never:heard\\/of é"' in grant.start, "the start event names what was asked for"
    record = drive(pool.scheduler.position("a"))
    assert record is not None
    assert record.model == "never:heard/of é"
    assert pool.slots(ANY) == {"a": 3000}
    audit(world, "a")


def test_a_name_that_a_worker_offers_or_that_is_configured_keeps_its_own_line(world: World) -> None:
    pool = any_pool(world)
    drive(pool.scheduler.configure({}, {"configured": {"concurrency": 3}}))
    pool.set_model("changed", concurrency=2)
    Pool(world, "r2", set_up=False).offer("offered")
    for name in ("configured", "changed", "offered", "invented"):
        pool.submit(name, name)
        assert scheduled_as(pool, name) == (ANY if name == "invented" else name)
        assert ("requested_model" in pool.record(name)) == (name == "invented"), "other records do not grow"
    audit(world, ("configured", "changed", "offered", "invented"))


def test_a_model_that_is_configured_no_longer_shares_the_line_from_then_on(world: World) -> None:
    pool = any_pool(world)
    drive(pool.scheduler.configure({}, {"x": {"concurrency": 3}}))
    drive(pool.scheduler.configure({}, {}))
    pool.submit("a", "x")
    assert scheduled_as(pool, "a") == ANY


def test_a_slot_of_a_worker_that_names_the_model_is_never_given_a_task_of_every_model(world: World) -> None:
    """Its offer may have lapsed, or not have come yet: the slot itself vouches for the name."""
    pool = any_pool(world)
    pool.submit("other", "invented")
    named = Pool(world, "r2", set_up=False)
    spec = named.spec("a", "x")
    reply = named.scheduler.submit(spec, 1, named.scheduler.nonce(), "w", named=True).result()
    answer = named.scheduler.parse_submit(reply)
    assert isinstance(answer, Submitted)
    assert [(grant.task_id, grant.model) for grant in answer.grants] == [("a", "x")]


def test_a_user_gets_no_more_with_invented_names_than_with_one_name(world: World) -> None:
    """Alice pays for weight 8 and asks for one model; mallory invents a name for each of his tasks."""
    shares = []
    for invents in (False, True):
        world.empty()
        pool = any_pool(world)
        drive(pool.scheduler.configure({"paid": {"weight": 8.0}, "free": {"weight": 1.0}}, {}))
        for n in range(60):
            pool.submit(f"m{n}", f"name{n}" if invents else "name", queue="free", user="mallory")
            pool.submit(f"a{n}", "real", queue="paid", user="alice")
        served = Counter(grant.user for _ in range(45) for grant in pool.take(ANY))
        shares.append(served["alice"])
    assert shares[0] == shares[1] == 40


def test_invented_names_leave_nothing_that_grows(world: World) -> None:
    pool = any_pool(world)
    for n in range(50):
        pool.submit(f"t{n}", f"invented{n}", user=f"u{n % 3}")
    grants = pool.take(ANY, want=50)
    assert len(grants) == 50
    for grant in grants:
        pool.finish(grant, want=1, models=[ANY])
    names = [key.decode() for key in world.call("KEYS", "*")]
    assert not [name for name in names if "invented" in name]
    assert world.call("ZRANGE", world.keys("models"), 0, -1) == [b"*"]
    assert world.call("ZRANGE", world.keys("offered"), 0, -1) == [b"*"]
    audit(world, [f"t{n}" for n in range(50)])


def test_the_shared_line_has_settings_of_its_own(world: World) -> None:
    pool = any_pool(world)
    drive(pool.scheduler.configure({}, {ANY: {"concurrency": 2}}))
    for n in range(4):
        pool.submit(f"t{n}", f"invented{n}")
    assert len(pool.take(ANY, want=4)) == 2
    pool.set_model(ANY, concurrency=3)
    assert len(pool.take(ANY, want=4)) == 1


def test_tasks_move_to_the_line_of_their_model_when_the_worker_of_every_model_has_left(world: World) -> None:
    pool = any_pool(world)
    for n in range(150):
        pool.submit(f"x{n}", "x", user=f"u{n % 7}")
    pool.submit("y", "y")
    pool.offer(withdrawn=[ANY])
    named = Pool(world, "r2", set_up=False)
    named.offer("x")
    ids = [*(f"x{n}" for n in range(150)), "y"]
    for _ in range(5):
        named.offer("x")
        named.pass_time(1000)
        audit(world, ids)
    assert {scheduled_as(pool, f"x{n}") for n in range(150)} == {"x"}
    assert (scheduled_as(pool, "y"), pool.state("y")) == (ANY, "queued"), "nobody offers it: it waits"
    assert all(grant.asked == grant.model == "x" for grant in named.take("x", want=64))


@pytest.mark.parametrize("wanted", ["invented", ANY])
def test_tasks_are_found_by_the_name_that_was_asked_for_and_by_the_shared_line(
    world: World, wanted: str
) -> None:
    pool = any_pool(world)
    pool.submit("a", "invented")
    pool.submit("b", "other" if wanted == "invented" else "another")
    found, _ = drive(pool.scheduler.search("recent", {"model": wanted}))
    assert [task for task, _ in found] == (["a"] if wanted == "invented" else ["b", "a"])


# ---- a provider that wants no request (429) ----------


def test_a_cooldown_of_one_name_does_not_hold_others_of_the_shared_line(world: World) -> None:
    pool = any_pool(world)
    pool.submit("a", "busy", user="mallory")
    (grant,) = pool.take(ANY)
    assert pool.requeue(grant, "declined", hold_ms=3000).outcome == "queued"
    pool.submit("b", "busy", user="bob")
    pool.submit("c", "fine", user="carol")
    answer = pool.submit("d", "busy", user="dave", want=1)
    assert isinstance(answer, Submitted)
    assert [g.task_id for g in answer.grants] == ["c"], "those that ask for the busy one stand aside"
    pool.finish(answer.grants[0])
    assert pool.take(ANY) == []
    assert {pool.state(task) for task in "abd"} == {"queued"}
    assert all(pool.place(task).position == 1 and 0 < pool.place(task).wait_ms <= 3000 for task in "abd")
    audit(world, "abcd")
    pool.pass_time(3000)
    assert sorted(pool.taken(ANY, want=4)) == ["a", "b", "d"]
    audit(world, "abcd")


def test_tasks_set_aside_count_among_those_of_their_user(world: World) -> None:
    pool = any_pool(world)
    pool.configure(max_length=4)
    let_in = []
    for n in range(8):
        answer = pool.submit(f"m{n}", "busy", user="mallory")
        if isinstance(answer, Submitted):
            let_in.append(f"m{n}")
        if n == 0:
            (grant,) = pool.take(ANY)
            pool.requeue(grant, "declined", hold_ms=60_000)
        else:
            pool.take(ANY)
    assert len(let_in) == 4, "as many as of one user whose tasks stand in line"
    assert isinstance(pool.submit("b", "other", user="bob"), Submitted)
    audit(world, [*let_in, "b"])


def test_a_429_for_a_named_model_starts_a_cooldown_of_that_model(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.requeue(grant, "declined", hold_ms=2000)
    pool.submit("b", user="other")
    assert pool.ask(want=2).retry_at == (("m", 2000),)


def offer_many(pool: Pool, count: int, hold_ms: int = 15_000) -> None:
    for at in range(0, count, 500):
        pool.offer(*(f"name-{number}" for number in range(at, min(at + 500, count))), hold_ms=hold_ms)


def calls(world: World, command: str) -> int:
    """How often the store has run a command, scripts' calls included."""
    found = re.search(rf"cmdstat_{command}:calls=(\d+)", world.call("INFO", "commandstats").decode())
    return int(found[1]) if found else 0


def test_names_without_workers_are_forgotten_a_thousand_in_each_pass(world: World) -> None:
    pool = Pool(world)
    offer_many(pool, 2500)
    world.advance(80_000)
    for left in (1501, 501, 0):
        world.advance(1000)
        pool.sweep()
        assert world.call("ZCARD", world.keys("offered")) == left


def test_after_a_gap_the_offers_of_many_names_move_in_portions(world: World) -> None:
    pool = Pool(world)
    pool.sweep()
    offer_many(pool, 4000)
    world.advance(20_000)
    passes, most, due = 0, 0, 0
    while due == 0:
        before = calls(world, "zadd")
        due, _ = pool.sweep()
        passes, most = passes + 1, max(most, calls(world, "zadd") - before)
    assert passes > 3
    assert most < 2000
    assert world.call("ZCOUNT", world.keys("offered"), world.now_ms, "+inf") == 4001
    for number in (0, 1234, 3999):
        assert isinstance(pool.submit(f"t{number}", f"name-{number}"), Submitted)


def test_the_pool_knows_so_many_names_and_takes_others_when_it_has_forgotten_some(world: World) -> None:
    pool = Pool(world)
    offer_many(pool, 20_100)
    known = world.keys("offered")
    assert world.call("ZCARD", known) == 20_000
    assert pool.scheduler.offer(["new", "name-0"], ["unknown"], 15_000, 0).result() == 1
    assert world.call("ZCARD", known) == 20_000
    assert isinstance(pool.submit("a", "name-0"), Submitted)
    world.advance(80_000)
    pool.sweep()
    assert pool.scheduler.offer(["new"], [], 15_000, 0).result() == 0
    assert isinstance(pool.submit("b", "new"), Submitted)
