"""What the outbox is told of tasks that end: one entry each, whoever ends them, with what their ends say."""

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.tables import UsageRow
from fairlane.gateway.records.entries import MAX_TOKENS, read_announced, read_usage
from fairlane.gateway.webhooks.enqueue import End
from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import Rejection, State, Submitted


def rows(world: World) -> list[UsageRow]:
    """What is in the outbox."""
    entries = world.call("XRANGE", world.keys("outbox"), "-", "+")
    assert all(fields[0] == b"usage" for _, fields in entries)
    return [read_usage(fields[1], {"paid": "gold", "free": "tin"}.__getitem__) for _, fields in entries]


def only(world: World) -> UsageRow:
    (row,) = rows(world)
    return row


def test_a_task_that_ran_is_recorded_with_all_that_is_known_of_it(world: World) -> None:
    pool = Pool(world)
    pool.offer("*")
    trace = "0123456789abcdef0123456789abcdef"
    pool.submit(
        *("a", "gpt-x"),
        queue="paid",
        user="acme/ann",
        key="acme",
        task_type="openaiCompletion",
        traceparent=f"00-{trace}-0123456789abcdef-01",
        request_id="req-1",
    )
    begun = world.now_ms
    world.advance(300)
    (grant,) = pool.take("*")
    pool.renew(grant)
    world.advance(40)
    pool.append(grant, 2)
    world.advance(60)
    pool.finish(grant, 3, used=(70, 8, 50, 2, False))
    assert only(world) == UsageRow(
        task="a",
        ended=begun + 400,
        enqueued=begun,
        granted=begun + 300,
        first_output=begun + 340,
        state="completed",
        code="",
        key_id="acme",
        user_name="acme/ann",
        tier="gold",
        queue="paid",
        task_type="openaiCompletion",
        model="gpt-x",
        scheduled="*",
        worker="w1",
        attempts=1,
        tries=1,
        request="req-1",
        trace=trace,
        input=70,
        output=8,
        cached=50,
        reasoning=2,
        estimated=False,
        cost=None,
        price="",
        route="",
        template="",
        template_version="",
    )
    assert (only(world).waited_ms, only(world).ran_ms) == (300, 100)


def test_what_is_not_known_is_none_and_an_estimate_is_marked(world: World) -> None:
    pool = Pool(world)
    pool.finish(pool.run("a"), used=(12, 3, -1, -1, True))
    pool.finish(pool.run("b"), used=(-1, -1))
    a, b = rows(world)
    assert (a.input, a.output, a.cached, a.reasoning, a.estimated) == (12, 3, None, None, True)
    assert (b.input, b.output, b.cached, b.reasoning, b.estimated) == (None, None, None, None, False)
    assert (b.key_id, b.request, b.trace, b.first_output) == ("", "", "", None)


def test_a_worker_is_believed_no_more_tokens_than_can_be(world: World) -> None:
    pool = Pool(world)
    pool.finish(pool.run("a"), used=(12, 3, 13, 4, False))
    pool.finish(pool.run("b"), used=(10**12, 5_000_000, 10**11, 7, False))
    pool.finish(pool.run("c"), used=(-1, -1, 5, 6, False))
    a, b, c = rows(world)
    assert (a.input, a.output, a.cached, a.reasoning) == (12, 3, 12, 3)
    assert (b.input, b.output, b.cached, b.reasoning) == (MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, 7)
    assert (c.input, c.output, c.cached, c.reasoning) == (None, None, 5, 6)


def test_a_task_that_never_ran_is_recorded_too(world: World) -> None:
    pool = Pool(world)
    pool.submit("a")
    world.advance(250)
    pool.cancel("a")
    row = only(world)
    assert (row.state, row.granted, row.attempts, row.worker) == ("cancelled", None, 0, "")
    assert (row.waited_ms, row.ran_ms) == (250, 0)


def test_a_task_that_is_stopped_is_recorded_with_what_it_used_until_then(world: World) -> None:
    pool = Pool(world)
    grant = pool.run("a")
    pool.append(grant, 2)
    pool.cancel("a")
    assert rows(world) == [], "its worker goes on until it is told"
    ended = world.now_ms
    world.advance(500)
    assert pool.finish(grant, used=(9, 40)).outcome == "late"
    row = only(world)
    assert (row.state, row.ended, row.input, row.output) == ("cancelled", ended, 9, 40)


