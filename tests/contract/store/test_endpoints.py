"""Endpoints: workers of every model do not serve them, nothing starts without their limits; permits to call them work once."""

import pytest
from tests.contract.store.store import ANY_MODEL, Grant, Store

pytestmark = pytest.mark.feature("endpoints")

IMAGE = "http:image"
UNUSED_MS, USED_MS = 30_000, 60_000
permits = pytest.mark.feature("permits")


@pytest.fixture(autouse=True)
def endpoint(store: Store) -> None:
    """An endpoint that takes two requests at a time."""
    limit(store, 2)


def limit(store: Store, number: int) -> None:
    store.configure(number, "requests", model=IMAGE)


def test_workers_of_every_model_neither_count_nor_get_anything_nor_are_woken(store: Store) -> None:
    store.offer(ANY_MODEL)
    assert store.reject("a", IMAGE, want=1, waiting=True).reason == "no_worker"
    assert store.accept("d", IMAGE, want=1).state == "queued", (
        "no client waits for it, and its worker may return"
    )
    other = store.replica("r2")
    other.offer(IMAGE)
    assert store.take(ANY_MODEL) == []
    store.heard()
    other.accept("b", IMAGE)
    other.accept("c", "another")
    assert store.taken(ANY_MODEL, want=5) == ["c"]
    assert not [message for message in store.heard() if IMAGE in message]
    assert sorted(other.taken(IMAGE, want=5)) == ["b", "d"]


def test_nothing_starts_without_the_limits_of_an_endpoint(store: Store) -> None:
    store.offer(IMAGE)
    for task in ("a", "b"):
        store.submit(task, IMAGE)
    store.apply()
    assert store.take(IMAGE) == []
    assert store.accept("c", IMAGE, want=1).state == "queued"
    limit(store, 1)
    assert store.taken(IMAGE, want=5) == ["a"]


# ---- permits ----------


def pass_time(store: Store, ms: int) -> None:
    """Time in which the replica lives."""
    for at in range(0, ms, 5000):
        store.offer()
        store.pass_time(min(5000, ms - at))
    store.offer()


def issued(store: Store, task: str, user: str = "u", **more: object) -> Grant:
    """Ask for a permit, and issue it."""
    store.ask_permit(task, IMAGE, user=user, **more)
    (grant,) = store.take_permits(IMAGE)
    assert grant.task_id == task
    assert store.issue_permit(grant, UNUSED_MS, USED_MS)
    return grant


def use(store: Store, grant: Grant, nonce: str = "") -> str:
    return store.use_permit(grant, nonce)[0]


@permits
def test_replicas_take_permits_and_workers_take_calls(store: Store) -> None:
    store.offer(IMAGE)
    store.submit("call", IMAGE, task_type="http")
    store.ask_permit("permit", IMAGE, user="v")
    assert store.taken(IMAGE, want=5) == ["call"]
    assert [grant.task_id for grant in store.take_permits(IMAGE)] == ["permit"]


@permits
def test_a_freed_slot_wakes_a_worker_or_a_replica_as_the_next_task_needs(store: Store) -> None:
    store.offer(IMAGE)
    limit(store, 1)
    first = store.run("call", IMAGE, task_type="http")
    store.heard()
    store.ask_permit("permit", IMAGE)
    assert store.heard() == []
    store.finish(first, want=1, models=(IMAGE,))
    assert store.heard() == [("permit", IMAGE)]
    (grant,) = store.take_permits(IMAGE)
    store.issue_permit(grant)
    store.submit("later", IMAGE, task_type="http")
    store.ask(IMAGE)
    store.heard()
    assert (use(store, grant), store.release_permit(grant)) == ("in", "ended")
    assert store.heard() == [("wake", IMAGE)]


