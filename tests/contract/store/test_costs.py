"""Cost of a task: an estimate at the grant, more while it runs, the rest at its end; each once. And the load of a model."""

import pytest
from tests.contract.store.store import Store

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("size", "most", "cost"), [(0, 0, 512), (100, 50, 200), (100, 100_000, 100 + 2 * 256), (0, 10, 20)]
)
def test_before_anything_is_known_a_task_pays_for_256_tokens_or_its_maximum(
    store: Store, size: int, most: int, cost: int
) -> None:
    store.run("a", estimated_input=size, max_output=most)
    assert store.charged() == cost


@pytest.mark.parametrize(("most", "ms"), [(0, 5120), (500, 10_000), (100_000, 81_920)])
def test_slot_seconds_are_estimated_from_the_output_until_some_are_known(
    store: Store, most: int, ms: int
) -> None:
    store.configure(unit="slot_seconds")
    store.run("a", max_output=most)
    assert store.charged() == ms


def test_slot_seconds_are_settled_by_the_time_of_the_slot(store: Store) -> None:
    store.configure(unit="slot_seconds")
    grant = store.run("a")
    store.world.advance(2345)
    store.finish(grant, used=(-1, -1))
    assert store.charged() == 2345
    store.run("b")
    assert store.charged() == 2 * 2345, "the next is expected to take as long"


@pytest.mark.parametrize("how", ["failed", "late finish", "stop over", "after output"])
def test_slot_seconds_are_paid_however_the_task_ends(store: Store, how: str) -> None:
    store.configure(unit="slot_seconds")
    grant = store.run("a")
    if how == "after output":
        store.append(grant, 2)
    if how in ("late finish", "stop over"):
        store.cancel("a")
    store.sweep()
    store.pass_time(2000)
    match how:
        case "failed" | "late finish":
            store.finish(grant, state="failed", used=(-1, -1))
        case "after output":
            store.requeue(grant)
        case _:
            store.pass_time(58_000)
    assert store.charged() == (60_000 if how == "stop over" else 2000)


def test_a_stream_pays_while_it_runs_for_tokens_beyond_its_estimate(store: Store) -> None:
    grant = store.run("a", estimated_input=100, max_output=50)
    store.renew(grant, output=40)
    assert store.charged() == 200, "nothing beyond the estimate yet"
    cost = 100 + 2 * (500 + 128)
    for output in (500, 500, 300, -1):
        store.renew(grant, output=output)
        assert store.charged() == cost, "half as far ahead, as it was wrong, and once"


def test_absurd_usage_is_cut(store: Store) -> None:
    grant = store.run("a")
    store.renew(grant, output=10**15)
    assert store.charged() == 2 * 4_194_304
    store.finish(grant, used=(10**15, 10**15))
    assert store.charged() == 3 * 4_194_304


@pytest.mark.parametrize("known", [False, True], ids=["cold model", "new user"])
def test_a_user_who_comes_while_a_new_user_floods_a_model_waits_for_few_of_its_tasks(
    store: Store, known: bool
) -> None:
    """Short answers, charged before anything is known of them. The difference returns to their user at their ends, but not ahead
    of a user who has come in the meantime."""
    store.configure(16)
    if known:
        grant = store.run("first", user="other")
        store.world.advance(10)
        store.finish(grant, used=(10, 10))
    for number in range(900):
        store.submit(f"flood{number}", user="flood", estimated_input=10)
    running = store.take(want=16)

    def end_one() -> None:
        store.world.advance(100)
        running.extend(store.finish(running.pop(0), used=(10, 2), want=1).grants)

    for _ in range(16):
        end_one()
    store.submit("late", user="late", estimated_input=10)
    before = 0
    while running[-1].user == "flood":
        end_one()
        before += 1
    assert before <= 64


# ---- the load of a model ----------


def flowing(store: Store, number: int) -> None:
    """So many tasks leave a lane one second after the other while others wait; the last one runs."""
    store.configure(1)
    store.offer("m", hold_ms=HOUR_MS)
    running = store.run("f0")
    for i in range(1, number):
        store.submit(f"f{i}")
        store.world.advance(1000)
        (running,) = store.finish(running, want=1).grants


def test_a_model_without_waiting_tasks_has_no_wait(store: Store) -> None:
    assert store.load("nobody") == ("no_worker", 0)
    flowing(store, 10)
    assert store.load() == ("", 0)


def test_the_wait_of_a_model_is_its_backlog_at_the_measured_pace(store: Store) -> None:
    flowing(store, 40)
    for i in range(20):
        store.submit(f"w{i}")
    stopped, wait_ms = store.load()
    assert (stopped, wait_ms) == ("", pytest.approx(20_000, rel=0.05))
    store.world.advance(15_000)
    assert (store.load()[1] or 0) > 25_000, "nothing has left since"
    store.set_queue("free", paused=True)
    assert store.load()[1] == 0, "a lane that may start nothing makes no newcomer wait"


def test_the_wait_is_unknown_before_anything_has_completed(store: Store) -> None:
    store.configure(1)
    store.run("r")
    store.submit("w")
    assert store.load() == ("", None)


@pytest.mark.parametrize(
    "stopped",
    [
        "paused",
        pytest.param("cooldown", marks=pytest.mark.feature("pacing")),
        "no_worker",
        pytest.param("throttled", marks=pytest.mark.feature("pacing")),
    ],
)
def test_a_model_that_starts_nothing_has_a_reason(store: Store, stopped: str) -> None:
    store.configure(1)
    grant = store.run("a")
    match stopped:
        case "paused":
            store.set_model(paused=True)
        case "cooldown":
            store.requeue(grant, "declined", hold_ms=5000)
        case "throttled":
            store.finish(grant)
            store.set_model(requests_per_minute=1)
            store.run("b")
        case _:
            store.offer(withdrawn=["m"])
    assert store.load()[0] == stopped
