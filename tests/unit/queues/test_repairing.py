"""Answers that are asked for again: the task goes back once, with another payload, and both answers are counted."""

from typing import Any

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import MISMATCH, Pool

from fairlane.queues import metrics as counted
from fairlane.queues.credits import Funds
from fairlane.queues.limits import pack
from fairlane.queues.metrics import Recorder
from fairlane.queues.tasks import Grant, Repair, State, Submitted, Used

CREDIT = 1_000_000
PRICE = f"{CREDIT} {CREDIT // 2} {2 * CREDIT} {CREDIT} 7"
"""Micro-credits of a million tokens, as in test_paying."""
AGAIN = b'{"again":1}'
REPAIRS: dict[str, Any] = {"repair": True, "answer": "object"}


@pytest.fixture
def pool(world: World) -> Pool:
    return Pool(world)


def granted(pool: Pool, model: str = "m") -> Grant:
    (grant,) = pool.take(model)
    return grant


def test_the_task_goes_back_to_its_place_with_another_payload_and_pays_for_both(
    world: World, pool: Pool
) -> None:
    grant = pool.run("a", estimated_input=100, **REPAIRS)
    assert (grant.repairs, grant.repaired) == (True, None)
    pool.submit("behind", **REPAIRS)
    world.advance(500)
    assert pool.repair(grant, AGAIN, (10, 5, 4, -1, True)).outcome == "queued"
    assert pool.payload("a") == AGAIN
    assert pool.charged() == 10 + 2 * 5, "what its first answer used"
    audit(world, ["a", "behind"])
    again = granted(pool)
    assert (again.task_id, again.attempt, again.repairs) == ("a", 2, False)
    assert again.repaired == Used(10, 5, 4, -1, True)
    assert '"attempt":2' in again.start
    assert '"repair":true' in again.start
    assert int(pool.record("a")["input_tokens"]) == 100 + (len(AGAIN) - 2) // 4
    world.advance(500)
    pool.finish(again, seq=3, used=(30, 6, 3, 2, False))
    assert pool.charged() == 20 + 30 + 2 * 6
    row = pool.recorded()["a"]
    assert (row.input, row.output, row.cached, row.reasoning, row.estimated) == (40, 11, 7, 2, True)
    assert (row.attempts, row.tries) == (2, 0)
    audit(world, ["a", "behind"])


def test_it_costs_no_try(world: World, pool: Pool) -> None:
    grant = pool.run("a", **REPAIRS)
    pool.renew(grant)
    assert pool.record("a")["tries"] == "1"
    pool.repair(grant)
    assert pool.record("a")["tries"] == "0"
    for number in range(3):
        outcome = pool.requeue(granted(pool), "failed", begun=True, end=MISMATCH).outcome
        assert outcome == ("queued" if number < 2 else "ended")
    audit(world, ["a"])


def test_no_repair_without_permission_or_after_output_or_out_of_time_or_without_workers(
    world: World, pool: Pool
) -> None:
    plain = pool.run("plain", answer="object")
    assert pool.repair(plain).outcome == "ended"
    shown = pool.run("shown", **REPAIRS)
    pool.append(shown, 2)
    assert pool.repair(shown, used=(10, 7)).outcome == "ended"
    assert {pool.code("plain"), pool.code("shown")} == {"JSON_PARSE_FAILED"}
    late = pool.run("late", timeout_ms=1000, **REPAIRS)
    world.advance(1000)
    assert pool.repair(late).outcome == "ended"
    assert pool.code("late") == "TOTAL_TIMEOUT"
    alone = pool.run("alone", waiting=True, **REPAIRS)
    pool.offer(withdrawn=["m"])
    assert pool.repair(alone).outcome == "ended"
    assert pool.code("alone") == "JSON_PARSE_FAILED"
    rows = pool.recorded()
    assert (rows["plain"].input, rows["plain"].output, rows["shown"].output) == (10, 5, 7)
    audit(world, ["plain", "shown", "late", "alone"])


def test_the_archive_gets_the_request_as_it_came(world: World, pool: Pool) -> None:
    for task, payloads in (("a", [AGAIN]), ("b", [])):
        grant = pool.run(task, payload=b'{"first":1}', archive_ms=60_000, archive_request=True, **REPAIRS)
        for payload in payloads:
            pool.repair(grant, payload)
            grant = granted(pool)
        pool.finish(grant, seq=2 + len(payloads))
        assert drive(pool.scheduler.request(task)) == b'{"first":1}'
        assert pool.payload(task) is None
    audit(world, ["a", "b"])


