"""Circuit breakers and cooldowns of upstreams: when they open, which tasks they block, and how they close."""

from typing import Any

import pytest
from tests.contract.store.store import Store, fallbacks, fragment

pytestmark = pytest.mark.feature("breakers")

OPEN_MS, MAX_OPEN_MS, FAILURES, PROBES = 5000, 60_000, 5, 2
FALLS: dict[str, Any] = {"fallbacks": fallbacks("b"), "fallback_after_ms": 10_000, "asked": "route"}


class Through:
    """Tasks that run through upstreams, each by a name of its own."""

    def __init__(self, store: Store) -> None:
        self.store, self.number = store, 0
        self.offers("m")

    def offers(self, *models: str, upstreams: tuple[str, ...] = ()) -> None:
        self.store.offer(*models, upstreams=upstreams, hold_ms=10**9)

    def fail(self, times: int = 1, *, upstream: str = "", code: str = "UPSTREAM_ERROR", **more: Any) -> None:
        for _ in range(times):
            self.number += 1
            grant = self.store.run(f"failed{self.number}", upstream=upstream, **more)
            self.store.finish(grant, state="failed", code=code)

    def succeed(self, upstream: str = "") -> None:
        self.number += 1
        self.store.finish(self.store.run(f"good{self.number}", upstream=upstream))

    @property
    def is_open(self) -> bool:
        return "till" in self.store.upstream()

    def probes(self) -> list[Any]:
        """Open the breaker, and take as many probes as may run."""
        self.fail(FAILURES)
        self.store.world.advance(OPEN_MS)
        return [self.store.run(f"probe{n}", user=f"u{n}") for n in range(PROBES)]


@pytest.fixture
def through(store: Store) -> Through:
    return Through(store)


def test_failures_in_a_row_open_a_breaker_and_a_successful_probe_closes_it(
    store: Store, through: Through
) -> None:
    through.fail(FAILURES)
    answer = store.reject("new")
    assert (answer.reason, answer.retry_ms) == ("unavailable", OPEN_MS)
    store.world.check()
    store.world.advance(OPEN_MS)
    grants = [store.run(f"probe{n}") for n in range(PROBES)]
    store.submit("third")
    assert store.taken() == [], "as many probes as may are under way"
    store.finish(grants[0])
    assert store.taken() == ["third"]
    store.finish(grants[1])
    assert store.upstream() == {}
    assert len([store.run(f"after{n}") for n in range(4)]) == 4


def test_a_probe_that_fails_opens_it_for_twice_as_long_up_to_a_minute(store: Store, through: Through) -> None:
    through.fail(FAILURES)
    for ms in (5000, 10_000, 20_000, 40_000, 60_000, 60_000):
        assert store.reject("new").retry_ms == ms
        store.world.advance(ms)
        through.fail()


def test_few_failures_or_fewer_than_half_or_old_ones_open_nothing(store: Store, through: Through) -> None:
    for _ in range(20):
        through.fail()
        through.succeed()
        through.succeed()
    assert not through.is_open
    for _ in range(FAILURES):
        store.world.advance(61_000)
        through.fail()
    assert not through.is_open, "failures of more than a minute ago do not count"


@pytest.mark.parametrize(
    ("code", "more", "opens"),
    [
        *((code, {}, False) for code in ("WORKER_ERROR", "BAD_REQUEST", "CONTEXT_LENGTH", "TOTAL_TIMEOUT")),
        *((code, {}, True) for code in ("UPSTREAM_ERROR", "CONNECT_TIMEOUT", "JSON_PARSE_FAILED")),
        ("JSON_PARSE_FAILED", {"answer": "object"}, False),
    ],
)
def test_failures_count_by_code(through: Through, code: str, more: dict[str, str], opens: bool) -> None:
    through.fail(FAILURES, code=code, **more)
    assert through.is_open == opens


@pytest.mark.feature("fallbacks")
def test_tasks_fall_back_while_all_breakers_of_their_model_are_open(store: Store, through: Through) -> None:
    through.offers("b")
    running = [store.run(f"runs{n}", user=f"u{n}") for n in range(FAILURES)]
    for n in range(3):
        store.submit(f"waits{n}", **FALLS)
    for grant in running:
        store.finish(grant, state="failed", code="UPSTREAM_ERROR")
    store.sweep()
    assert [store.task(f"waits{n}").model for n in range(3)] == ["b"] * 3
    assert store.task("waits0").moves == [("m", "breaker_open")]
    assert store.accept("new", **FALLS).model == "b"


def test_one_upstream_that_fails_does_not_block_others_of_its_model(store: Store, through: Through) -> None:
    through.offers("m", upstreams=("bad", "good"))
    through.fail(FAILURES, upstream="bad")
    store.accept("t")
    answer = store.ask("m", upstream="bad")
    assert (answer.grants, answer.closed_upstreams, answer.retry_at) == ([], {"m": OPEN_MS}, {"m": OPEN_MS})
    (grant,) = store.take("m", upstream="good")
    store.finish(grant)
    store.world.advance(OPEN_MS)
    probe = store.run("p", upstream="bad")
    assert store.task("p").probe
    store.finish(probe)
    through.succeed("bad")
    assert store.upstream("bad") == {}