@permits
def test_a_permit_that_is_issued_is_an_event_of_its_log(store: Store) -> None:
    store.ask_permit("a", IMAGE)
    (grant,) = store.take_permits(IMAGE)
    data = store.issue_permit(grant, UNUSED_MS, USED_MS)
    now = store.world.now_ms
    assert data == {"taskId": "a", "ts": now, "permit": "p", "expiresAt": now + UNUSED_MS}
    assert store.issue_permit(grant, UNUSED_MS, USED_MS) == data, "the reply was lost"
    assert (store.kinds("a"), store.slots(IMAGE)) == (["start", "permit"], {"a": UNUSED_MS})


@permits
def test_a_permit_does_not_outlast_the_deadline_of_its_task(store: Store) -> None:
    store.ask_permit("a", IMAGE, timeout_ms=10_000)
    data = store.issue_permit(store.take_permits(IMAGE)[0])
    assert data is not None
    assert data["expiresAt"] == store.world.now_ms + 10_000


@permits
def test_a_replica_that_dies_before_it_issues_a_permit_costs_nothing(store: Store) -> None:
    store.ask_permit("a", IMAGE)
    (lost,) = store.take_permits(IMAGE)
    pass_time(store, 5000)
    assert store.state("a") == "queued"
    other = store.replica("r2")
    other.offer()
    (grant,) = other.take_permits(IMAGE)
    assert grant.epoch > lost.epoch
    assert store.issue_permit(grant)
    assert store.issue_permit(lost) is None, "it comes too late"
    assert (use(store, lost), use(store, grant)) == ("over", "in")
    assert store.task("a").tries == 0


@permits
def test_a_permit_works_once_over_all_replicas(store: Store) -> None:
    grant = issued(store, "a", payload=b"body")
    other = store.replica("r2")
    assert [use(other, grant, nonce) for nonce in ("n1", "n1", "n2")] == ["in", "in", "used"]
    assert use(store, grant) == "used"
    assert (store.slots(IMAGE), store.payload("a")) == ({"a": USED_MS}, None)


@permits
def test_a_used_permit_holds_its_slot_until_its_end_is_reported(store: Store) -> None:
    first, second = issued(store, "a"), issued(store, "b")
    store.ask_permit("c", IMAGE)
    assert use(store, first) == "in"
    pass_time(store, UNUSED_MS - 1000)
    assert use(store, second) == "in"
    pass_time(store, 10_000)
    assert store.take_permits(IMAGE) == [], "both are taken"
    assert store.release_permit(first) == "ended"
    assert [grant.task_id for grant in store.take_permits(IMAGE)] == ["c"]
    assert store.release_permit(first) == "over"
    assert (store.state("a"), store.kinds("a"), store.state("b")) == (
        *("completed", ["start", "permit", "done"]),
        "executing",
    )
    assert store.usage()["a"]["state"] == "completed"


@permits
def test_a_used_permit_ends_when_its_time_is_over(store: Store) -> None:
    grant = issued(store, "a")
    assert use(store, grant) == "in"
    pass_time(store, USED_MS - 1000)
    assert store.state("a") == "executing"
    pass_time(store, 2000)
    last = store.last("a")
    assert (store.state("a"), last.kind, b'"reported":false' in last.data) == ("completed", "done", True)
    assert (store.release_permit(grant), store.slots(IMAGE)) == ("over", {})


@permits
def test_an_unused_permit_returns_its_slot_and_fails(store: Store) -> None:
    limit(store, 1)
    grant = issued(store, "a")
    store.ask_permit("b", IMAGE, user="v")
    assert store.take_permits(IMAGE) == []
    pass_time(store, UNUSED_MS)
    assert store.end("a") == ("failed", "PERMIT_EXPIRED")
    assert [one.task_id for one in store.take_permits(IMAGE)] == ["b"]
    assert use(store, grant) == "over"


