"""What tasks are held and charged of a quota, and what comes back: each once, whoever ends them."""

from typing import Any

import msgspec
import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.gateway.records.entries import MAX_TOKENS, Charge
from fairlane.queues.credits import Funds
from fairlane.queues.scheduler import Limits
from fairlane.queues.tasks import QuotaShortfall, Rejection, State, Submitted

CREDIT = 1_000_000
PRICE = f"{CREDIT} {CREDIT // 2} {2 * CREDIT} {CREDIT} 7"
"""Micro-credits of a million tokens: so a token of input is one, of output two."""
DAY_MS = 86_400_000
PAID = {"user": "acme/ann", "price": PRICE, "quota": "k", "estimated_input": 100, "max_output": 50}
"""A task that is held 7 + 100 + 2 * 50 = 207."""


class Account:
    """A pool, and what one key can pay with."""

    def __init__(self, world: World, granted: int = 1000, subject: str = "k:acme") -> None:
        self.world, self.pool, self.subject = world, Pool(world), subject
        self.pool.sweep()
        self.fund(granted)

    def fund(self, granted: int, grants: int = 1, window: str = "", **more: Any) -> bool:
        known: bool = drive(
            self.pool.scheduler.load_balance(self.subject, Funds(granted, grants, **more), window)
        )
        return known

    @property
    def stands(self) -> tuple[int, int]:
        """What is there, and what of it is held."""
        balance = drive(self.pool.scheduler.balance(self.subject))
        return balance.balance, balance.held

    def window(self, name: str) -> tuple[int, int]:
        balance = drive(self.pool.scheduler.balance(self.subject))
        return balance.windows[name], balance.reserved_of(name)

    def submit(self, task: str, **more: Any) -> Submitted | Rejection:
        return self.pool.submit(task, **{**PAID, **more})

    def run(self, task: str, **more: Any) -> Any:
        return self.pool.run(task, **{**PAID, **more})

    def budget(self, amount: int, kind: str = "d") -> str:
        """The text of a quota with a budget of the day of UTC that it is."""
        day = self.world.now_ms // DAY_MS * DAY_MS
        return f"k {amount} {kind} {day} {day + DAY_MS} {day + 2 * DAY_MS}"

    @property
    def today(self) -> str:
        return f"d{(self.world.now_ms // DAY_MS + 1) * DAY_MS}"


def contents(world: World) -> dict[bytes, bytes]:
    return {name: value for name, (_, value) in world.save().items()}


@pytest.fixture
def account(world: World) -> Account:
    return Account(world)


def test_a_task_reserves_its_price_and_is_charged_for_its_usage(account: Account) -> None:
    grant = account.run("a")
    assert account.stands == (1000, 207)
    account.pool.finish(grant, used=(80, 10, 40, 5, False))
    cost = 7 + 40 + 20 + 10 + 5
    assert account.stands == (1000 - cost, 0)
    (charge,) = account.pool.charges()
    assert charge == Charge(
        *("a", account.world.now_ms, "", "acme/ann", "k:acme", PRICE),
        number=2, held=207, charged=cost, window="", window_held=0, window_charged=0,
    )  # fmt: skip
    audit(account.world, "a")


def test_a_burst_with_known_maxima_cannot_spend_more_than_the_balance(account: Account) -> None:
    """However little the same user wrote so far: the sum of what they may cost is held, not that of what they are likely to."""
    for number in range(5):
        account.pool.finish(account.run(f"short{number}", price="0 0 0 0 0"), used=(0, 1))
    grants, task = [], 0
    while isinstance(account.submit(f"t{task}"), Submitted):
        grants += account.pool.take()
        task += 1
    assert (task, account.stands) == (4, (1000, 4 * 207))
    for grant in grants:
        account.pool.finish(grant, used=(100, 50))
    assert account.stands == (1000 - 4 * 207, 0)


