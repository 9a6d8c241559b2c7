"""Which task runs next: weights of queues, equal users, priority, limits of a model, and workers of several models."""

from collections import Counter

import pytest
from tests.contract.store.store import ANY_MODEL, Grant, Store


@pytest.mark.parametrize(("weight", "share"), [(1.0, 1 / 2), (4.0, 4 / 5), (9.0, 9 / 10)])
def test_queues_of_a_model_share_it_by_weight(store: Store, weight: float, share: float) -> None:
    store.configure(unit="requests", max_length=500)
    store.set_queue("paid", weight=weight)
    for n in range(200):
        store.submit(f"p{n}", queue="paid", user="p")
        store.submit(f"f{n}", queue="free", user="f")
    served = Counter(grant.queue for _ in range(4) for grant in store.take(want=25))
    assert served["paid"] == pytest.approx(100 * share, abs=2)


def test_users_of_a_queue_share_it_equally_however_many_tasks_each_has(store: Store) -> None:
    store.configure(unit="requests", max_length=500)
    for n in range(90):
        store.submit(f"many{n}", user="many")
    for n in range(10):
        store.submit(f"few{n}", user="few")
    assert Counter(grant.user for grant in store.take(want=20)) == {"many": 10, "few": 10}


def test_a_user_whose_tasks_have_ended_returns_no_further_ahead_than_they_were(store: Store) -> None:
    """Refunds put a waiting user behind the virtual time. A user who was served more, but less than that, stays behind them."""
    for number in range(2):
        store.submit(f"refunded{number}", user="refunded", estimated_input=500, max_output=1)
    store.submit("served0", user="served", estimated_input=300, max_output=1)
    grants = store.take(want=3)
    for number in range(2, 5):
        store.submit(f"refunded{number}", user="refunded", estimated_input=100, max_output=1)
    for grant in grants:
        store.finish(grant, used=(300, 0) if grant.user == "served" else (0, 0))
    store.submit("served1", user="served", estimated_input=300, max_output=1)
    assert store.taken(want=4) == ["refunded2", "refunded3", "refunded4", "served1"]


def test_a_key_with_a_weight_gets_more(store: Store) -> None:
    store.configure(unit="requests", max_length=500)
    for n in range(60):
        store.submit(f"heavy{n}", user="heavy", weight=3.0)
        store.submit(f"plain{n}", user="plain")
    assert Counter(grant.user for grant in store.take(want=40)) == {"heavy": 30, "plain": 10}


def test_priority_is_bounded_to_five_steps_of_two_seconds(store: Store) -> None:
    store.submit("first")
    store.world.advance(9_999)
    store.submit("urgent", priority=1000)
    assert store.taken(want=2) == ["urgent", "first"]
    store.submit("second")
    store.world.advance(10_001)
    store.offer("m")
    store.submit("late", priority=1000)
    store.submit("negative", priority=-1000)
    assert store.taken(want=3) == ["second", "late", "negative"]


def test_slots_in_use_never_exceed_the_limit_of_a_model(store: Store) -> None:
    store.configure(2)
    for n in range(5):
        store.submit(f"t{n}")
    first = store.take(want=5)
    assert len(first) == 2
    assert store.take() == []
    assert store.finish(first[0], want=5).granted == ["t2"]
    store.configure(3)
    assert store.taken(want=5) == ["t3"]
    store.apply()
    assert store.taken(want=5) == ["t4"], "without configuration there is no limit"


@pytest.mark.parametrize("rule", [{"paused": True}, {"max_running": 1}])
def test_a_queue_that_may_start_nothing_is_passed_over_also_by_a_full_store(
    store: Store, rule: dict[str, bool | int]
) -> None:
    store.run("running", queue="free", user="a")
    store.set_queue("free", **rule)
    store.submit("stays", queue="free")
    store.submit("goes", queue="paid")
    with store.world.full():
        assert store.taken() == ["goes"]


def test_a_repeated_take_gives_the_same_grants_while_they_hold(store: Store) -> None:
    for name in "abc":
        store.submit(name)
    first = store.take(want=2, nonce="n")
    assert store.take(want=2, nonce="n") == first
    store.finish(first[0])
    assert store.take(want=2, nonce="n") == first[1:]


