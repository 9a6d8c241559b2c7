"""Repair: an answer that does not match its schema is asked for again once, and both answers count."""

from typing import Any

import pytest
from tests.contract.store.store import MISMATCH, Grant, Store, Usage, fallbacks, price

pytestmark = pytest.mark.feature("repair")

PRICE = price(1_000_000, 500_000, 2_000_000, 1_000_000, 7)
AGAIN = b'{"again":1}'
REPAIRS: dict[str, Any] = {"repair": True, "answer": "object"}


def granted(store: Store, model: str = "m") -> Grant:
    (grant,) = store.take(model)
    return grant


def test_the_task_returns_to_its_place_with_another_payload_and_pays_for_both(store: Store) -> None:
    grant = store.run("a", estimated_input=100, **REPAIRS)
    assert (grant.repairs, grant.repaired) == (True, None)
    store.submit("behind", **REPAIRS)
    store.world.advance(500)
    assert store.repair(grant, AGAIN, (10, 5, 4, -1, True)).outcome == "queued"
    assert (store.payload("a"), store.charged()) == (AGAIN, 10 + 2 * 5)
    store.world.check()
    again = granted(store)
    assert (again.task_id, again.attempt, again.repairs) == ("a", 2, False)
    assert again.repaired == Usage(10, 5, 4, -1, True)
    assert '"repair":true' in again.start
    store.finish(again, seq=3, used=(30, 6, 3, 2, False))
    assert store.charged() == 20 + 30 + 2 * 6
    row = store.usage()["a"]
    names = ("input", "output", "cached", "reasoning", "estimated", "attempts", "tries")
    assert [row[name] for name in names] == [40, 11, 7, 2, True, 2, 0]


def test_it_costs_no_try(store: Store) -> None:
    grant = store.run("a", **REPAIRS)
    store.renew(grant)
    assert store.task("a").tries == 1
    store.repair(grant)
    assert store.task("a").tries == 0
    for number in range(3):
        outcome = store.requeue(granted(store), "failed", begun=True, end=MISMATCH).outcome
        assert outcome == ("queued" if number < 2 else "ended")


@pytest.mark.parametrize(
    ("why", "more", "code"),
    [
        ("no permission", {"repair": False}, "JSON_PARSE_FAILED"),
        ("output", {}, "JSON_PARSE_FAILED"),
        ("late", {"timeout_ms": 1000}, "TOTAL_TIMEOUT"),
        ("no worker", {"waiting": True}, "JSON_PARSE_FAILED"),
    ],
)
def test_no_repair(store: Store, why: str, more: dict[str, Any], code: str) -> None:
    grant = store.run("a", **{**REPAIRS, **more})
    if why == "output":
        store.append(grant, 2)
    if why == "late":
        store.world.advance(1000)
    if why == "no worker":
        store.offer(withdrawn=["m"])
    assert store.repair(grant, used=(10, 7)).outcome == "ended"
    assert store.end("a") == ("failed", code)
    assert store.usage()["a"]["output"] == 7


@pytest.mark.feature("archive")
@pytest.mark.parametrize("repaired", [False, True])
def test_the_archive_gets_the_original_request(store: Store, repaired: bool) -> None:
    grant = store.run("a", payload=b'{"first":1}', archive_ms=60_000, archive_request=True, **REPAIRS)
    if repaired:
        store.repair(grant, AGAIN)
        grant = granted(store)
    store.finish(grant, seq=2 + repaired)
    assert (store.request("a"), store.payload("a")) == (b'{"first":1}', None)


@pytest.mark.feature("credits")
@pytest.mark.parametrize(("runs", "used"), [(False, (10, 5)), (True, (30, 8))])
def test_usage_of_the_first_answer_is_recorded_whatever_ends_the_task(
    store: Store, runs: bool, used: tuple[int, int]
) -> None:
    grant = store.run("a", price=PRICE, **REPAIRS)
    store.renew(grant, output=5)
    store.repair(grant)
    again = granted(store) if runs else None
    store.cancel("a")
    if again:
        assert store.finish(again, seq=0, used=(20, 3)).outcome == "late"
    row = store.usage()["a"]
    assert (row["state"], row["input"], row["output"], row["cost"]) == ("cancelled", *used, 0)


@pytest.mark.feature("credits")
def test_both_answers_are_paid_and_the_reservation_covers_them(store: Store) -> None:
    store.sweep()
    store.fund(granted=1_000_000)
    paid: dict[str, Any] = {"user": "acme/ann", "price": PRICE, "quota": "k", "estimated_input": 100}
    grant = store.run("a", max_output=50, **paid, **REPAIRS)
    reserved = 7 + (2 * 100 + 50 + 512) + 2 * 2 * 50
    assert store.balance().reserved == reserved
    store.repair(grant, used=(100, 50))
    assert store.balance().reserved == reserved, "until it ends"
    store.finish(granted(store), seq=3, used=(160, 40))
    cost = 7 + 100 + 2 * 50 + 160 + 2 * 40
    assert (store.balance().balance, store.balance().reserved) == (1_000_000 - cost, 0)
    assert store.usage()["a"]["cost"] == cost


@pytest.mark.feature("credits")
@pytest.mark.feature("fallbacks")
@pytest.mark.parametrize(
    ("again_fails", "cost"), [(False, 10 + 2 * 5 + 40 * 10 + 10 + 1), (True, 40 * 10 + 10 + 1)]
)
def test_each_answer_is_paid_at_the_price_of_its_model_and_the_last_alone_if_the_second_failed(
    store: Store, again_fails: bool, cost: int
) -> None:
    store.offer("m", "b")
    dear = price(10_000_000, 0, 10_000_000, 0, 1)
    grant = store.run(
        "a", price=PRICE, fallbacks=fallbacks("b", prices=[dear]), fallback_after_ms=0, **REPAIRS
    )
    if not again_fails:
        store.offer(withdrawn=["m"])
    store.repair(grant, used=(10, 5))
    if again_fails:
        assert store.requeue(granted(store), "falls", begun=True, end=MISMATCH).outcome == "queued"
    other = granted(store, "b")
    assert (other.asked, other.repairs) == ("b", False)
    store.finish(other, seq=store.task("a").top + 1, used=(40, 1))
    assert store.usage()["a"]["cost"] == cost


@pytest.mark.feature("limits")
@pytest.mark.parametrize(("ends", "left"), [("finish", 6000), ("cancel", 8500)])
def test_limits_of_tokens_take_both_once(store: Store, ends: str, left: int) -> None:
    limits: dict[str, Any] = {"key_limits": {"tokens_per_minute": 10_000}}
    store.accept("a", user="acme", estimated_input=100, max_output=100, **limits, **REPAIRS)
    grant = granted(store)
    assert store.left("acme", **limits) == {"tokens_per_minute": 9800}
    for _ in range(2):
        store.repair(grant, used=(1000, 500))
    assert store.left("acme", **limits) == {"tokens_per_minute": 8300}, "and what the next answer may take"
    if ends == "finish":
        store.finish(granted(store), seq=3, used=(2000, 500))
    else:
        store.cancel("a")
    assert store.left("acme", **limits) == {"tokens_per_minute": left}