def test_a_task_without_a_maximum_reserves_the_longest_recent_answer_for_each_choice(
    account: Account,
) -> None:
    account.fund(100_000, 2)

    def held(**more: Any) -> int:
        before = account.stands[1]
        name = f"asks{len(account.pool.charges())}"
        assert isinstance(account.submit(name, max_output=0, **more), Submitted)
        amount = account.stands[1] - before
        account.pool.cancel(name)
        return amount

    assert held() == 107 + 2 * 4096, "nobody knows"
    account.pool.finish(account.run("long"), used=(0, 2000))
    account.pool.finish(account.run("short", user="other", quota=""), used=(0, 720))
    assert held() == 107 + 2 * (2000 - (2000 - 720) // 64)
    assert held(answers=3) == 107 + 3 * 2 * 1980
    assert held(answers=2, user="acme/new") == 107 + 2 * 2 * 1980, "whoever asks"


def test_the_dearest_kind_of_token_decides_the_reservation(account: Account) -> None:
    account.submit("a", price=f"{CREDIT} {2 * CREDIT} {CREDIT} {5 * CREDIT} 0")
    assert account.stands == (1000, 2 * 100 + 5 * 50)


def test_a_quota_of_users_is_paid_by_the_user(world: World) -> None:
    account = Account(world, subject="u:acme/ann")
    assert account.submit("a", user="acme/bob", quota="u") == Rejection(
        "no_balance", unknown=("u:acme/bob", "")
    )
    account.submit("a", quota="u")
    assert account.stands == (1000, 207)


def test_a_task_that_cannot_pay_is_rejected_and_takes_nothing(account: Account) -> None:
    limits = {"key_limits": "100 0 0 0 0 0"}
    for name in "abcd":
        assert isinstance(account.submit(name, **limits), Submitted)
    before = contents(account.world)
    refused = account.submit("e", **limits)
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.short) == ("quota", QuotaShortfall(207, 1000 - 4 * 207))
    assert refused.rate_limits is not None
    assert contents(account.world) == before
    assert isinstance(account.submit("e", estimated_input=1, max_output=1, **limits), Submitted)


def test_an_unknown_balance_is_requested_from_sql(world: World) -> None:
    account = Account(world)
    assert account.submit("a", user="other") == Rejection("no_balance", unknown=("k:other", ""))
    window = account.today
    assert account.submit("a", quota=account.budget(500)) == Rejection(
        "no_balance", unknown=("k:acme", window)
    )
    assert account.fund(1000, window=window, windows={window: 450}) is False
    assert account.submit("a", quota=account.budget(500), estimated_input=1000).short == QuotaShortfall(
        1107, 1050
    )  # type: ignore[union-attr]


def test_a_cost_above_the_reservation_becomes_a_debt_that_a_grant_pays(account: Account) -> None:
    account.pool.finish(account.run("a"), used=(2000, 0))
    assert account.stands == (1000 - 2007, 0)
    assert account.submit("b").short == QuotaShortfall(207, 0)  # type: ignore[union-attr]  # (though its user wrote nothing)
    account.fund(3000, 2)
    assert account.stands == (3000 - 2007, 0)
    assert isinstance(account.submit("b"), Submitted)


def test_a_grant_counts_once_and_an_older_total_changes_nothing(account: Account) -> None:
    for granted, grants in ((1500, 2), (1500, 2), (1000, 1), (400, 3)):
        account.fund(granted, grants)
    assert account.stands == (400, 0)
    account.fund(-50, 4)
    assert account.stands == (-50, 0)
    account.fund(10**15 + 1, 5)
    assert account.stands == (10**15 + 1, 0)


def test_sums_beyond_what_scripts_count_exactly_are_exact(world: World) -> None:
    far = 2**53 + 1
    account = Account(world, granted=0)
    account.fund(5 * far, 2)
    account.pool.finish(account.run("a"), used=(100, 0))
    account.fund(7 * far, 3)
    assert account.stands == (7 * far - 107, 0)


