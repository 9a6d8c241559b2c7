"""Random lives of keys and users with a quota, over a real Redis and a real database, against a plain model.

After every step what Redis holds of each balance must be the sum of the ledger's rows, those of SQL and those on their way there
alike, and what is held the sum over the tasks that live. Each submission and each end must be what a model in whole numbers makes
of the state before it. Replies are lost, consumers die before and after they have written, gateways die between SQL and Redis,
windows turn over, budgets change, and Redis loses what happened last: then the ledger is right, as soon as it was
compared.
"""

import asyncio
import json
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import select
from structlog.testing import capture_logs
from tests.contract.store.store import Accepted, Grant, Rejected, Store, World
from tests.support.audit import audit
from tests.support.databases import place_database
from tests.support.lives import live
from tests.support.records import RECORDED, tier_of
from tests.support.servers import Server

from fairlane.gateway.credits import reconciliation as reconciliation_module
from fairlane.gateway.credits.balances import Balances
from fairlane.gateway.credits.ledger import read_charge, rows_of
from fairlane.gateway.credits.reconciliation import BalanceReconciler
from fairlane.gateway.database.address import FILE, parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.database.tables import GRANTED, LedgerRow, ledger
from fairlane.gateway.prices.prices import unpack
from fairlane.gateway.records import outbox as outbox_module
from fairlane.gateway.records.erasure import ErasedUsers
from fairlane.gateway.records.outbox import GROUP, Outbox
from fairlane.gateway.records.records import EndTable
from fairlane.gateway.usage.usage import UsageTable
from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.metrics import Recorder

DAY_MS = 86_400_000
FAR_MS = 10**13
USERS = ("acme/ann", "acme/ü b", "acme", "other")
PRICE = "1000000 500000 2000001 3000000 7"
QUOTAS: tuple[tuple[str, int, str], ...] = (
    ("k", 0, ""),
    ("u", 0, ""),
    ("k", 900, "d"),
    ("u", 700, "d"),
    ("k", 2500, "m"),
)
"""Who pays, and from which budget."""