@permits
@pytest.mark.parametrize("uses_late", [False, True])
def test_a_user_who_wastes_permits_takes_no_more_of_the_line_than_others(
    store: Store, uses_late: bool
) -> None:
    """Not even one who uses each in the last instant: the time in which others could have called counts."""
    limit(store, 1)
    for number in range(60):
        for user in ("waster", "user"):
            store.ask_permit(f"{user}{number}", IMAGE, user=user)
    held = {"waster": 0, "user": 0}
    while held["user"] < 2 * UNUSED_MS:
        (grant,) = store.take_permits(IMAGE)
        store.issue_permit(grant, UNUSED_MS, USED_MS)
        began = store.world.now_ms
        if grant.user == "waster":
            pass_time(store, UNUSED_MS - 1000 if uses_late else UNUSED_MS)
        if grant.user == "user" or uses_late:
            assert use(store, grant) == "in"
            pass_time(store, 1000)
            assert store.release_permit(grant) == "ended"
        held[grant.user] += store.world.now_ms - began
    assert held["user"] / 2 <= held["waster"] <= held["user"] + 2 * UNUSED_MS


@permits
def test_the_duration_of_a_call_costs_no_turns(store: Store) -> None:
    limit(store, 1)
    for number in range(4):
        for user in ("slow", "quick"):
            store.ask_permit(f"{user}{number}", IMAGE, user=user)
    order = []
    for _ in range(8):
        (grant,) = store.take_permits(IMAGE)
        store.issue_permit(grant)
        use(store, grant)
        pass_time(store, 20_000 if grant.user == "slow" else 1000)
        store.release_permit(grant)
        order.append(grant.user)
    assert order == ["slow", "quick"] * 4


@permits
@pytest.mark.feature("pacing")
def test_a_permit_counts_in_a_window_until_it_is_used_and_a_window_longer(store: Store) -> None:
    limit(store, 0)
    store.set_model(IMAGE, windows="2/1s")
    first, second = issued(store, "a"), issued(store, "b")
    store.ask_permit("c", IMAGE)
    pass_time(store, 5000)
    assert store.take_permits(IMAGE) == [], "neither has left"
    assert use(store, first) == "in"
    store.world.advance(500)
    assert store.use_permit(second)[1] == {IMAGE: 530}, (
        "the first request arrived 30 ms after the check at most"
    )
    store.world.advance(529)
    assert store.take_permits(IMAGE) == []
    store.world.advance(1)
    assert [grant.task_id for grant in store.take_permits(IMAGE)] == ["c"]


@permits
@pytest.mark.feature("pacing")
@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_an_unused_permit_counts_in_no_window(store: Store, how: str) -> None:
    limit(store, 0)
    store.set_model(IMAGE, windows="1/1h")
    issued(store, "a")
    store.ask_permit("b", IMAGE)
    assert store.take_permits(IMAGE) == []
    if how == "cancelled":
        store.cancel("a")
    else:
        pass_time(store, UNUSED_MS)
    assert [grant.task_id for grant in store.take_permits(IMAGE)] == ["b"]


@permits
def test_cancelling_an_unused_permit_frees_its_slot_immediately(store: Store) -> None:
    limit(store, 1)
    grant = issued(store, "a")
    store.ask_permit("b", IMAGE)
    store.heard()
    store.ask_permit("c", IMAGE)
    assert store.cancel("a").outcome == "ended"
    assert ("permit", IMAGE) in store.heard()
    assert use(store, grant) == "over"
    assert [one.task_id for one in store.take_permits(IMAGE)] == ["b"]


@permits
@pytest.mark.parametrize("reported", [True, False])
def test_a_call_that_is_under_way_keeps_its_slot_though_its_task_is_cancelled(
    store: Store, reported: bool
) -> None:
    limit(store, 1)
    grant = issued(store, "a")
    store.ask_permit("b", IMAGE, user="v")
    use(store, grant)
    store.cancel("a")
    assert (store.state("a"), use(store, grant)) == ("cancelled", "used")
    pass_time(store, USED_MS // 2)
    assert store.take_permits(IMAGE) == []
    if reported:
        assert store.release_permit(grant) == "over"
    else:
        pass_time(store, USED_MS // 2)
    assert [one.task_id for one in store.take_permits(IMAGE)] == ["b"]
    assert list(store.usage()) == ["a"]