@pytest.mark.parametrize(
    ("price", "used"),
    [
        (
            "100000000000000 99999999999999 99999999999999 1 1000000000000000",
            (4_194_304, 4_194_304, 17, 4_194_303),
        ),
        ("1 1 1 1 0", (1, 1, 0, 0)),
        ("999999 0 999999 1000001 0", (999_999, 1, 5, 1)),
        (PRICE, (-1, -1, -1, -1)),
        (PRICE, (10**9, -1, 10**12, 5)),
    ],
)
def test_a_price_is_exact_to_the_micro_credit_and_rounded_up_once(
    account: Account, price: str, used: tuple[int, int, int, int]
) -> None:
    account.fund(4 * 10**15, 2)
    input_, cached, output, reasoning, request = map(int, price.split())
    account.pool.finish(account.run("a", price=price), used=(*used, False))
    read, wrote = (min(max(tokens, 0), MAX_TOKENS) for tokens in used[:2])
    from_cache, thought = min(max(used[2], 0), read), min(max(used[3], 0), wrote)
    parts = (
        (read - from_cache) * input_ + from_cache * cached + (wrote - thought) * output + thought * reasoning
    )
    assert account.stands == (4 * 10**15 - request - -(-parts // 10**6), 0)


@pytest.mark.parametrize("budget", [0, 300])
def test_a_balance_that_was_lost_and_loaded_again_keeps_its_own_reservations(
    account: Account, budget: int
) -> None:
    """What tasks hold of the one before comes back to nobody: it would free what others hold now."""
    more = {"quota": account.budget(budget) if budget else "k"}
    account.fund(1000, window=account.today)
    grants = [account.run(name, **more) for name in "ab"]
    account.world.call("DEL", account.world.keys("balance", subject="k:acme"))
    account.world.call("DEL", account.world.keys("balances"))
    account.world.advance(1)
    account.fund(1000, window=account.today)
    for name in "cd":
        assert isinstance(account.submit(name, **more), Submitted)
    account.pool.finish(grants[0], used=(80, 10))
    account.pool.finish(grants[1], state=State.FAILED)
    assert whole(account) == (1000 - 107, 414)
    audit(account.world, "abcd")
    for name in "cd":
        account.pool.cancel(name)
    assert whole(account) == (1000 - 107, 0)
    audit(account.world, "abcd")


# ---- budgets ----------


def test_a_budget_is_used_before_grants_and_starts_again(account: Account) -> None:
    first = account.today
    account.fund(1000, window=first)
    grant = account.run("a", quota=account.budget(150))
    assert account.stands == (1000, 57)
    assert account.window(first) == (0, 150)
    account.pool.finish(grant, used=(100, 20))
    assert account.window(first) == (147, 0)
    assert account.stands == (1000, 0)
    (charge,) = account.pool.charges()
    assert (charge.held, charge.charged) == (57, 0)
    assert (charge.window, charge.window_held, charge.window_charged) == (first, 150, 147)
    account.world.advance(DAY_MS)
    account.pool.offer("m")
    account.submit("b", quota=account.budget(150))
    assert account.window(account.today) == (0, 150), "its user wrote less, but may write as much as it says"
    assert account.window(first) == (147, 0)
    audit(account.world, "ab")


def test_the_clock_of_redis_decides_the_window(account: Account) -> None:
    text = account.budget(500)
    _, _, _, before, this, following = text.split()
    account.fund(0, 2, window=f"d{this}")
    account.submit("a", quota=text)
    assert account.window(f"d{this}") == (0, 207)
    account.world.advance(DAY_MS)  # the gateway's is late
    account.pool.offer("m")
    account.submit("b", quota=text)
    assert account.window(f"d{following}") == (0, 207)
    account.world.advance(-DAY_MS)
    account.pool.offer("m")
    account.submit("c", quota=text)
    assert account.window(f"d{this}") == (0, 414)
    account.world.advance(-DAY_MS)
    account.pool.offer("m")
    assert account.submit("d", quota=text) == Rejection("no_balance", unknown=("k:acme", f"d{before}"))


# ---- ends ----------


COST = 7 + 10 + 2 * 5
DONE, X, LOST = ("completed", ""), ("failed", "X"), ("failed", "WORKER_LOST")
CANCELLED, LEFT, LATE = ("cancelled", ""), ("cancelled", "CANCELLED"), ("failed", "TOTAL_TIMEOUT")
WRONG, OBJECT = ("failed", "JSON_PARSE_FAILED"), {"answer": "object"}
REPORTED = 7 + 100 + 2 * 10
GRACE = f"{Limits().stop_grace_ms // 1000}s"
ENDS: dict[str, tuple[dict[str, Any], str, tuple[str, str], int]] = {
    "completes": ({}, "run done", DONE, COST),
    "is cancelled while it waits": ({}, "cancel", CANCELLED, 0),
    "waits too long": ({"wait_ms": 1000}, "1s", ("failed", "QUEUE_TIMEOUT"), 0),
    "is left while it waits": ({"linger_ms": 1000}, "1s", LEFT, 0),
    "fails": ({}, "run X", X, 0),
    "fails after output": ({}, "run output X", X, 0),
    "is cancelled before output": ({}, "run cancel done", CANCELLED, 0),
    "is cancelled before output, and its worker is lost": ({}, "run cancel lost", CANCELLED, 0),
    "is cancelled after output": ({}, "run output cancel done", CANCELLED, COST),
    "is cancelled after output, no answer": ({}, f"run renew output cancel {GRACE} done", CANCELLED, 207),
    "is cancelled after a report, no answer": ({}, f"run output reports cancel {GRACE}", CANCELLED, REPORTED),
    "is cancelled after a report, no usage": ({}, "run output reports cancel silent", CANCELLED, REPORTED),
    "is late": ({"run_ms": 1000}, f"run renew 1s {GRACE}", LATE, 0),
    "is late after output": ({"timeout_ms": 1000}, "run renew output 1s done", LATE, COST),
    "is late by the operator's limit": ({"run_ms": 1000}, "run renew output 1s done", LATE, COST),
    "is late by its worker's own limit": ({}, "run output TOTAL_TIMEOUT", LATE, 0),
    "misses its schema after output": (OBJECT, "run output JSON_PARSE_FAILED", WRONG, COST),
    "misses its schema before output": (OBJECT, "run JSON_PARSE_FAILED", WRONG, 0),
    "is not checked after output": (OBJECT, "run output NOT_CHECKED", ("failed", "NOT_CHECKED"), COST),
    "fails unreadably after output": ({}, "run output JSON_PARSE_FAILED", WRONG, 0),
    "is left after output": ({"linger_ms": 1000}, "run renew output 1s done", LEFT, COST),
    "is lost after output": ({}, "run output lost", LOST, 0),
    "loses its lease after output": ({}, "run renew output 20s", LOST, 0),
    "uses up its tries": ({}, "run failed run failed run failed", LOST, 0),
    "stops with what it reported before": ({}, "run stops 1s", DONE, COST - 2 - 1),
}
"""How a task is submitted, what happens to it (as in Pool.play), how it ends, and what it costs."""


@pytest.mark.parametrize(("more", "steps", "end", "cost"), ENDS.values(), ids=list(ENDS))
@pytest.mark.parametrize("budget", [0, 100], ids=["of what was granted", "of a budget, too"])
def test_however_a_task_ends_it_is_recorded_and_paid_once(
    account: Account, more: dict[str, Any], steps: str, end: tuple[str, str], cost: int, budget: int
) -> None:
    pool, paid = account.pool, PAID
    if budget:
        account.fund(1000, window=account.today)
        paid = {**PAID, "quota": account.budget(budget)}
    pool.play("a", steps, **paid, **more)
    pool.pass_time(2000)
    assert whole(account) == (1000 - cost, 0)
    (charge,) = pool.charges()
    assert charge.charged + charge.window_charged == cost
    assert (charge.held + charge.window_held, charge.window_held) == (207, budget)
    (row,) = pool.recorded().values()
    assert (row.state, row.code) == end
    for _ in range(2):
        pool.cancel("a")
        pool.pass_time(2000)
    assert whole(account) == (1000 - cost, 0)
    assert len(pool.recorded()) == 1
    audit(account.world, "a")


def whole(account: Account) -> tuple[int, int]:
    """What is there and held, of both."""
    balance = drive(account.pool.scheduler.balance(account.subject))
    return (
        balance.balance - sum(balance.windows.values()),
        balance.held + sum(balance.reserved_of(window) for window in balance.windows),
    )


def test_a_task_of_a_key_without_a_quota_records_its_cost(world: World) -> None:
    pool = Pool(world)
    pool.finish(pool.run("a", user="acme", price=PRICE), used=(10, 5))
    pool.finish(pool.run("b", user="acme"), used=(10, 5))
    entries = [
        msgspec.msgpack.decode(fields[1])
        for _, fields in world.call("XRANGE", world.keys("outbox"), "-", "+")
    ]
    assert entries[0][22:] == [PRICE, str(COST), ""]
    assert entries[1][22:] == []


# ---- what SQL and the store say of each other ----------


def test_balances_are_due_in_turn(account: Account) -> None:
    scheduler = account.pool.scheduler
    newest, due = drive(scheduler.due_balances(10, 60_000))
    assert newest == ""
    ((subject, balance, idle),) = due
    assert (subject, balance.balance, idle) == ("k:acme", 1000, 0)
    assert drive(scheduler.due_balances(10, 60_000)) == ("", [])
    account.pool.finish(account.run("a"))
    account.world.advance(60_000)
    newest, due = drive(scheduler.due_balances(10, 60_000))
    assert newest.endswith("-0")
    assert [idle for _, _, idle in due] == [0]
    account.world.advance(61_000)
    assert drive(scheduler.due_balances(10, 60_000))[1][0][2] == 61_000
    assert len(drive(scheduler.due_balances(10, 60_000, all_due=True))[1]) == 1


def test_a_difference_to_sql_is_corrected_once(account: Account) -> None:
    account.fund(1000, window=account.today)
    account.pool.finish(account.run("a", quota=account.budget(100)), used=(100, 50))
    scheduler = account.pool.scheduler
    _, ((_, compared, _),) = drive(scheduler.due_balances(10, 60_000))
    grant = account.run("b")
    right = Funds(1300, 2, number=50)
    for done in (True, False):
        assert (
            drive(scheduler.adjust_balance("k:acme", compared, right, 11, {account.today: -3, "d5": 9}))
            is done
        )
    assert account.stands == (1300 - 107 - 11, 207)
    assert account.window(account.today) == (97, 0)
    account.pool.finish(grant, used=(1, 0))
    assert account.pool.charges()[-1].number == 51
    audit(account.world, "ab")


def test_only_a_balance_at_rest_is_forgotten(account: Account) -> None:
    scheduler = account.pool.scheduler

    def look() -> Any:
        (_, ((_, compared, _),)) = drive(scheduler.due_balances(10, 1, all_due=True))
        return compared

    grant = account.run("a")
    assert not drive(scheduler.evict_balance("k:acme", look()))
    before = look()
    account.pool.finish(grant)
    assert not drive(scheduler.evict_balance("k:acme", before))
    assert drive(scheduler.evict_balance("k:acme", look()))
    audit(account.world, "a")
    assert account.submit("b").reason == "no_balance"  # type: ignore[union-attr]
