"""Credits: a task reserves its price and is charged for its usage, each once, whatever ends it. So are chains, as a whole."""

from typing import Any

import pytest
from tests.contract.store.store import Accepted, Answer, Store, budget, last_stage, next_stage, price

pytestmark = pytest.mark.feature("credits")

CREDIT = 1_000_000
PRICE = price(CREDIT, CREDIT // 2, 2 * CREDIT, CREDIT, 7)
"""A token of input costs one micro-credit, of output two, and a task seven."""
DEAR = price(10 * CREDIT, CREDIT, 20 * CREDIT, CREDIT, 70)
DAY_MS = 86_400_000
MAX_TOKENS = 4_194_304
PAID: dict[str, Any] = {
    "user": "acme/ann",
    "price": PRICE,
    "quota": "k",
    "estimated_input": 100,
    "max_output": 50,
}
"""A task that reserves 7 + 100 + 2 * 50 = 207."""


class Account:
    """A pool, and the balance of one key."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.sweep()
        store.fund()

    @property
    def stands(self) -> tuple[int, int]:
        """The balance, and how much of it is reserved."""
        found = self.store.balance()
        return found.balance, found.reserved

    @property
    def whole(self) -> tuple[int, int]:
        """The same with the windows of the budget."""
        found = self.store.balance()
        spent, reserved = (sum(of[i] for of in found.windows.values()) for i in (0, 1))
        return found.balance - spent, found.reserved + reserved

    def submit(self, task: str, **more: Any) -> Answer:
        return self.store.submit(task, **{**PAID, **more})

    def run(self, task: str, **more: Any) -> Any:
        return self.store.run(task, **{**PAID, **more})

    def budget(self, amount: int, day: int = 0) -> str:
        """A quota with a budget of today."""
        return budget(amount, (self.store.world.now_ms // DAY_MS + day) * DAY_MS, DAY_MS)

    def window(self, day: int = 0) -> str:
        return f"d{(self.store.world.now_ms // DAY_MS + 1 + day) * DAY_MS}"


@pytest.fixture
def account(store: Store) -> Account:
    return Account(store)


def test_a_task_reserves_its_price_and_is_charged_for_its_usage(account: Account) -> None:
    grant = account.run("a")
    assert account.stands == (1000, 207)
    account.store.finish(grant, used=(80, 10, 40, 5, False))
    cost = 7 + 40 + 20 + 10 + 5
    assert account.stands == (1000 - cost, 0)
    (charge,) = account.store.charges()
    assert {name: charge[name] for name in ("task", "user_name", "subject", "price", "held", "charged")} == {
        "task": "a",
        "user_name": "acme/ann",
        "subject": "k:acme",
        "price": PRICE,
        "held": 207,
        "charged": cost,
    }


def test_a_burst_with_known_maxima_cannot_spend_more_than_the_balance(account: Account) -> None:
    """However little the same user wrote so far: the sum of what they may cost is reserved."""
    for number in range(5):
        account.store.finish(account.run(f"short{number}", price=price()), used=(0, 1))
    grants, task = [], 0
    while isinstance(account.submit(f"t{task}"), Accepted):
        grants += account.store.take()
        task += 1
    assert (task, account.stands) == (4, (1000, 4 * 207))
    for grant in grants:
        account.store.finish(grant, used=(100, 50))
    assert account.stands == (1000 - 4 * 207, 0)


def test_a_task_without_a_maximum_reserves_the_longest_recent_answer_for_each_choice(
    account: Account,
) -> None:
    account.store.fund(granted=100_000, grants=2)

    def reserved(**more: Any) -> int:
        before = account.stands[1]
        name = f"asks{account.store.world.now_us}"
        account.store.world.advance(1)
        assert isinstance(account.submit(name, max_output=0, **more), Accepted)
        amount = account.stands[1] - before
        account.store.cancel(name)
        return amount

    assert reserved() == 107 + 2 * 4096, "nothing is known"
    account.store.finish(account.run("long"), used=(0, 2000))
    account.store.finish(account.run("short", user="other", quota=""), used=(0, 720))
    assert reserved() == 107 + 2 * (2000 - (2000 - 720) // 64)
    assert reserved(answers=3) == 107 + 3 * 2 * 1980
    assert reserved(answers=2, user="acme/new") == 107 + 2 * 2 * 1980


def test_the_dearest_kind_of_token_decides_the_reservation(account: Account) -> None:
    account.submit("a", price=price(CREDIT, 2 * CREDIT, CREDIT, 5 * CREDIT))
    assert account.stands == (1000, 2 * 100 + 5 * 50)


def test_a_quota_of_users_is_paid_by_the_user(store: Store) -> None:
    store.fund("u:acme/ann")
    unknown = store.reject("a", **{**PAID, "user": "acme/bob", "quota": "u"})
    assert (unknown.reason, unknown.unknown) == ("no_balance", ("u:acme/bob", ""))
    store.accept("a", **{**PAID, "quota": "u"})
    assert store.balance("u:acme/ann").reserved == 207


def test_a_task_that_cannot_pay_is_rejected_and_takes_nothing(account: Account) -> None:
    limits = {**PAID, "key_limits": {"requests_per_minute": 100}}
    for name in "abcd":
        account.store.accept(name, **limits)
    before = account.store.world.contents()
    rejected = account.store.reject("e", **limits)
    assert (rejected.reason, rejected.needed, rejected.available) == ("quota", 207, 1000 - 4 * 207)
    assert rejected.requests is not None
    assert account.store.world.contents() == before
    account.store.accept("e", **{**limits, "estimated_input": 1, "max_output": 1})


def test_an_unknown_balance_or_window_is_requested_from_sql(account: Account) -> None:
    assert account.store.reject("a", **{**PAID, "user": "other"}).unknown == ("k:other", "")
    window, quota = account.window(), account.budget(500)
    assert account.store.reject("a", **{**PAID, "quota": quota}).unknown == ("k:acme", window)
    assert account.store.fund(window=window, windows={window: 450}) is False
    rejected = account.store.reject("a", **{**PAID, "quota": quota, "estimated_input": 1000})
    assert (rejected.needed, rejected.available) == (1107, 1050)


def test_a_cost_above_the_reservation_becomes_a_debt_that_a_grant_pays(account: Account) -> None:
    account.store.finish(account.run("a"), used=(2000, 0))
    assert account.stands == (1000 - 2007, 0)
    assert account.store.reject("b", **PAID).available == 0
    account.store.fund(granted=3000, grants=2)
    assert account.stands == (3000 - 2007, 0)
    account.store.accept("b", **PAID)


def test_a_grant_of_credits_counts_once_and_an_older_total_changes_nothing(account: Account) -> None:
    far = 2**53 + 1
    for granted, grants, balance in (
        (1500, 2, 1500),
        (1500, 2, 1500),
        (1000, 1, 1500),
        (400, 3, 400),
        (-50, 4, -50),
    ):
        account.store.fund(granted=granted, grants=grants)
        assert account.stands == (balance, 0)
    account.store.fund(granted=5 * far, grants=5)
    account.store.finish(account.run("a"), used=(100, 0))
    account.store.fund(granted=7 * far, grants=6)
    assert account.stands == (7 * far - 107, 0), "exact beyond what a float holds"


@pytest.mark.parametrize(
    ("of", "used"),
    [
        ((10**14, 10**14 - 1, 10**14 - 1, 1, 10**15), (MAX_TOKENS, MAX_TOKENS, 17, MAX_TOKENS - 1)),
        ((1, 1, 1, 1, 0), (1, 1, 0, 0)),
        ((999_999, 0, 999_999, 1_000_001, 0), (999_999, 1, 5, 1)),
        ((CREDIT, CREDIT // 2, 2 * CREDIT, CREDIT, 7), (-1, -1, -1, -1)),
        ((CREDIT, CREDIT // 2, 2 * CREDIT, CREDIT, 7), (10**9, -1, 10**12, 5)),
    ],
)
def test_a_price_is_exact_to_the_micro_credit_and_rounded_up_once(
    account: Account, of: tuple[int, ...], used: tuple[int, ...]
) -> None:
    account.store.fund(granted=4 * 10**15, grants=2)
    account.store.finish(account.run("a", price=price(*of)), used=(*used, False))
    read, wrote = (min(max(tokens, 0), MAX_TOKENS) for tokens in used[:2])
    cached, thought = min(max(used[2], 0), read), min(max(used[3], 0), wrote)
    parts = (read - cached) * of[0] + cached * of[1] + (wrote - thought) * of[2] + thought * of[3]
    assert account.stands == (4 * 10**15 - of[4] - -(-parts // 10**6), 0)


@pytest.mark.parametrize("amount", [0, 300])
def test_a_balance_that_was_lost_and_loaded_again_keeps_its_own_reservations(
    account: Account, amount: int
) -> None:
    """Reservations of the balance before are not returned to the new one: that would free what others reserve now."""
    more = {"quota": account.budget(amount) if amount else "k"}
    account.store.fund(window=account.window())
    grants = [account.run(name, **more) for name in "ab"]
    account.store.lose_balance("k:acme")
    account.store.world.advance(1)
    account.store.fund(window=account.window())
    for name in "cd":
        account.submit(name, **more)
    account.store.finish(grants[0], used=(80, 10))
    account.store.finish(grants[1], state="failed")
    assert account.whole == (1000 - 107, 414)
    for name in "cd":
        account.store.cancel(name)
    assert account.whole == (1000 - 107, 0)


def test_a_task_of_a_key_without_a_quota_records_its_cost(store: Store) -> None:
    store.finish(store.run("a", user="acme", price=PRICE), used=(10, 5))
    store.finish(store.run("b", user="acme"), used=(10, 5))
    assert [row["cost"] for row in store.usage().values()] == [COST, None]
    assert store.charges() == []


# ---- budgets ----------


def test_a_budget_is_used_before_grants_and_starts_again(account: Account) -> None:
    first = account.window()
    account.store.fund(window=first)
    grant = account.run("a", quota=account.budget(150))
    assert (account.stands, account.store.balance().windows[first]) == ((1000, 57), (0, 150))
    account.store.finish(grant, used=(100, 20))
    assert (account.stands, account.store.balance().windows[first]) == ((1000, 0), (147, 0))
    (charge,) = account.store.charges()
    names = ("held", "charged", "window", "window_held", "window_charged")
    assert [charge[name] for name in names] == [57, 0, first, 150, 147]
    account.store.world.advance(DAY_MS)
    account.store.offer("m")
    account.submit("b", quota=account.budget(150))
    assert account.store.balance().windows == {first: (147, 0), account.window(): (0, 150)}


def test_the_clock_of_redis_decides_the_window(account: Account) -> None:
    quota, today, before, after = account.budget(500), account.window(), account.window(-1), account.window(1)
    account.store.fund(granted=0, grants=2, window=today)
    for task, ms, window, reserved in (
        ("a", 0, today, 207),
        ("b", DAY_MS, after, 207),
        ("c", -DAY_MS, today, 414),
    ):
        account.store.world.advance(ms)
        account.store.offer("m")
        account.submit(task, quota=quota)
        assert account.store.balance().windows[window] == (0, reserved)
    account.store.world.advance(-DAY_MS)
    account.store.offer("m")
    assert account.store.reject("d", **{**PAID, "quota": quota}).unknown == ("k:acme", before)


# ---- ends ----------

COST = 7 + 10 + 2 * 5
DONE, X, LOST = ("completed", ""), ("failed", "X"), ("failed", "WORKER_LOST")
CANCELLED, LEFT, LATE = ("cancelled", ""), ("cancelled", "CANCELLED"), ("failed", "TOTAL_TIMEOUT")
WRONG, OBJECT = ("failed", "JSON_PARSE_FAILED"), {"answer": "object"}
REPORTED = 7 + 100 + 2 * 10
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
    "is cancelled after output, no answer": ({}, "run renew output cancel 60s done", CANCELLED, 207),
    "is cancelled after a report, no answer": ({}, "run output reports cancel 60s", CANCELLED, REPORTED),
    "is cancelled after a report, no usage": ({}, "run output reports cancel silent", CANCELLED, REPORTED),
    "is late": ({"run_ms": 1000}, "run renew 1s 60s", LATE, 0),
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
"""Fields of a task, its life (Store.play), its end, and its cost."""


@pytest.mark.parametrize(("more", "steps", "end", "cost"), ENDS.values(), ids=list(ENDS))
@pytest.mark.parametrize("amount", [0, 100], ids=["of grants", "of a budget, too"])
def test_however_a_task_ends_it_is_recorded_and_paid_once(
    account: Account, more: dict[str, Any], steps: str, end: tuple[str, str], cost: int, amount: int
) -> None:
    store, paid = account.store, dict(PAID)
    if amount:
        store.fund(window=account.window())
        paid["quota"] = account.budget(amount)
    store.play("a", steps, **paid, **more)
    store.pass_time(2000)
    for _ in range(2):
        assert account.whole == (1000 - cost, 0)
        (charge,) = store.charges()
        assert charge["charged"] + charge["window_charged"] == cost
        assert (charge["held"] + charge["window_held"], charge["window_held"]) == (207, amount)
        (row,) = store.usage().values()
        assert (row["state"], row["code"]) == end
        store.cancel("a")
        store.pass_time(2000)


# ---- SQL and the store ----------


def test_balances_are_due_in_turn(account: Account) -> None:
    ((subject, balance, idle_ms),) = account.store.due_balances()
    assert (subject, balance.balance, idle_ms) == ("k:acme", 1000, 0)
    assert account.store.due_balances() == []
    account.store.finish(account.run("a"))
    account.store.world.advance(60_000)
    assert [idle for _, _, idle in account.store.due_balances()] == [0]
    account.store.world.advance(61_000)
    assert account.store.due_balances()[0][2] == 61_000
    assert len(account.store.due_balances(all_due=True)) == 1


def test_a_difference_to_sql_is_corrected_once(account: Account) -> None:
    window = account.window()
    account.store.fund(window=window)
    account.store.finish(account.run("a", quota=account.budget(100)), used=(100, 50))
    ((_, compared, _),) = account.store.due_balances()
    grant = account.run("b")
    for done in (True, False):
        sql: dict[str, Any] = {"granted": 1300, "grants": 2, "number": 50}
        assert account.store.adjust("k:acme", compared, 11, {window: -3, "d5": 9}, **sql) is done
    assert account.stands == (1300 - 107 - 11, 207)
    assert account.store.balance().windows[window] == (97, 0)
    account.store.finish(grant, used=(1, 0))
    assert account.store.charges()[-1]["number"] == 51


def test_only_a_balance_at_rest_is_evicted(account: Account) -> None:
    def look() -> Any:
        return account.store.due_balances(10, 1, all_due=True)[0][1]

    grant = account.run("a")
    assert not account.store.evict("k:acme", look())
    before = look()
    account.store.finish(grant)
    assert not account.store.evict("k:acme", before)
    assert account.store.evict("k:acme", look())
    assert account.store.reject("b", **PAID).reason == "no_balance"


# ---- chains ----------


@pytest.mark.feature("chains")
@pytest.mark.parametrize(("at_start", "later", "reserved"), [(300, 0, 507), (0, 50, 107 + 207 + 50)])
def test_all_stages_are_one_reservation_that_may_grow_and_one_debit(
    account: Account, at_start: int, later: int, reserved: int
) -> None:
    store = account.store
    store.start("c", reserve=at_start, **PAID)
    assert account.stands == (1000, 207 + at_start)
    store.advance(store.take()[0], next_stage(1, **PAID, reserve=later), used=(80, 10))
    assert account.stands == (1000, reserved)
    store.world.check()
    store.advance(store.take()[0], last_stage(), 3, used=(90, 40))
    assert account.stands == (1000 - 107 - 177, 0)
    (charge,) = store.charges()
    assert (charge["task"], charge["held"], charge["charged"], charge["price"]) == ("c", reserved, 284, "")
    assert {name: row["cost"] for name, row in store.usage().items()} == {"c.0": 107, "c.1": 177}


@pytest.mark.feature("chains")
def test_a_chain_that_cannot_pay_for_its_next_stage_is_rejected_and_pays_the_earlier_ones(
    account: Account,
) -> None:
    store = account.store
    rejected = store.start("big", reserve=800, **PAID)
    assert (getattr(rejected, "reason", ""), getattr(rejected, "needed", 0)) == ("quota", 1007)
    store.start("c", **PAID)
    (grant,) = store.take()
    before = store.world.contents()
    answer = store.advance(grant, next_stage(1, **{**PAID, "price": DEAR}), used=(80, 10))
    assert (answer.outcome, answer.needed, answer.available) == ("quota", 107 + 70 + 1000 + 1000, 1000)
    assert store.world.contents() == before
    end = last_stage("failed", "INSUFFICIENT_QUOTA", blamed=(1, "next"))
    assert store.advance(grant, end, used=(80, 10)).outcome == "ended"
    assert account.stands == (1000 - 107, 0)
    assert {name: row["cost"] for name, row in store.usage().items()} == {"c.0": 107, "c.1": 0}
    assert len(store.charges()) == 1


@pytest.mark.feature("chains")
@pytest.mark.parametrize("ends", ["moved", "ended", "failed", "cancelled"])
def test_parts_share_one_reservation_and_each_pays_its_usage(account: Account, ends: str) -> None:
    store = account.store
    store.start("c", parts=[b"0", b"1"], **PAID)
    assert account.stands == (1000, 2 * (7 + 10 + 100)), "by the parts' own input"
    first, second = store.take(want=2)
    store.advance(first, used=(10, 5))
    store.append(second, 2, b"{}")
    match ends:
        case "moved":
            store.advance(second, next_stage(1, **PAID), 3, used=(11, 6))
            store.world.check()
            store.finish(store.take()[0], state="failed", used=(90, 40))
        case "ended":
            store.advance(second, last_stage(), 3, used=(11, 6))
        case "failed":
            store.finish(second, 3, state="failed", used=(11, 6))
        case _:
            store.cancel("c")
            assert (store.charges(), account.stands) == ([], (1000, 234))
            store.finish(second, 3, state="cancelled", used=(11, 6))
    cost = 27 + (0 if ends == "failed" else 30)
    assert account.stands == (1000 - cost, 0)
    (charge,) = store.charges()
    assert (charge["task"], charge["charged"]) == ("c", cost)
    assert sum(row["cost"] or 0 for row in store.usage().values()) == cost


@pytest.mark.feature("chains")
@pytest.mark.parametrize("parts", [(), (b"0", b"1")])
def test_a_stopped_stage_without_reported_usage_costs_its_maximum(
    account: Account, parts: tuple[bytes, ...]
) -> None:
    store = account.store
    store.start("c", parts=parts, reserve=100, **PAID)
    grants = store.take(want=2)
    for grant in grants:
        store.append(grant, 2, b"{}")
    store.cancel("c")
    for grant in grants:
        store.finish(grant, 3, state="cancelled", used=(-1, -1))
    assert account.stands == (1000 - (2 * 117 if parts else 207), 0)


@pytest.mark.feature("chains")
def test_a_reservation_that_grows_may_move_to_the_next_window(account: Account) -> None:
    store, today = account.store, account.window()
    store.fund(window=today, windows={today: 0})
    store.start("c", **{**PAID, "quota": account.budget(500)})
    assert account.stands == (1000, 0)
    (grant,) = store.take()
    store.world.advance(DAY_MS - store.world.now_ms % DAY_MS + 1000)
    store.renew(grant)
    answer = store.advance(grant, next_stage(1, **{**PAID, "quota": account.budget(500)}), used=(80, 10))
    assert answer.outcome == "moved"
    windows = store.balance().windows
    assert (windows[today][1], windows[account.window()][1]) == (0, 314)
    store.world.check()
    store.cancel("c")
    assert store.balance().windows[account.window()][0] == 107
