"""What chains are held and charged of a quota: one hold that may grow, one debit for all stages, and the rest back once."""

from typing import Any

import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.gateway.records.ledger import rows_of
from fairlane.queues.chains import Stage
from fairlane.queues.credits import Funds
from fairlane.queues.tasks import QuotaShortfall, Rejection, State, Submitted

CREDIT = 1_000_000
PRICE = f"{CREDIT} {CREDIT // 2} {2 * CREDIT} {CREDIT} 7"
"""As in test_paying: a token of input is one, of output two, and a task seven."""
DEAR = f"{10 * CREDIT} {CREDIT} {20 * CREDIT} {CREDIT} 70"
PAID: dict[str, Any] = {
    "user": "acme/ann",
    "price": PRICE,
    "quota": "k",
    "estimated_input": 100,
    "max_output": 50,
}
"""A stage that is held 7 + 100 + 2 * 50 = 207."""


class Account:
    """A pool, and what one key can pay with."""

    def __init__(self, world: World) -> None:
        self.world, self.pool = world, Pool(world)
        self.pool.sweep()
        self.fund(1000)

    def fund(self, granted: int, grants: int = 1, window: str = "", **more: Any) -> None:
        drive(self.pool.scheduler.load_balance("k:acme", Funds(granted, grants, **more), window))

    @property
    def stands(self) -> tuple[int, int]:
        """What is there, and what of it is held."""
        balance = drive(self.pool.scheduler.balance("k:acme"))
        return balance.balance, balance.held

    def costs(self) -> dict[str, int | None]:
        return {name: row.cost for name, row in self.pool.recorded().items()}


@pytest.fixture
def account(world: World) -> Account:
    return Account(world)


def test_all_stages_are_one_reservation_and_one_debit(account: Account) -> None:
    pool = account.pool
    assert isinstance(pool.start("c", reserve=300, **PAID), Submitted)
    assert account.stands == (1000, 507)
    audit(account.world, "c")
    (grant,) = pool.take()
    pool.advance(grant, pool.entry(1, **PAID), used=(80, 10))
    assert account.stands == (1000, 507), "107 are spent, and what is held is enough for the next one"
    audit(account.world, "c")
    (grant,) = pool.take()
    pool.advance(grant, pool.end(), 3, used=(90, 40))
    assert account.stands == (1000 - 107 - 177, 0)
    (charge,) = account.pool.charges()
    assert (charge.held, charge.charged) == (507, 284)
    audit(account.world, "c")


def test_the_reservation_grows_with_a_stage_that_may_cost_more(account: Account) -> None:
    pool = account.pool
    pool.start("c", **PAID)
    (grant,) = pool.take()
    pool.advance(grant, pool.entry(1, **PAID, reserve=50), used=(80, 10))
    assert account.stands == (1000, 107 + 207 + 50)
    (grant,) = pool.take()
    pool.advance(grant, pool.end(), 3, used=(90, 40))
    cost = 107 + 177
    assert account.stands == (1000 - cost, 0)
    (charge,) = account.pool.charges()
    assert (charge.task, charge.held, charge.charged, charge.price) == ("c", 364, cost, "")
    assert [(row.id, row.amount) for row in rows_of(charge)] == [("c", -cost)]
    assert account.costs() == {"c.0": 107, "c.1": 177}
    audit(account.world, "c")


def test_a_chain_that_cannot_pay_for_its_next_stage_is_rejected_and_pays_the_earlier_ones(
    account: Account,
) -> None:
    pool = account.pool
    pool.start("c", **PAID)
    (grant,) = pool.take()
    before = {name: value for name, (_, value) in account.world.save().items()}
    answer = pool.advance(grant, pool.entry(1, **{**PAID, "price": DEAR}), used=(80, 10))
    assert (answer.outcome, answer.needed, answer.available) == ("quota", 107 + 70 + 1000 + 1000, 1000)
    assert {name: value for name, (_, value) in account.world.save().items()} == before
    end = pool.end(State.FAILED, "INSUFFICIENT_QUOTA", stage=Stage(1, "next"))
    assert pool.advance(grant, end, used=(80, 10)).outcome == "ended"
    assert account.stands == (1000 - 107, 0)
    assert account.costs() == {"c.0": 107, "c.1": 0}
    assert len(account.pool.charges()) == 1
    audit(account.world, "c")