def test_a_rejected_task_leaves_no_record(world: World) -> None:
    pool = Pool(world)
    pool.configure(max_length=1)
    assert isinstance(pool.submit("a"), Submitted)
    assert isinstance(pool.submit("b"), Rejection)
    assert isinstance(pool.submit("c", "nobody-offers-it"), Rejection)
    assert rows(world) == []


def test_with_a_full_outbox_nothing_begins_and_everything_ends(world: World) -> None:
    world.limits = Limits(max_outbox=2)
    pool = Pool(world)
    grants = [pool.run(name) for name in "abcd"]
    for grant in grants[:2]:
        pool.finish(grant)
    assert pool.submit("e") == Rejection("outbox_full")
    for grant in grants[2:]:
        pool.finish(grant)
    assert [row.task for row in rows(world)] == ["a", "b", "c", "d"]
    outbox = world.keys("outbox")
    world.call("XGROUP", "CREATE", outbox, "sql", "0")
    world.call("XREADGROUP", "GROUP", "sql", "c", "COUNT", 3, "STREAMS", outbox, ">")
    ids = [entry[0] for entry in world.call("XRANGE", outbox, "-", "+", "COUNT", 3)]
    assert drive(pool.scheduler._link.run("confirm_recorded", "sql", *ids)) == 3  # type: ignore[arg-type]
    assert world.call("XPENDING", outbox, "sql")[0] == 0
    assert isinstance(pool.submit("e"), Submitted)


# ---- webhooks ----------


def announced(world: World) -> list[End]:
    entries = world.call("XRANGE", world.keys("outbox"), "-", "+")
    return [end for _, fields in entries if (end := read_announced(fields[1]))]


@pytest.mark.parametrize("more", [{}, {"price": "1 1 1 1 1"}, {"template": "t\n1\n"}, {"asked": "1"}])
def test_the_end_of_a_task_is_announced_where_it_is_asked_for_and_recorded_as_ever(
    world: World, more: dict[str, str]
) -> None:
    pool = Pool(world)
    pool.offer("*")
    pool.submit("told", "m", user="acme/ann", key="acme", has_webhooks=True, **more)
    pool.submit("quiet", "m", user="acme/ann", key="acme", **more)
    for grant in pool.take("*", want=2):
        pool.finish(grant, used=(7, 8, 5, 2, False))
    assert announced(world) == [End(Owner("acme", "acme/ann"), "task.completed", "told", world.now_ms)]
    told, quiet = (pool.recorded()[name] for name in ("told", "quiet"))
    assert told._replace(task="quiet") == quiet
    audit(world, ("told", "quiet"))


def test_an_end_is_announced_once_its_slot_is_free(world: World) -> None:
    pool = Pool(world)
    pool.offer("*")
    pool.submit("a", "m", has_webhooks=True)
    (grant,) = pool.take("*")
    pool.cancel("a")
    assert announced(world) == []
    audit(world, "a")
    pool.finish(grant)
    assert [(end.object_id, end.event) for end in announced(world)] == [("a", "task.cancelled")]
    audit(world, "a")


@pytest.mark.parametrize("ends", ["well", "by a part", "by its caller"])
@pytest.mark.parametrize("parts", [(), (b"0", b"1")])
def test_a_chain_is_announced_once_when_it_ends_and_its_stages_never(
    world: World, parts: tuple[bytes, ...], ends: str
) -> None:
    pool = Pool(world)
    pool.offer("m")
    pool.start("c", has_webhooks=True)
    (grant,) = pool.take()
    pool.advance(grant, pool.entry(1, parts=parts))
    assert announced(world) == []
    grants = pool.take(want=2)
    if ends == "by its caller":
        pool.cancel("c")
        assert announced(world) == []
        for one in grants:
            pool.finish(one, state=State.FAILED)
    elif ends == "by a part":
        for one in grants:
            pool.finish(one, state=State.FAILED)
    else:
        for one in grants[:-1]:
            pool.advance(one)
        assert announced(world) == []
        pool.advance(grants[-1], pool.end())
    (end,) = announced(world)
    assert (end.object_id, end.owner.key_id) == ("c", "")
    state = {"well": "completed", "by a part": "failed", "by its caller": "cancelled"}[ends]
    assert end.event == f"task.{state}"
    audit(world, "c")