def test_a_worker_of_several_models_serves_the_least_recently_served_first(store: Store) -> None:
    store.offer("m", "m2", "m3")
    for n in range(3):
        store.submit(f"a{n}", "m")
        store.submit(f"b{n}", "m2")
    store.submit("c", "m3")
    order: list[str] = []
    for n in range(5):
        store.world.advance(1)
        order.append(store.take(*(("m", "m2") if n < 4 else (ANY_MODEL,)))[0].model)
    assert order in (["m", "m2", "m", "m2", "m3"], ["m2", "m", "m2", "m", "m3"])


@pytest.mark.parametrize("limit", ["timeout_ms", "wait_ms"])
def test_an_expired_task_is_not_granted(store: Store, limit: str) -> None:
    store.sweep()
    store.submit("late", **{limit: 1000})  # type: ignore[arg-type]
    store.submit("good")
    store.world.advance(1000)
    assert store.taken(want=2) == ["good"]
    store.world.check()
    store.sweep()
    assert store.state("late") == "failed"


@pytest.mark.parametrize("weight", [1e-9, 1e-3, 1e6])
def test_no_weight_breaks_a_grant_or_a_settlement(store: Store, weight: float) -> None:
    store.configure(1)
    names = [f"x{number:02}" for number in range(40)]
    for name in names:
        store.submit(name, user="u", weight=weight, estimated_input=1_000_000)
    for name in names:
        (grant,) = store.take()
        assert grant.task_id == name
        store.finish(grant, used=(1_000_000, 1_000_000))


# ---- limits per user of a model ----------


def test_a_user_at_the_limit_of_a_model_is_passed_over_and_returns_when_a_task_ends(store: Store) -> None:
    store.set_model(max_running_per_user=2)
    for task in "abcd":
        store.submit(task, user="u")
    store.submit("x", user="v")
    first = store.take(want=9)
    assert [grant.task_id for grant in first] == ["a", "x", "b"]
    store.finish(first[0])
    assert store.taken(want=9) == ["c"]


def test_the_limit_per_user_counts_over_all_queues_of_a_model_and_for_each_model_alone(store: Store) -> None:
    store.offer("m", "m2")
    for model in ("m", "m2"):
        store.set_model(model, max_running_per_user=1)
        for queue in ("free", "paid"):
            store.submit(f"{queue}-{model}", model, queue=queue)
            store.submit(f"{queue}-{model}-2", model, queue=queue)
    grants = store.take("m", "m2", want=9)
    assert sorted(grant.model for grant in grants) == ["m", "m2"]
    store.finish(next(grant for grant in grants if grant.model == "m"))
    assert [grant.model for grant in store.take("m", "m2", want=9)] == ["m"]


@pytest.mark.parametrize(("limit", "then"), [(3, 2), (2, 1), (None, 3)])
def test_a_limit_per_user_that_is_raised_or_removed_lets_parked_users_start(
    store: Store, limit: int | None, then: int
) -> None:
    store.set_model(max_running_per_user=1)
    for task in "abcd":
        store.submit(task)
    assert store.taken(want=9) == ["a"]
    store.set_model(max_running_per_user=limit)
    assert len(store.take(want=9)) == then


def test_a_task_of_a_parked_user_waits_its_time_and_no_longer(store: Store) -> None:
    store.set_model(max_running_per_user=1)
    grant = store.run("a")
    store.submit("b", wait_ms=2000)
    assert store.take() == []
    store.renew(grant)
    store.sweep()
    store.pass_time(2000)
    assert store.end("b") == ("failed", "QUEUE_TIMEOUT")


def test_many_parked_users_do_not_stop_others(store: Store) -> None:
    """There are more than one step looks at."""
    store.configure(max_length=5000)
    store.set_model(max_running_per_user=1)
    for turn in "ab":
        for n in range(1100):
            store.submit(f"{turn}{n}", user=f"u{n:04d}")
        if turn == "a":
            assert sum(len(store.take(want=64)) for _ in range(18)) == 1100
    store.submit("last", user="z")
    assert store.taken() + store.taken() == ["last"]


def test_a_user_may_have_a_number_of_waiting_tasks_of_a_model(store: Store) -> None:
    store.set_model(max_waiting_per_user=2)
    store.submit("a", queue="free")
    store.submit("b", queue="paid")
    answer = store.reject("c", queue="free")
    assert (answer.reason, answer.waiting, answer.limit) == ("user_full", 2, 2)
    assert answer.retry_ms > 0
    store.accept("d", user="v")
    store.take()
    store.accept("e", queue="free")