class LedgerMachine(RuleBasedStateMachine):
    server: Server
    seen: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.server.socket_path)
        self.world.empty()
        self.replicas = [Store(self.world), Store(self.world, "r2", set_up=False)]
        self.replicas[0].configure(max_length=1000)
        self.folder = tempfile.TemporaryDirectory()
        place_database(Path(self.folder.name))
        self.runner = asyncio.Runner()
        self.numbers = iter(range(1, 100_000))
        self.quota = QUOTAS[0]
        self.accepted: list[str] = []
        self.grants: list[Grant] = []
        self.waiting: list[str] = []
        self.again: list[Callable[[], Any]] = []
        self.saved: Any = None
        self.wrong = False
        """Redis may differ from the ledger, until it was compared."""
        self.runner.run(self.open())
        self.keep_alive()

    async def open(self) -> None:
        self.database = Database(parse_address(None, Path(self.folder.name)))
        await self.database.start()
        self.reader = sqlite3.connect(Path(self.folder.name) / FILE)
        link: Any = self.world.link
        scheduler = self.replicas[0].scheduler
        self.balances = Balances(self.database, scheduler)
        self.reconciler = BalanceReconciler(self.database, scheduler, link, self.world.keys, Recorder())
        tables = {"usage": EndTable(ErasedUsers(self.database), RECORDED, UsageTable(tier_of)).write}
        self.outboxes = [Outbox(link, self.world.keys, self.database, tables, Recorder()) for _ in range(2)]
        self.world.call("XGROUP", "CREATE", self.world.keys("outbox"), GROUP, "0", "MKSTREAM")

    def teardown(self) -> None:
        try:
            self.compare()
        finally:
            self.reader.close()
            self.runner.run(self.database.close())
            self.runner.close()
            self.folder.cleanup()
            self.world.close()

    def keep_alive(self) -> None:
        for pool in self.replicas:
            pool.offer("m", hold_ms=FAR_MS)
            pool.sweep()

    # ---- the plain model ----------

    def budget(self) -> tuple[str, int, str]:
        """The quota's text, its budget, and the window that is now."""
        whose, budget, kind = self.quota
        if not budget:
            return whose, 0, ""
        length = DAY_MS if kind == "d" else 30 * DAY_MS
        begin = self.world.now_ms // length * length
        ends = [begin, begin + length, begin + 2 * length]
        return f"{whose} {budget} {kind} {' '.join(map(str, ends))}", budget, f"{kind}{ends[1]}"

    def payer(self, user: str) -> str:
        return f"u:{user}" if self.quota[0] == "u" else f"k:{user.partition('/')[0]}"

    def stands(self, subject: str, window: str) -> tuple[int, int, int, int]:
        """There, held; used of the window, held of it."""
        balance = self.replicas[0].known_balance(subject)
        if balance is None:
            return 0, 0, 0, 0
        return (
            balance.balance,
            balance.reserved,
            *balance.windows.get(window, (0, balance.raw.reserved_of(window or "-"))),
        )

    @staticmethod
    def expected(tokens: tuple[int, int]) -> int:
        """What a task is held: all that it asks for, at the dearer price of output."""
        return unpack(PRICE).cost(*tokens, 0, tokens[1])

    def settled(
        self, before: tuple[int, int, int, int], hold: dict[str, Any], cost: int, known: bool, generation: str
    ) -> tuple[int, int, int, int]:
        """How a subject stands when a task that was held so has cost so much."""
        there, held, used, window_held = before
        granted, of_window = hold["granted"], hold["of_window"]
        if hold["generation"] == int(generation):
            held, window_held = held - granted, window_held - of_window
        by_window = min(cost, of_window)
        by_granted = min(cost - by_window, granted)
        more = cost - by_window - by_granted
        if hold["window"] == "-":
            return there - by_granted - more, held, used, window_held
        room = max(hold["budget"] - used - window_held - by_window, 0) if known else 0
        by_window, more = by_window + min(more, room), more - min(more, room)
        left = max(there - held - by_granted, 0)
        by_granted, more = by_granted + min(more, left), more - min(more, left)
        return there - by_granted, held, used + (by_window + more if known else 0), window_held

    # ---- what may happen ----------

    @initialize(amount=st.sampled_from((300, 2000, 8000)), quota=st.sampled_from(QUOTAS))
    def begin(self, amount: int, quota: tuple[str, int, str]) -> None:
        self.quota = quota
        for subject in ("k:acme", "u:acme/ann", "k:other"):
            self.runner.run(self.balances.grant(subject, amount, grant_id=f"first {subject}", who="ops"))

    @rule(quota=st.sampled_from(QUOTAS))
    def other_quota(self, quota: tuple[str, int, str]) -> None:
        self.quota = quota

    @rule(
        user=st.sampled_from(USERS),
        tokens=st.sampled_from(((10, 20), (100, 60), (400, 600))),
        who=st.integers(0, 1),
        want=st.sampled_from((True, True, False)),
        times=st.sampled_from((1, 3, 6)),
    )
    def submit(self, user: str, tokens: tuple[int, int], who: int, want: bool, times: int) -> None:
        for _ in range(times):
            self.submit_one(user, tokens, self.replicas[who], want)

    def submit_one(self, user: str, tokens: tuple[int, int], pool: Store, want: bool) -> None:
        task, nonce, subject = f"t{next(self.numbers)}", pool.nonce(), self.payer(user)
        text, budget, window = self.budget()

        def call() -> Any:
            return pool.submit(
                task,
                want=int(want),
                nonce=nonce,
                user=user,
                estimated_input=tokens[0],
                max_output=tokens[1],
                price=PRICE,
                quota=text,
                keep_ms=FAR_MS,
            )

        price = self.expected(tokens)
        there, held, used, window_held = before = self.stands(subject, window)
        answer = call()
        if isinstance(answer, Rejected) and answer.reason == "no_balance":
            assert answer.unknown == (subject, window)
            known = pool.known_balance(subject) is not None
            self.wrong |= known  # what it used of this window may be on its way to SQL
            self.runner.run(self.balances.load(subject, window))
            there, held, used, window_held = before = self.stands(subject, window)
            answer = call()
        available = max(there - held, 0) + max(budget - used - window_held, 0)
        if isinstance(answer, Rejected):
            assert (answer.reason, answer.needed, answer.available) == ("quota", price, available)
            assert price > available
            assert self.stands(subject, window) == before, "a refusal takes nothing"
            self.seen.add("refused")
            return
        assert price <= available
        of_window = min(price, max(budget - used - window_held, 0))
        assert self.stands(subject, window) == (
            there,
            held + price - of_window,
            used,
            window_held + of_window,
        )
        self.accepted.append(task)
        self.waiting.append(task)
        self.begun(answer.grants)
        self.again.append(call)

    @rule(which=st.integers(0, 5))
    def repeat(self, which: int) -> None:
        """The reply of a submit was lost: it comes again."""
        if self.again:
            assert isinstance(self.again[-1 - which % len(self.again)](), Accepted)

    @rule(who=st.integers(0, 1), want=st.integers(1, 4))
    def take(self, who: int, want: int) -> None:
        self.begun(self.replicas[who].take("m", want=want))

    def begun(self, grants: list[Grant]) -> None:
        for grant in grants:
            if grant not in self.grants:
                self.grants.append(grant)
            if grant.task_id in self.waiting:
                self.waiting.remove(grant.task_id)

    @rule(
        which=st.integers(0, 9),
        used=st.sampled_from(((-1, -1), (10, 40, 9, 3, False), (300, 100), (30_000, 4000), (0, 0))),
        want=st.booleans(),
        twice=st.booleans(),
        output=st.booleans(),
        failed=st.sampled_from((False, False, True)),
        times=st.integers(1, 3),
    )
    def finish(self, times: int, **how: Any) -> None:
        for _ in range(min(times, len(self.grants))):
            self.finish_one(**how)

    def finish_one(
        self, which: int, used: tuple[int, ...], want: bool, twice: bool, output: bool, failed: bool
    ) -> None:
        pool, grant = self.replicas[which % 2], self.grants.pop(which % len(self.grants))
        pool.renew(*self.grants, grant)
        record = pool.record(grant.task_id)
        running = record.get("state") == "executing"
        first = output and running and record["granted_at"] == str(grant.granted_ms)
        seq = int(record.get("top", 0)) + 1
        if first:
            pool.append(grant, seq)
        hold = json.loads(record["reserved"])
        subject = [f"k:{grant.user.partition('/')[0]}", f"u:{grant.user}"][hold["whose"] == "u"]
        window = hold["window"]
        balance = pool.known_balance(subject)
        before, known = self.stands(subject, window), balance is not None and window in balance.windows
        nonce = pool.nonce()
        for _ in range(2 if twice else 1):
            answer = pool.finish(
                grant,
                seq + first,
                state="failed" if failed else "completed",
                used=used,
                want=int(want),
                nonce=nonce,
            )
        if answer.outcome == "ok":
            tokens = [max(number, 0) for number in (*used, 0, 0)[:4]]
            cost = 0 if failed else unpack(PRICE).cost(tokens[0], tokens[1], tokens[2], tokens[3])
            expected = self.settled(before, hold, cost, known, balance.generation) if balance else before
            if not answer.grants:
                assert self.stands(subject, window) == expected
            held = hold["granted"] + hold["of_window"]
            self.seen.add("less than held" if cost < held else "more than held")
        self.begun(answer.grants)

    @rule(which=st.integers(0, 9), twice=st.booleans())
    def cancel(self, which: int, twice: bool) -> None:
        if self.waiting:
            task = self.waiting.pop(which % len(self.waiting))
            for _ in range(2 if twice else 1):
                self.replicas[0].cancel(task)

    @rule(which=st.integers(0, 9))
    def stop(self, which: int) -> None:
        """A running task is cancelled: its worker runs it still, and says later what it used."""
        if self.grants:
            self.replicas[0].cancel(self.grants[which % len(self.grants)].task_id)

    @rule(which=st.integers(0, 9), lost=st.booleans())
    def give_back(self, which: int, lost: bool) -> None:
        if not self.grants:
            return
        grant = self.grants.pop(which % len(self.grants))
        if self.replicas[0].requeue(grant, "lost" if lost else "declined", begun=lost).outcome == "queued":
            self.waiting.append(grant.task_id)

    @rule(ms=st.sampled_from((1, 1, 700, 700, 61_000, DAY_MS, 3 * DAY_MS)))
    def pass_time(self, ms: int) -> None:
        """Some time, in which nobody renews anything beyond the first minutes: leases run out."""
        self.world.advance(ms)
        self.keep_alive()
        for pool in self.replicas:
            pool.renew(*self.grants)
        self.forget_lost()

    def forget_lost(self) -> None:
        """What a sweep has taken back."""
        slots = self.replicas[0].slots("m")
        for grant in [grant for grant in self.grants if grant.task_id not in slots]:
            self.grants.remove(grant)
            if self.replicas[0].state(grant.task_id) == "queued":
                self.waiting.append(grant.task_id)

    # ---- between Redis and SQL ----------

    @rule(
        user=st.sampled_from(USERS),
        amount=st.sampled_from((500, 3000, 20_000, -200)),
        of_user=st.booleans(),
        dies=st.sampled_from((False, False, True)),
        times=st.integers(1, 2),
    )
    def grant(self, user: str, amount: int, of_user: bool, dies: bool, times: int) -> None:
        subject = f"u:{user}" if of_user else f"k:{user.partition('/')[0]}"
        name, scheduler = f"g{next(self.numbers)}", self.replicas[0].scheduler

        async def die(*_: Any) -> None:
            raise StoreUnavailable("killed", sent=False)

        if dies:
            scheduler.load_balance = die  # type: ignore[method-assign,assignment]
        try:
            for time in range(times):
                made = self.runner.run(self.balances.grant(subject, amount, grant_id=name, who="ops"))
                assert made.new == (time == 0)
        finally:
            scheduler.__dict__.pop("load_balance", None)

    @rule(who=st.integers(0, 1), dies=st.sampled_from((None, None, "before", "after")))
    def carry(self, who: int, dies: str | None) -> None:
        """A consumer brings a page to SQL, or dies before or after that: then it is left to others."""

        async def go() -> None:
            outbox = self.outboxes[who]
            outbox._look_for_left_at = 0
            if dies == "before":
                await outbox._take()
            elif dies == "after":
                await outbox._record(await outbox._take())
            else:
                await outbox.carry()

        self.runner.run(go())

    @rule()
    def look(self) -> None:
        """Balances are compared, whatever is under way: nothing that was right is made wrong."""
        self.reconciler.reconcile_all()
        with capture_logs() as logs:
            self.runner.run(self.reconciler.step())
        assert self.wrong or not logs, logs

    @rule()
    def compare(self) -> None:
        """All is brought to SQL, and balances are compared until they are right."""

        async def go() -> None:
            for outbox in self.outboxes * 2:
                outbox._look_for_left_at = 0
                while await outbox.carry():
                    pass
            for _ in range(4):
                self.reconciler.reconcile_all()
                await self.reconciler.step()

        with capture_logs() as logs:
            self.runner.run(go())
        assert self.wrong or not logs, logs
        self.seen.update("put right" for _ in logs)
        self.wrong = False
        self.balances_are_the_sums_of_the_ledger()
        rows = {row.id for row in self.rows()}
        live = [*self.waiting, *(grant.task_id for grant in self.grants)]
        self.wrong = any(task in rows for task in live)  # such a task ends once more

    @rule()
    def save(self) -> None:
        self.saved = self.world.save(), [list(x) for x in (self.accepted, self.grants, self.waiting)]

    @rule(really=st.sampled_from((False, True)))
    def lose(self, really: bool) -> None:
        """Redis comes back with what was saved."""
        if really and self.saved is not None:
            store, known = self.saved
            self.world.restore(store)
            self.accepted, self.grants, self.waiting = (list(x) for x in known)
            self.again.clear()
            self.keep_alive()
            self.forget_lost()
            self.wrong = True
            self.seen.add("lost")

    @rule()
    def lose_balances(self) -> None:
        """Redis knows its tasks, but not what anybody has: they are made anew of what SQL knows, while older holds stand."""
        for name in self.world.call("ZRANGE", self.world.keys("balances"), 0, -1):
            self.world.call("DEL", self.world.keys("balance", subject=name.decode()))
            self.wrong = True
            if self.grants or self.waiting:
                self.seen.add("made anew")
        self.world.call("DEL", self.world.keys("balances"))

    @rule(who=st.integers(0, 1), used=st.sampled_from(((300, 100), (30_000, 4000))), times=st.integers(1, 3))
    def lose_what_was_paid(self, who: int, used: tuple[int, int], times: int) -> None:
        """Tasks end and SQL hears of it, and then Redis knows nothing of that."""
        self.take(who, 3)
        self.save()
        self.finish(times, which=0, used=used, want=False, twice=False, output=False, failed=False)
        self.runner.run(self.outboxes[who].carry())
        self.lose(really=True)

    # ---- what always holds ----------

    def rows(self) -> list[LedgerRow]:
        return [LedgerRow(*row) for row in self.reader.execute(str(select(ledger)))]

    @invariant()
    def what_is_held_is_what_tasks_hold(self) -> None:
        audit(self.world, self.accepted, carried=True, balances_lost="made anew" in self.seen)

    @invariant()
    def balances_are_the_sums_of_the_ledger(self) -> None:
        if self.wrong:
            return
        entries = self.world.call("XRANGE", self.world.keys("outbox"), "-", "+")
        charges = [read_charge(fields[1]) for _, fields in entries]
        on_the_way = [row for charge in charges if charge for row in rows_of(charge)]
        rows = {row[:3]: row for row in [*on_the_way, *self.rows()]}.values()
        for name in self.world.call("ZRANGE", self.world.keys("balances"), 0, -1):
            subject = name.decode()
            balance = self.replicas[0].balance(subject)
            paid = [row for row in rows if row.subject == subject and row.kind == "task"]
            assert balance.balance - balance.granted == sum(row.amount for row in paid if row.fund == GRANTED)
            for window, (used, _) in balance.windows.items():
                of_it = [row for row in paid if row.fund[0] + str(row.ends) == window]
                assert used == -sum(row.amount for row in of_it), (subject, window)


@pytest.fixture
def machine(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> type[LedgerMachine]:
    monkeypatch.setattr(outbox_module, "LEFT_MS", 0)
    monkeypatch.setattr(reconciliation_module, "CARRIED_S", 0)
    return type("LedgerHere", (LedgerMachine,), {"server": redis_server, "seen": set()})


@pytest.mark.timeout(0)
def test_any_life_of_a_ledger_is_as_the_model_says(
    machine: type[LedgerMachine], request: pytest.FixtureRequest
) -> None:
    live(machine, request.config, short=50, long=1000)
    happens = {"refused", "less than held", "more than held", "lost", "made anew", "put right"}
    assert machine.seen == happens or not request.config.getoption("--nightly"), "all of it happens"