@pytest.mark.parametrize("when", ["waits", "runs"])
def test_what_the_first_answer_used_is_recorded_whatever_ends_the_task(
    world: World, pool: Pool, when: str
) -> None:
    grant = pool.run("a", price=PRICE, **REPAIRS)
    pool.renew(grant, output=5)
    pool.repair(grant)
    if when == "runs":
        again = granted(pool)
    pool.cancel("a")
    if when == "runs":
        assert pool.finish(again, seq=0, used=(20, 3)).outcome == "late"
    row = pool.recorded()["a"]
    used = (10, 5) if when == "waits" else (30, 8)
    assert (row.state, row.input, row.output, row.cost) == ("cancelled", *used, 0)
    audit(world, ["a"])


def test_both_answers_are_paid_each_at_its_models_price_and_the_hold_covers_them(
    world: World, pool: Pool
) -> None:
    pool.sweep()
    drive(pool.scheduler.load_balance("k:acme", Funds(1_000_000, 1)))
    pool.offer("m", "b")

    def stands() -> tuple[int, int]:
        balance = drive(pool.scheduler.balance("k:acme"))
        return balance.balance, balance.held

    paid: dict[str, Any] = {"user": "acme/ann", "price": PRICE, "quota": "k", "estimated_input": 100}
    grant = pool.run("a", max_output=50, **paid, **REPAIRS)
    held = 7 + (2 * 100 + 50 + 512) + 2 * 2 * 50
    assert stands() == (1_000_000, held)
    pool.repair(grant, used=(100, 50))
    assert stands() == (1_000_000, held), "until it ends"
    pool.finish(granted(pool), seq=3, used=(160, 40))
    cost = 7 + 100 + 2 * 50 + 160 + 2 * 40
    assert stands() == (1_000_000 - cost, 0)
    assert pool.recorded()["a"].cost == cost
    dear = f"{10 * CREDIT} 0 {10 * CREDIT} 0 1"
    falls = {"fallbacks": f"b\t{dear}", "fallback_after_ms": 0}
    grant = pool.run("b", max_output=50, **paid, **REPAIRS, **falls)
    pool.offer(withdrawn=["m"])
    pool.repair(grant, used=(100, 50))
    again = granted(pool, "b")
    assert again.asked == "b"
    pool.finish(again, seq=3, used=(10, 1))
    assert pool.recorded()["b"].cost == 100 + 2 * 50 + 110 + 1
    audit(world, ["a", "b"])


def test_another_models_answer_is_paid_alone_where_the_second_one_failed_too(
    world: World, pool: Pool
) -> None:
    pool.offer("m", "b")
    grant = pool.run("a", price=PRICE, fallbacks=f"b\t{PRICE}", fallback_after_ms=0, **REPAIRS)
    pool.repair(grant)
    assert pool.requeue(granted(pool), "falls", begun=True, end=MISMATCH).outcome == "queued"
    other = granted(pool, "b")
    assert (other.asked, other.repairs, other.repaired) == ("b", False, None)
    pool.finish(other, seq=4, used=(40, 1))
    row = pool.recorded()["a"]
    assert (row.input, row.output, row.cost) == (40, 1, 7 + 40 + 2)
    audit(world, ["a"])


def test_limits_of_tokens_take_both_once(world: World, pool: Pool) -> None:
    limits = {"key_limits": pack({"tokens_per_minute": 10_000, "requests_per_minute": 10}), "user": "acme"}

    def left() -> list[int]:
        found = drive(pool.scheduler.allowance("acme", limits["key_limits"], ""))
        return sorted(one.remaining for one in found)

    assert isinstance(pool.submit("a", estimated_input=100, max_output=100, **limits, **REPAIRS), Submitted)
    grant = granted(pool)
    assert left() == [9, 9800]
    pool.repair(grant, used=(1000, 500))
    pool.repair(grant, used=(1000, 500))
    assert left() == [9, 8300], "and what the next answer may take"
    pool.finish(granted(pool), seq=3, used=(2000, 500))
    assert left() == [9, 6000]
    pool.submit("b", estimated_input=100, max_output=100, **limits, **REPAIRS)
    pool.repair(granted(pool), used=(1000, 500))
    pool.cancel("b")
    assert left() == [9, 4500], "the request comes back, and what the second answer might have taken"
    audit(world, ["a", "b"])


def test_it_is_counted_and_remembered(world: World, pool: Pool) -> None:
    metrics = pool.scheduler.metrics
    assert isinstance(metrics, Recorder)
    grant = pool.run("a", **REPAIRS)
    end = pool.requeue(grant, "repair", end=MISMATCH, repair=Repair(AGAIN, Used(1, 1)))
    assert end.outcome == "queued"
    assert metrics.values[counted.REPAIRS.name] == {("m", "begun"): 1}
    pool.finish(granted(pool), seq=3, state=State.FAILED, code="JSON_PARSE_FAILED")
    record = pool.record("a")
    assert record["repair"].startswith("2 1 1 ")
    assert record["history"].endswith("|gone")
