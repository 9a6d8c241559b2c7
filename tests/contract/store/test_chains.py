"""Chains: stages that run one after the other under one task id, in place or as parts side by side."""

from typing import Any

import pytest
from tests.contract.store.store import (
    Accepted,
    Grant,
    Rejected,
    StageOf,
    Store,
    Usage,
    fallbacks,
    last_stage,
    next_stage,
    part_of,
)

from fairlane.queues.replies import decode_map

pytestmark = pytest.mark.feature("chains")

MAX_BYTES = 16 * 1024 * 1024
PARTS = (b"p0", b"p1", b"p2")


@pytest.fixture(autouse=True)
def second_model(store: Store) -> None:
    store.offer("n")


def test_stages_run_one_after_the_other_in_the_lines_of_their_models(store: Store) -> None:
    assert isinstance(store.start("c", payload=b"one"), Accepted)
    (grant,) = store.take("m")
    assert grant.stage == StageOf("c", 0, "first", -1)
    assert '"stage":"first","index":1' in grant.start
    stage = next_stage(1, "n", payload=b"two")
    answer = store.advance(grant, stage, result=b"1", chunks=[b"{}"], told=[b"a", b"b"], used=(5, 2))
    assert (answer.outcome, answer.model, answer.event_id) == ("moved", "n", grant.id(3))
    store.world.check()
    assert (store.state("c"), store.payload("c")) == ("queued", b"two")
    assert store.events("c") == ["1.1 start", "1.2 chunk", "1.3 stage", "1.4 stage"]
    assert store.take("m") == []
    (second,) = store.take("n")
    assert (second.stage, second.attempt, second.start_seq) == (StageOf("c", 1, "stage1", -1), 2, 5)
    known = store.chain("c")
    assert known is not None
    assert (known.stage, known.of, known.plan) == ((1, "stage1"), 3, b"a plan")
    assert (known.results, known.used) == ({(0, -1): b"1"}, {(0, -1): Usage(5, 2)})
    answer = store.advance(second, last_stage(), 6, result=b"22", told=[b"c"], used=(7, 3, 1, 1, True))
    assert (answer.outcome, answer.event_id) == ("ended", second.id(6))
    assert store.kinds("c")[-2:] == ["stage", "done"]
    known = store.chain("c", contents=False)
    assert known is not None
    assert (known.state, known.plan, known.results) == ("completed", b"", {(0, -1): b"", (1, -1): b""})
    assert known.used[1, -1] == Usage(7, 3, 1, 1, True)
    names = ("chain", "stage", "stage_name", "part", "model", "state", "input", "attempts")
    assert {task: tuple(row[name] for name in names) for task, row in store.usage().items()} == {
        "c.0": ("c", 0, "first", None, "m", "completed", 5, 1),
        "c.1": ("c", 1, "stage1", None, "n", "completed", 7, 1),
    }


def test_a_repeated_step_is_answered_as_before_and_an_older_one_is_stale(store: Store) -> None:
    store.start("c", payload=b"one")
    store.submit("other")
    (grant,) = store.take()

    def step(nonce: str, **more: Any) -> Any:
        return store.advance(grant, next_stage(1, "n"), told=[b"x"], nonce=nonce, **more)

    first, again = step("once", want=1), step("once", want=1)
    assert first.granted == ["other"]
    assert (again.outcome, again.event_id, again.model, again.grants) == (
        "moved",
        first.event_id,
        "n",
        first.grants,
    )
    assert step("another").outcome == store.finish(grant).outcome == store.requeue(grant).outcome == "stale"
    (second,) = store.take("n")
    assert step("once").outcome == "moved"
    assert store.advance(second, next_stage(2, "n"), 4, nonce="twice").outcome == "moved"
    assert step("once").outcome == "stale"
    (third,) = store.take("n")
    ended = store.advance(third, last_stage(), 5, told=[b"y"], nonce="thrice")
    assert store.advance(third, last_stage(), 5, told=[b"y"], nonce="thrice").event_id == ended.event_id
    assert store.advance(third, last_stage(), 5, nonce="other").outcome == "late"


