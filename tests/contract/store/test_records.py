"""Every ended task leaves one usage record in the outbox, whatever ends it, and one announcement if webhooks get its end."""

from typing import Any

import pytest
from tests.contract.store.store import Store, last_stage, next_stage, price

MAX_TOKENS = 4_194_304


def only(store: Store) -> dict[str, Any]:
    (row,) = store.usage().values()
    return row


def test_a_task_that_ran_is_recorded_with_all_that_is_known_of_it(store: Store) -> None:
    store.offer("*")
    trace = "0123456789abcdef0123456789abcdef"
    store.submit(
        *("a", "gpt-x"),
        queue="paid",
        user="acme/ann",
        key="acme",
        task_type="openaiCompletion",
        traceparent=f"00-{trace}-0123456789abcdef-01",
        request_id="req-1",
    )
    begun = store.world.now_ms
    store.world.advance(300)
    (grant,) = store.take("*")
    store.renew(grant)
    store.world.advance(40)
    store.append(grant, 2)
    store.world.advance(60)
    store.finish(grant, 3, used=(70, 8, 50, 2, False))
    row = only(store)
    expected = {
        "task": "a",
        "state": "completed",
        "code": "",
        "key_id": "acme",
        "user_name": "acme/ann",
        "queue": "paid",
        "enqueued": begun,
        "granted": begun + 300,
        "first_output": begun + 340,
        "ended": begun + 400,
        "waited_ms": 300,
        "ran_ms": 100,
        "task_type": "openaiCompletion",
        "model": "gpt-x",
        "scheduled": "*",
        "worker": "w1",
        "attempts": 1,
        "tries": 1,
        "request": "req-1",
        "trace": trace,
        "input": 70,
        "output": 8,
        "cached": 50,
        "reasoning": 2,
        "estimated": False,
        "cost": None,
    }
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("used", "recorded"),
    [
        ((12, 3, -1, -1, True), (12, 3, None, None, True)),
        ((-1, -1), (None, None, None, None, False)),
        ((12, 3, 13, 4, False), (12, 3, 12, 3, False)),
        ((10**12, 5_000_000, 10**11, 7, False), (MAX_TOKENS, MAX_TOKENS, MAX_TOKENS, 7, False)),
        ((-1, -1, 5, 6, False), (None, None, 5, 6, False)),
    ],
)
def test_tokens_are_recorded_as_far_as_they_are_known_and_can_be(
    store: Store, used: tuple[int, ...], recorded: tuple[Any, ...]
) -> None:
    store.finish(store.run("a"), used=used)
    row = only(store)
    assert tuple(row[name] for name in ("input", "output", "cached", "reasoning", "estimated")) == recorded


def test_a_task_that_never_ran_is_recorded_too(store: Store) -> None:
    store.submit("a")
    store.world.advance(250)
    store.cancel("a")
    row = only(store)
    assert (row["state"], row["granted"], row["attempts"], row["worker"]) == ("cancelled", None, 0, "")
    assert (row["waited_ms"], row["ran_ms"]) == (250, 0)


def test_a_task_that_is_stopped_is_recorded_with_its_usage_until_then(store: Store) -> None:
    grant = store.run("a")
    store.append(grant, 2)
    store.cancel("a")
    assert store.usage() == {}, "its worker still runs it"
    ended = store.world.now_ms
    store.world.advance(500)
    assert store.finish(grant, used=(9, 40)).outcome == "late"
    row = only(store)
    assert (row["state"], row["ended"], row["input"], row["output"]) == ("cancelled", ended, 9, 40)


def test_a_rejected_task_leaves_no_record(store: Store) -> None:
    store.configure(max_length=1)
    store.accept("a")
    store.reject("b")
    store.reject("c", "nobody-offers-it")
    assert store.usage() == {}


# ---- webhooks ----------


@pytest.mark.feature("webhooks")
@pytest.mark.parametrize(
    "more", [{}, {"price": price(1, 1, 1, 1, 1)}, {"template": "t\n1\n"}, {"asked": "1"}]
)
def test_the_end_of_a_task_is_announced_if_it_asks_for_that_and_recorded_as_ever(
    store: Store, more: dict[str, str]
) -> None:
    for task, announced in (("told", True), ("quiet", False)):
        store.submit(task, user="acme/ann", key="acme", has_webhooks=announced, **more)
    for grant in store.take(want=2):
        store.finish(grant, used=(7, 8, 5, 2, False))
    assert store.announced() == [("told", "task.completed", "acme")]
    told, quiet = (store.usage()[name] for name in ("told", "quiet"))
    assert {**told, "task": "quiet"} == quiet


@pytest.mark.feature("webhooks")
def test_an_end_is_announced_once_its_slot_is_free(store: Store) -> None:
    grant = store.run("a", has_webhooks=True)
    store.cancel("a")
    assert store.announced() == []
    store.world.check()
    store.finish(grant)
    assert store.announced() == [("a", "task.cancelled", "")]


@pytest.mark.feature("webhooks", "chains")
@pytest.mark.parametrize(
    ("ends", "state"), [("well", "completed"), ("by a part", "failed"), ("by its client", "cancelled")]
)
@pytest.mark.parametrize("parts", [(), (b"0", b"1")])
def test_a_chain_is_announced_once_when_it_ends_and_its_stages_never(
    store: Store, parts: tuple[bytes, ...], ends: str, state: str
) -> None:
    store.start("c", has_webhooks=True)
    store.advance(store.take()[0], next_stage(1, parts=parts))
    grants = store.take(want=2)
    if ends == "by its client":
        store.cancel("c")
    for one in grants[:-1] if ends == "well" else grants:
        assert store.announced() == [] or ends == "by a part"
        store.advance(one) if ends == "well" else store.finish(one, state="failed")
    if ends == "well":
        store.advance(grants[-1], last_stage())
    assert store.announced() == [("c", f"task.{state}", "")]