@pytest.mark.parametrize("ends", ["moved", "ended", "failed", "cancelled"])
def test_parts_share_one_reservation_and_each_pays_its_usage(account: Account, ends: str) -> None:
    pool = account.pool
    pool.start("c", parts=[b"0", b"1"], **PAID)
    assert account.stands == (1000, 2 * (7 + 10 + 100)), "by the parts' own input"
    audit(account.world, "c")
    first, second = pool.take(want=2)
    pool.advance(first, used=(10, 5))
    pool.append(second, 2, b"{}")
    if ends == "moved":
        pool.advance(second, pool.entry(1, **PAID), 3, used=(11, 6))
        audit(account.world, "c")
        (grant,) = pool.take()
        pool.finish(grant, state=State.FAILED, used=(90, 40))
    elif ends == "ended":
        pool.advance(second, pool.end(), 3, used=(11, 6))
    elif ends == "failed":
        pool.finish(second, 3, state=State.FAILED, used=(11, 6))
    else:
        pool.cancel("c")
        assert account.pool.charges() == []
        assert account.stands == (1000, 234)
        audit(account.world, "c")
        pool.finish(second, 3, state=State.CANCELLED, used=(11, 6))
    audit(account.world, "c")
    cost = 27 + (0 if ends == "failed" else 30)
    assert account.stands == (1000 - cost, 0)
    (charge,) = account.pool.charges()
    assert (charge.task, charge.charged) == ("c", cost)
    assert sum(filter(None, account.costs().values())) == cost


def test_parts_that_end_as_another_one_failed_cost_nothing(account: Account) -> None:
    pool = account.pool
    pool.start("c", parts=[b"0", b"1"], **PAID)
    first, second = pool.take(want=2)
    pool.append(second, 2, b"{}")
    pool.finish(first, state=State.FAILED, code="UPSTREAM_ERROR")
    pool.finish(second, 3, state=State.CANCELLED, used=(11, 6))
    assert account.stands == (1000, 0)
    audit(account.world, "c")


@pytest.mark.parametrize("parts", [(), (b"0", b"1")])
def test_a_stopped_stage_without_reported_usage_costs_its_maximum(
    account: Account, parts: tuple[bytes, ...]
) -> None:
    pool = account.pool
    pool.start("c", parts=parts, reserve=100, **PAID)
    grants = pool.take(want=2)
    for grant in grants:
        pool.append(grant, 2, b"{}")
    pool.cancel("c")
    for grant in grants:
        pool.finish(grant, 3, state=State.CANCELLED, used=(-1, -1))
    assert account.stands == (1000 - (2 * 117 if parts else 207), 0)
    audit(account.world, "c")


def test_a_chain_that_cannot_pay_for_all_its_stages_is_rejected(account: Account) -> None:
    refused = account.pool.start("c", reserve=800, **PAID)
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.short) == ("quota", QuotaShortfall(1007, 1000))
    audit(account.world, ())


def test_a_reservation_that_grows_may_move_to_the_next_window(account: Account) -> None:
    pool, world = account.pool, account.world
    day = 86_400_000
    start = world.now_ms // day * day
    first = f"k 500 d {start} {start + day} {start + 2 * day}"
    account.fund(1000, 1, f"d{start + day}", windows={f"d{start + day}": 0})
    assert isinstance(pool.start("c", **{**PAID, "quota": first}), Submitted)
    assert account.stands == (1000, 0)
    (grant,) = pool.take()
    world.advance(start + day - world.now_ms + 1000)
    pool.renew(grant)
    second = f"k 500 d {start + day} {start + 2 * day} {start + 3 * day}"
    answer = pool.advance(grant, pool.entry(1, **{**PAID, "quota": second}), used=(80, 10))
    assert answer.outcome == "moved"
    balance = drive(pool.scheduler.balance("k:acme"))
    assert balance.reserved_of(f"d{start + day}") == 0
    assert balance.reserved_of(f"d{start + 2 * day}") == 314
    audit(world, "c")
    pool.cancel("c")
    assert drive(pool.scheduler.balance("k:acme")).windows[f"d{start + 2 * day}"] == 107
    audit(world, "c")