def test_nothing_happens_without_a_next_stage_or_with_a_hole_in_the_log_or_beyond_the_size(
    store: Store,
) -> None:
    store.start("c", request=b"q" * (MAX_BYTES // 2), archive_ms=1000, archive_request=True)
    (grant,) = store.take()
    before = store.world.contents()
    assert store.advance(grant).outcome == "next"
    answer = store.advance(grant, next_stage(1), 4)
    assert (answer.outcome, answer.top) == ("hole", 1)
    assert store.advance(grant, next_stage(1), result=b"x" * (MAX_BYTES - 5)).outcome == "too_large"
    assert store.world.contents() == before
    assert store.advance(grant, next_stage(1), result=b"x" * (MAX_BYTES - 6)).outcome == "moved"
    store.world.check()
    assert store.cancel("c").outcome == "ended"
    assert store.stored_bytes() == 0


def test_a_chain_keeps_the_age_of_its_submission_in_its_users_line(store: Store) -> None:
    store.start("c")
    (grant,) = store.take()
    store.world.advance(1000)
    store.submit("later", "n")
    store.submit("urgent", "n", priority=5)
    store.advance(grant, next_stage(1, "n"))
    assert store.place("c").position == 2
    assert store.taken("n", want=3) == ["urgent", "c", "later"]


def test_the_next_stage_may_take_the_freed_slot_immediately(store: Store) -> None:
    store.start("c")
    answer = store.advance(store.take()[0], next_stage(1), want=1)
    assert [(one.task_id, one.attempt) for one in answer.grants] == [("c", 2)]


def test_each_stage_has_its_own_tries_limits_and_output(store: Store) -> None:
    store.start("c", run_ms=60_000)
    for _ in range(2):
        assert store.requeue(store.take()[0], "failed", begun=True).outcome == "queued"
    (grant,) = store.take()
    store.append(grant, 4, b"{}")
    assert store.payload("c") is None
    store.advance(grant, next_stage(1, "n", run_ms=5000, payload=b"two"), 5, chunks=[b"{}"])
    assert (store.task("c").tries, store.task("c").history, store.payload("c")) == (0, [], b"two")
    for left in (2, 1, 0):
        (grant,) = store.take("n")
        assert grant.left_ms == 5000
        ended = store.requeue(grant, "failed", begun=True)
        assert ended.outcome == ("queued" if left else "ended")
        store.world.check()
    assert b'"failedStage":"stage1"' in ended.data
    rows = store.usage().values()
    assert [(row["state"], row["attempts"], row["tries"]) for row in rows] == [
        ("completed", 3, 2),
        ("failed", 3, 3),
    ]


def test_output_of_a_stage_ends_its_retries_and_with_them_the_chain(store: Store) -> None:
    store.start("c")
    store.advance(store.take()[0], next_stage(1))
    (grant,) = store.take()
    store.append(grant, 3, b"{}")
    ended = store.requeue(grant, "lost")
    assert (ended.outcome, ended.kind, b'"failedStage":"stage1"' in ended.data) == ("ended", "error", True)
    assert store.end("c") == ("failed", "WORKER_LOST")


@pytest.mark.parametrize("running", [False, True])
def test_a_chain_is_cancelled_in_any_stage(store: Store, running: bool) -> None:
    store.start("c")
    store.advance(store.take()[0], next_stage(1, "n"))
    held = store.take("n") if running else []
    assert store.cancel("c").outcome == "ended"
    store.world.check()
    for grant in held:
        assert store.advance(grant, next_stage(2), 3).outcome == "late"
    assert [row["state"] for row in store.usage().values()] == ["completed", "cancelled"]
    assert store.slots("n") == {}


def test_a_stage_that_cannot_begin_ends_the_chain_and_is_recorded(store: Store) -> None:
    store.start("c")
    end = last_stage("failed", "X", blamed=(2, "match"), model="n", queue="paid")
    assert store.advance(store.take()[0], end, told=[b"s"]).outcome == "ended"
    names = ("state", "code", "model", "queue", "attempts")
    assert {task: tuple(row[name] for name in names) for task, row in store.usage().items()} == {
        "c.0": ("completed", "", "m", "free", 1),
        "c.2": ("failed", "X", "n", "paid", 0),
    }


@pytest.mark.feature("fallbacks")
def test_a_stage_without_workers_waits_in_an_async_chain_and_ends_a_sync_one(store: Store) -> None:
    store.start("c")
    store.start("d", waiting=True)
    first, second = store.take(want=2)
    assert store.advance(first, next_stage(1, "nobody's")).outcome == "moved"
    assert store.advance(second, next_stage(1, "nobody's")).outcome == "no_worker"
    other = next_stage(1, "nobody's", fallbacks=fallbacks("n"), fallback_after_ms=0, asked="a route")
    answer = store.advance(second, other)
    assert (answer.outcome, answer.model) == ("moved", "n")
    assert store.taken("n") == ["d"]
    store.offer("nobody's")
    assert store.taken("nobody's") == ["c"]


@pytest.mark.feature("fallbacks")
def test_a_stage_may_fall_back_to_another_model_by_its_own_route(store: Store) -> None:
    store.start("c", fallbacks=fallbacks("m2"), asked="a")
    store.advance(store.take()[0], next_stage(1, "m", fallbacks=fallbacks("n"), asked="b"))
    assert store.requeue(store.take()[0], "falls", begun=True, why="X").outcome == "queued"
    assert store.task("c").moves == [("m", "X")]
    store.advance(store.take("n")[0], next_stage(2), 4)
    assert (store.task("c").moves, store.task("c").fallbacks) == ([], [])
    assert [row["route"] for row in store.usage().values()] == ["a", "b"]


@pytest.mark.parametrize(
    ("limits", "later", "passes", "code"),
    [
        ({"wait_ms": 5000}, {"wait_ms": 3000}, 3100, "QUEUE_TIMEOUT"),
        ({"timeout_ms": 8000}, {}, 4100, "TOTAL_TIMEOUT"),
    ],
)
def test_each_stage_waits_for_as_long_as_it_may_and_the_total_deadline_is_the_chains(
    store: Store, limits: dict[str, int], later: dict[str, int], passes: int, code: str
) -> None:
    store.start("c", **limits)
    (grant,) = store.take()
    store.world.advance(4000)
    store.renew(grant)
    store.sweep()
    store.advance(grant, next_stage(1, "n", **later))
    store.pass_time(passes - 200)
    assert store.state("c") == "queued"
    store.pass_time(200)
    assert store.end("c") == ("failed", code)


def test_bodies_and_results_are_counted_until_the_end(store: Store) -> None:
    bodies: dict[str, Any] = {"payload": b"x" * 20_000, "head": b"h" * 10, "request": b"q" * 30_000}
    store.start("c", **bodies, archive_ms=1000, archive_request=True)
    store.world.check()
    store.advance(store.take()[0], next_stage(1, "n", payload=b"y" * 17_000), result=b"r" * 50_000)
    store.world.check()
    (grant,) = store.take("n")
    store.append(grant, 3, b"{}")
    store.world.check()
    store.advance(grant, last_stage(), 4)
    assert (store.request("c"), store.stored_bytes()) == (b"q" * 30_000, 0)


# ---- parts ----------


def begun(store: Store, want: int = 3, **more: Any) -> list[Grant]:
    """A chain whose first stage has three parts, of which so many run."""
    store.start("c", parts=PARTS, **more)
    return store.take("m", want=want)


def test_parts_run_side_by_side_and_the_last_one_takes_the_chain_on(store: Store) -> None:
    store.start("c", parts=PARTS)
    assert (store.state("c"), store.place("c").position) == ("queued", 1)
    grants = store.take("m", want=2)
    assert [grant.stage for grant in grants] == [StageOf("c", 0, "first", part) for part in (0, 1)]
    assert store.payload(grants[1].task_id) == b"p1"
    assert store.advance(grants[1], result=b"r1").outcome == "waits"
    assert store.advance(grants[0], next_stage(1), result=b"r0", told=[b"x"]).outcome == "waits"
    (last,) = store.take("m", want=3)
    known = store.chain("c")
    assert known is not None
    assert (known.parts, known.begun, known.done, known.results) == (3, 3, 2, {(0, 0): b"r0", (0, 1): b"r1"})
    before = store.world.contents()
    assert store.advance(last, result=b"r2").outcome == "next"
    assert store.world.contents() == before
    answer = store.advance(last, next_stage(1, "n"), result=b"r2", chunks=[b"{}"], told=[b"x"])
    assert (answer.outcome, answer.event_id) == ("moved", store.last("c").id)
    assert store.events("c") == ["1.1 stage"], "parts have logs of their own"
    (grant,) = store.take("n")
    assert (grant.task_id, grant.attempt, grant.start_seq) == ("c", 1, 2)
    assert store.advance(grant, last_stage(), 3).outcome == "ended"
    assert {task: (row["part"], row["chain"]) for task, row in store.usage().items()} == {
        **{part_of("c", 0, part): (part, "c") for part in range(3)},
        "c.1": (None, "c"),
    }


def test_parts_may_be_kept_for_longer_than_their_chain_and_are_erased_with_it(store: Store) -> None:
    for user, chain in (("u", "a"), ("v", "b")):
        store.start(chain, parts=PARTS[:2], user=user, keep_ms=1000)
        first, second = store.take(want=2)
        store.advance(first)
        assert store.advance(second, last_stage()).outcome == "ended"
    store.pass_time(2000)
    assert store.delete("a")
    store.world.check()
    assert store.state(part_of("a", 0, 0)) == "completed"
    assert store.erase("u") == (2, 0)
    store.pass_time(61_000)
    assert not [name for name in store.world.names() if name.startswith("task:")]


def test_a_chain_may_go_from_its_stage_in_place_to_parts_and_end_with_them(store: Store) -> None:
    store.start("c")
    answer = store.advance(store.take()[0], next_stage(1, parts=PARTS[:2], payload=b""), want=1)
    assert answer.outcome == "moved"
    first, second = [*answer.grants, *store.take(want=3)]
    store.advance(first)
    ended = [store.advance(second, last_stage(), told=[b"x"], nonce="n") for _ in range(2)]
    assert [one.outcome for one in ended] == ["ended"] * 2
    assert ended[0].event_id == ended[1].event_id
    assert (store.kinds("c"), store.state("c")) == (["start", "stage", "done"], "completed")


def test_a_part_that_fails_for_good_ends_the_chain_and_the_other_parts(store: Store) -> None:
    store.start("c", parts=(*PARTS, b"p3"))
    grants = store.take(want=3)
    store.advance(grants[0])
    store.heard()
    assert store.finish(grants[1], state="failed", code="UPSTREAM_ERROR").outcome == "ok"
    assert ("stop", grants[2].task_id) in [message[:2] for message in store.heard()]
    assert store.end("c") == ("failed", "UPSTREAM_ERROR")
    store.world.check()
    assert [store.state(part_of("c", 0, part)) for part in range(4)] == [
        *("completed", "failed", "cancelled", "cancelled")
    ]
    assert len(store.slots()) == 1, "the other one is to stop"
    assert store.advance(grants[2]).outcome == "late"
    assert store.slots() == {}
    known = store.chain("c")
    assert known is not None
    assert set(known.results) == {(0, 0)}


def test_readers_of_a_chain_get_the_end_of_a_part(store: Store) -> None:
    grant, *_ = begun(store)
    while store.requeue(grant, "failed", begun=True).outcome == "queued":
        (grant,) = store.take(want=1)
    last = store.last("c")
    assert last.kind == "error"
    for text in (b'"taskId":"c"', b'"code":"WORKER_LOST"', b'"failedStage":"first"'):
        assert text in last.data


@pytest.mark.parametrize("run", [0, 2, 3])
def test_a_chain_is_cancelled_while_parts_wait_and_run(store: Store, run: int) -> None:
    grants = begun(store, run) if run else []
    if not run:
        store.start("c", parts=PARTS)
    for grant in grants[:1]:
        store.advance(grant)
    assert store.cancel("c").outcome == "ended"
    store.world.check()
    assert store.take(want=3) == []
    assert store.renew(*grants[1:]) == [2] * len(grants[1:])
    for grant in grants[1:]:
        assert store.finish(grant, state="cancelled").outcome == "late"
        store.world.check()
    assert store.cancel("c").outcome == "over"
    run = store.world.call("HGET", store.world.keys("task", id="c"), "run")
    assert {"kept_bytes", "expires_at"} <= decode_map(run).keys(), "the record knows where it is kept"


@pytest.mark.parametrize(
    ("limits", "code"), [({"timeout_ms": 5000}, "TOTAL_TIMEOUT"), ({"wait_ms": 3000}, "QUEUE_TIMEOUT")]
)
def test_the_chains_deadline_and_the_wait_of_parts(store: Store, limits: dict[str, int], code: str) -> None:
    grants = begun(store, 2, **limits)
    store.pass_time(2900)
    store.renew(*grants)
    store.pass_time(2200)
    assert store.end("c") == ("failed", code)
    store.world.check()
    store.pass_time(61_000)
    assert store.slots() == {}


@pytest.mark.feature("limits")
def test_parts_share_the_age_and_the_limits_of_their_chain(store: Store) -> None:
    limits = {"max_running": 2, "max_waiting": 1, "tokens_per_minute": 100_000}
    store.start("c", parts=PARTS, key_limits=limits)
    assert store.reject("other", key_limits=limits).reason == "rate_limited", "the chain waits, as one"
    grants = store.take(want=3)
    assert len(grants) == 2, "as many as may run"
    store.world.check()
    store.advance(grants[0], used=(100, 50))
    (third,) = store.take(want=3)
    store.advance(grants[1], used=(100, 50))
    store.advance(third, next_stage(1), used=(100, 50))
    store.advance(store.take()[0], last_stage(), used=(20, 10))
    assert store.left("u", key_limits=limits)["tokens_per_minute"] == 100_000 - 480


@pytest.mark.feature("limits")
@pytest.mark.parametrize("run", [False, True])
def test_what_a_cancelled_chain_was_charged_comes_back_if_nothing_had_begun(store: Store, run: bool) -> None:
    limits = {"requests_per_minute": 10, "tokens_per_minute": 100_000}
    full = store.left("u", key_limits=limits)
    store.start("c", parts=PARTS, key_limits=limits)
    charged = store.left("u", key_limits=limits)
    assert charged["requests_per_minute"] == 9
    assert charged["tokens_per_minute"] < 100_000
    if run:
        store.take()
    store.cancel("c")
    assert store.left("u", key_limits=limits) == {**full, "requests_per_minute": 9 if run else 10}


def test_a_queue_takes_the_parts_of_a_chain_together_or_not(store: Store) -> None:
    store.configure(max_length=4)
    store.start("a", parts=PARTS * 3)
    assert store.place("a").position == 1, "where nobody waits a chain has room, however many its parts"
    rejected = store.start("b", parts=PARTS, user="other")
    assert isinstance(rejected, Rejected)
    assert rejected.reason == "full"
    store.take(want=8)
    assert isinstance(store.start("c", parts=PARTS * 2), Rejected), "twice as many at most"
    assert isinstance(store.start("d", parts=PARTS), Accepted)


def test_a_part_cannot_be_finished_as_if_it_were_a_task(store: Store) -> None:
    grant, *_ = begun(store)
    with pytest.raises(Exception, match="completes by advance"):
        store.finish(grant)


def test_parts_of_one_user_leave_others_their_part_of_a_queue(store: Store) -> None:
    store.configure(max_length=100)
    store.offer("n")
    for number in range(4):
        store.start(f"c{number}")
        entry = next_stage(1, "n", parts=[b"p"] * 64, queue="paid")
        assert store.advance(store.take("m")[0], entry).outcome == "moved"
    store.reject("own", "n", queue="paid")
    answers = [store.submit(f"other{number}", "n", queue="paid", user="v") for number in range(50)]
    assert [isinstance(answer, Accepted) for answer in answers] == [True] * 33 + [False] * 17
