"""Which of two rejections wins, for every pair of reasons; and that a rejection leaves nothing behind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import pytest
from tests.contract.store.store import DISABLED, Store, idempotency_key, price, uses

USER = "acme/ann"
ONE_REQUEST = {"requests_per_day": 1}


def key(name: str, fingerprint: str) -> str:
    """An idempotency key of which its user may have one."""
    return idempotency_key(name, fingerprint, 60_000, most=1, period_ms=60_000)


@dataclass(frozen=True)
class Reason:
    """A reason to reject: how it comes about, and the fields of a task that it concerns."""

    name: str
    arrange: Callable[[Store], Any] = lambda store: None
    task: dict[str, Any] = field(default_factory=dict)
    feature: str = ""
    retries: bool = True
    """The reply names a time to retry."""


PAID = {"price": price(request=100), "quota": "k"}
REASONS = [
    Reason("cancelled", lambda store: store.cancel("x", tombstone_ms=60_000), retries=False),
    Reason(
        "other", task={"idempotency": key("one", "another request")}, feature="idempotency", retries=False
    ),
    Reason("idempotency_keys", task={"idempotency": key("two", "print")}, feature="idempotency"),
    Reason("no_worker", lambda store: store.offer(withdrawn=["m"])),
    Reason("unavailable", lambda store: store.force_breaker("m", "up", "open"), feature="breakers"),
    Reason("rate_limited", task={"key_limits": ONE_REQUEST}, feature="limits"),
    Reason("user_full", lambda store: store.set_model(max_waiting_per_user=1)),
    Reason("no_balance", task=PAID, feature="credits", retries=False),
    Reason("quota", lambda store: store.fund("k:acme", 1), PAID, feature="credits", retries=False),
    Reason("used_up", task={"uses": uses("token", 1)}, feature="signed_tokens", retries=False),
    Reason("full", lambda store: store.set_queue("free", max_length=1)),
    Reason("too_long", task={"timeout_ms": 8000}),
    Reason("full_bytes", lambda store: store.world.bound(max_queued_bytes=100), {"payload": b"x" * 20_000}),
]
"""In their order: the first one wins."""
IMPOSSIBLE = {("no_balance", "quota")}


def params() -> list[Any]:
    """Each reason alone, and each pair."""
    found = [(one,) for one in REASONS]
    found += [pair for pair in combinations(REASONS, 2) if tuple(one.name for one in pair) not in IMPOSSIBLE]  # type: ignore[misc]
    return [
        pytest.param(
            reasons,
            marks=[pytest.mark.feature(one.feature) for one in reasons if one.feature],
            id="-".join(one.name for one in reasons),
        )
        for reasons in found
    ]


@pytest.fixture
def busy(store: Store) -> Store:
    """A model with one slot from which a task leaves each second. One user has an accepted task that used up its idempotency key,
    its limit and its token, and many more that wait."""
    store.configure(1)
    store.offer("m", upstreams=["up"])
    for n in range(25):
        store.submit(f"warm{n}", user=f"w{n}")
    (running,) = store.take(upstream="up")
    for _ in range(24):
        store.world.advance(1000)
        store.offer("m", upstreams=["up"])
        (running,) = store.finish(running, want=1, upstream="up").grants
    first = {
        "idempotency": ("idempotency", key("one", "print")),
        "limits": ("key_limits", ONE_REQUEST),
        "signed_tokens": ("uses", uses("token", 1)),
    }
    enabled = dict(field for feature, field in first.items() if feature not in DISABLED)
    store.accept("first", user=USER, **enabled)
    for n in range(30):
        store.accept(f"waits{n}", user=USER)
    return store


def test_without_a_reason_the_task_is_accepted(busy: Store) -> None:
    busy.accept("x", user=USER)


@pytest.mark.parametrize("reasons", params())
def test_the_first_reason_of_the_order_wins_and_nothing_is_left(
    busy: Store, reasons: tuple[Reason, ...]
) -> None:
    task: dict[str, Any] = {}
    for reason in reversed(reasons):
        reason.arrange(busy)
        task.update(reason.task)
    before = busy.world.contents()
    answer = busy.reject("x", user=USER, **task)
    assert answer.reason == reasons[0].name
    assert (answer.retry_ms > 0) == reasons[0].retries
    assert busy.world.contents() == before