# ---- workers of several models ----------

Work = dict[str, tuple[int, int]]
"""Model -> waiting users, ms that a task runs."""


class Shared:
    """Workers over a pool with backlogged models."""

    def __init__(self, store: Store, work: Work) -> None:
        self.store, self.work, self.number = store, work, 0
        store.configure(max_length=100_000)
        store.offer(*work, "m")

    def fill(self, model: str, each: int) -> None:
        """Submit so many tasks of every user of a model."""
        for n in range(each):
            for user in range(self.work[model][0]):
                self.number += 1
                self.store.submit(f"{model}-{n}-{user}-{self.number}", model, user=f"u{user}")

    def serve(self, number: int, models: tuple[str, ...] = ()) -> dict[str, float]:
        """Let one worker run so many tasks. Return the share of its time of each model."""
        time = dict.fromkeys(self.work, 0.0)
        serves = models or tuple(self.work)
        grants = self.store.take(*serves)
        for _ in range(number):
            (grant,) = grants
            ms = self.work[grant.model][1]
            time[grant.model] += ms
            self.store.world.advance(ms)
            if self.store.world.now_ms % 10_000 < ms:
                self.store.offer(*self.work)
            grants = self.store.finish(grant, want=1, models=serves).grants
        if grants:
            self.store.requeue(grants[0], "declined")
        return {model: ms / sum(time.values()) for model, ms in time.items()}


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize(
    ("work", "shares"),
    [
        ({"a": (3, 100), "b": (1, 100)}, {"a": 3 / 4, "b": 1 / 4}),
        ({"a": (1, 400), "b": (4, 100)}, {"a": 1 / 5, "b": 4 / 5}),
        ({"a": (2, 100), "b": (1, 300), "c": (1, 50)}, {"a": 1 / 2, "b": 1 / 4, "c": 1 / 4}),
    ],
)
def test_time_goes_to_models_by_their_waiting_users(
    store: Store, work: Work, shares: dict[str, float], wild: bool
) -> None:
    shared = Shared(store, work)
    if wild:
        store.offer(ANY_MODEL)
    for model, (users, _) in work.items():
        shared.fill(model, 240 // users)
    serves = (ANY_MODEL,) if wild else ()
    shared.serve(30, serves)
    got = shared.serve(200, serves)
    for model, share in shares.items():
        assert got[model] == pytest.approx(share, abs=0.06)


def test_a_model_that_was_idle_gets_its_share_and_no_more(store: Store) -> None:
    shared = Shared(store, {"a": (1, 100), "b": (1, 100)})
    shared.fill("a", 300)
    shared.serve(100)
    shared.fill("b", 100)
    assert shared.serve(60)["b"] == pytest.approx(1 / 2, abs=0.05)


@pytest.mark.parametrize("why", [{"paused": True}, {"requests_per_minute": 1}, {"concurrency": 1}])
def test_a_model_that_could_not_start_saves_no_turns(store: Store, why: dict[str, int | bool]) -> None:
    shared = Shared(store, {"a": (1, 100), "b": (1, 100)})
    shared.fill("a", 300)
    shared.fill("b", 300)
    shared.serve(10)
    store.set_model("b", **why)
    held: list[Grant] = store.take("b")
    assert shared.serve(80)["a"] > 0.95
    for grant in held:
        store.requeue(grant, "declined")
    store.set_model("b", **dict.fromkeys(why))
    assert shared.serve(60)["b"] == pytest.approx(1 / 2, abs=0.1)


def test_time_from_other_workers_does_not_count_against_a_model_for_ever(store: Store) -> None:
    """`b` had an hour of workers shared with `c`; where `a` is, it waits for ten minutes of work at most."""
    shared = Shared(store, {"a": (1, 10_000), "b": (1, 10_000), "c": (1, 10_000)})
    shared.fill("a", 300)
    shared.serve(10, ("a", "b"))
    shared.fill("b", 600)
    shared.serve(360, ("b", "c"))
    assert shared.serve(62, ("a", "b"))["b"] < 0.05
    assert shared.serve(60, ("a", "b"))["b"] == pytest.approx(1 / 2, abs=0.1)