@pytest.mark.feature("pacing")
def test_a_429_holds_the_upstream_that_answered_it_and_not_its_model(store: Store, through: Through) -> None:
    through.offers("m", upstreams=("one", "two"))
    store.requeue(store.run("t", upstream="one"), "declined", hold_ms=30_000)
    assert store.take("m", upstream="one") == []
    (grant,) = store.take("m", upstream="two")
    store.requeue(grant, "declined", hold_ms=20_000)
    assert store.take("m", upstream="two") == []
    assert store.accept("more").state == "queued"
    assert store.ask("m", upstream="one").retry_at == {"m": 20_000}, "until the first is not held"
    store.world.advance(20_000)
    assert store.take("m", upstream="one") == []
    assert len(store.take("m", upstream="two", want=2)) == 2


def test_attempts_from_before_a_breaker_opened_do_not_count(store: Store, through: Through) -> None:
    early = [store.run(f"early{n}") for n in range(6)]
    through.fail(FAILURES)
    for grant in early[:3]:
        store.finish(grant)
    assert store.reject("new").reason == "unavailable"
    store.world.advance(OPEN_MS)
    for grant in early[3:]:
        store.finish(grant, state="failed", code="UPSTREAM_ERROR")
    assert store.run("probe").task_id == "probe"


def test_an_operator_can_force_a_breaker_open_or_closed_and_release_it(
    store: Store, through: Through
) -> None:
    through.offers("m", upstreams=("up",))
    with pytest.raises(LookupError):
        store.force_breaker("m", "other", "open")
    store.heard()
    assert store.force_breaker("m", "up", "open") == "auto"
    assert store.reject("new").retry_ms == MAX_OPEN_MS
    store.world.advance(10 * MAX_OPEN_MS)
    through.offers("m", upstreams=("up",))
    assert store.reject("new").reason == "unavailable"
    assert store.force_breaker("m", "up", "closed") == "open"
    through.fail(2 * FAILURES, upstream="up")
    store.run("t", upstream="up")
    assert store.force_breaker("m", "up", "auto") == "closed"
    assert store.upstream("up") == {}
    told = [message for message in store.heard() if message[0] == "breaker"]
    assert [(what, why, model, up) for _, what, _, _, why, model, up in told] == [
        (what, "FORCED", "m", "up") for what in ("open", "closed", "closed")
    ]


def test_replicas_are_notified_when_a_breaker_opens_and_closes(store: Store, through: Through) -> None:
    store.heard()
    for grant in through.probes():
        store.finish(grant)
    told = [message[1:] for message in store.heard() if message[0] == "breaker"]
    assert told == [
        ("open", "5000", "r1", "UPSTREAM_ERROR", "m", ""),
        ("probing", "0", "r1", "", "m", ""),
        ("probing", "0", "r1", "", "m", ""),
        ("closed", "0", "r1", "", "m", ""),
    ]


def test_a_model_can_have_its_own_bounds_or_no_breaker(store: Store, through: Through) -> None:
    store.set_model(breaker_failures=0)
    through.fail(3 * FAILURES)
    assert store.upstream() == {}
    store.set_model(breaker_failures=2, breaker_open_ms=90_000)
    through.fail()
    store.world.advance(61_000)
    through.offers("m")
    through.fail()
    assert not through.is_open
    through.fail()
    assert store.reject("new").retry_ms == MAX_OPEN_MS
    store.world.advance(89_999)
    assert store.reject("new").retry_ms == 1


def test_names_that_clients_choose_have_no_breaker(store: Store, through: Through) -> None:
    through.offers("*")
    for n in range(3 * FAILURES):
        store.submit(f"t{n}", f"name{n}")
        store.finish(store.take("*")[0], state="failed", code="UPSTREAM_ERROR")
    assert not [name for name in store.world.names() if "upstream" in name]


def test_old_outcomes_are_forgotten(store: Store, through: Through) -> None:
    through.fail()
    assert [name for name in store.world.names() if "upstream" in name]
    store.pass_time(62_000)
    assert not [name for name in store.world.names() if "upstream" in name]
    through.fail(FAILURES)
    store.world.advance(3_700_000)
    store.sweep()
    assert store.upstream() == {}, "nothing has tried it for an hour"


@pytest.mark.parametrize(("waits", "outcome"), [(True, "ended"), (False, "queued")])
def test_a_sync_task_ends_when_the_breaker_of_its_upstream_opens(
    store: Store, through: Through, waits: bool, outcome: str
) -> None:
    grant = store.run("t", waiting=waits)
    through.fail(FAILURES)
    end = fragment("no", "UPSTREAM_ERROR", retryable=True)
    assert store.requeue(grant, "failed", begun=True, end=end, why="UPSTREAM_ERROR").outcome == outcome
    assert store.task("t").code == ("UPSTREAM_ERROR" if waits else "")


def test_sync_tasks_end_when_the_probes_have_failed_too(store: Store, through: Through) -> None:
    probes = through.probes()
    for task in ("waits", "async"):
        store.submit(task, user="u", waiting=task != "async")
    for grant in probes:
        store.finish(grant, state="failed", code="CONNECT_TIMEOUT")
    store.sweep()
    assert (store.end("waits"), store.state("async")) == (("failed", "MODEL_UNAVAILABLE"), "queued")


def test_the_first_output_of_a_probe_counts_as_success(store: Store, through: Through) -> None:
    probes = through.probes()
    store.submit("next")
    assert store.taken() == []
    store.append(probes[0], 2)
    (third,) = store.take()
    store.append(third, 2)
    assert store.upstream() == {}, "two of them have output; none has ended"
    for grant in (probes[0], third):
        store.finish(grant, 3)
    store.finish(probes[1], state="failed", code="UPSTREAM_ERROR")
    assert store.upstream() == {}
