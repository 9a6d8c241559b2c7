"""Overrides on top of the configuration: applied in one step, the newest wins, each step in the audit log."""

import json
from typing import Any, cast

import msgspec
import pytest
from tests.contract.store.store import World, drive
from tests.support.audit import audit
from tests.support.pool import OPS, Pool

from fairlane.queues.overrides import ALL, Actor, Override, Overrides, OverrideStore, Rejected
from fairlane.queues.rules import MODEL_SETTINGS, QUEUE_SETTINGS, Value
from fairlane.queues.store.link import RedisLink

QUEUE_VALUES: dict[str, Value] = {
    "weight": 2.5,
    "max_length": 7,
    "max_wait_ms": 1234,
    "max_running": 3,
    "reserved": 2,
    "admission": "adaptive",
    "paused": True,
}
MODEL_VALUES: dict[str, Value] = {
    "concurrency": 3,
    "cost": "slot_seconds",
    "requests_per_minute": 90,
    "tokens_per_minute": 1000,
    "windows": "3/1s, 90/1m",
    "max_running_per_user": 2,
    "max_waiting_per_user": 4,
    "breaker_failures": 9,
    "breaker_open_ms": 2000,
    "paused": True,
}


def configure(pool: Pool, queues: dict[str, Any] | None = None, models: dict[str, Any] | None = None) -> None:
    drive(pool.scheduler.configure(queues or {}, models or {}))


def effective(pool: Pool, kind: Any, name: str) -> tuple[dict[str, Value], dict[str, Value]]:
    settled = drive(pool.scheduler.effective(kind, name))
    return settled.values, settled.overrides


def trail(world: World) -> list[dict[str, Any]]:
    """What was written down of changes, on its way to SQL."""
    names = ("id", "who", "address", "action", "target", "before", "after")
    entries = world.call("XRANGE", world.keys("outbox"), "-", "+")
    return [
        dict(zip(names, msgspec.msgpack.decode(flat[1]), strict=True))
        for _, flat in entries
        if flat[0] == b"audit"
    ]


def test_the_tables_name_every_setting() -> None:
    assert (set(QUEUE_VALUES), set(MODEL_VALUES)) == (set(QUEUE_SETTINGS), set(MODEL_SETTINGS))


@pytest.mark.parametrize(
    ("kind", "name", "setting", "value"),
    [("queue", "free", *item) for item in QUEUE_VALUES.items()]
    + [("model", "llama:7b é", *item) for item in MODEL_VALUES.items()],
)
def test_a_setting_can_be_changed_and_rolled_back(
    world: World, kind: Any, name: str, setting: str, value: Value
) -> None:
    pool = Pool(world)
    was = effective(pool, kind, name)[0].get(setting)
    change = drive(pool.scheduler.override(kind, name, {setting: value}, OPS))
    assert (change.before, change.after) == ({setting: was}, {setting: value})
    values, overrides = effective(pool, kind, name)
    assert (values[setting], overrides) == (value, {setting: value})
    assert type(values[setting]) is type(value)
    back = drive(pool.scheduler.override(kind, name, {setting: None}, OPS))
    assert (back.before, back.after) == ({setting: value}, {setting: was})
    values, overrides = effective(pool, kind, name)
    assert (values.get(setting), overrides) == (was, {})


@pytest.mark.parametrize("kind", ["queue", "model"])
def test_overrides_survive_the_configuration_until_they_are_rolled_back(world: World, kind: Any) -> None:
    pool = Pool(world)
    setting, name = ("max_running", "free") if kind == "queue" else ("concurrency", "m")

    def says(value: int | None) -> None:
        if kind == "queue":
            configure(pool, {name: {setting: value}})
        else:
            configure(pool, {}, {name: {setting: value}})

    says(5)
    drive(pool.scheduler.override(kind, name, {setting: 9}, OPS))
    for configured in (6, None, 7):
        says(configured)
        assert effective(pool, kind, name) == ({setting: 9}, {setting: 9})
    change = drive(pool.scheduler.override(kind, name, {setting: None}, OPS))
    assert (change.before, change.after) == ({setting: 9}, {setting: 7})
    assert effective(pool, kind, name) == ({setting: 7}, {})
    says(None)
    assert effective(pool, kind, name) == ({}, {})


def test_a_false_or_zero_override_is_not_the_same_as_none(world: World) -> None:
    pool = Pool(world)
    configure(pool, {"free": {"max_running": 1, "reserved": 3}}, {"m": {"concurrency": 2}})
    pool.set_queue("free", max_running=0, reserved=0)
    pool.set_model("m", concurrency=0, paused=False)
    assert effective(pool, "queue", "free")[1] == {"max_running": 0, "reserved": 0}
    assert effective(pool, "model", "m")[1] == {"concurrency": 0, "paused": False}
    for n in range(4):
        pool.submit(f"t{n}")
    assert len(pool.take(want=9)) == 4, "0 = no limit"


def test_an_unknown_queue_changes_nothing(world: World) -> None:
    pool = Pool(world)
    before = sorted(world.call("KEYS", "*"))
    assert drive(pool.scheduler.override("queue", "fre", {"paused": True}, OPS)) is None
    assert sorted(world.call("KEYS", "*")) == before


def test_an_unknown_setting_is_an_error_and_changes_nothing(world: World) -> None:
    pool = Pool(world)
    with pytest.raises(KeyError):
        pool.set_queue("free", max_running=1, tempo=3)
    assert effective(pool, "queue", "free") == ({"weight": 1.0}, {})
    assert trail(world) == []


def test_a_model_without_overrides_is_forgotten_like_any_other(world: World) -> None:
    pool = Pool(world)
    pool.set_model("other", concurrency=3)
    pool.set_model("other", concurrency=None)
    pool.pass_time(3_700_000, step_ms=4000)
    assert world.call("EXISTS", world.keys("model", model="other")) == 0
    assert world.call("ZSCORE", world.keys("models"), "other") is None


def test_an_override_is_kept_while_its_model_is_idle(world: World) -> None:
    pool = Pool(world)
    pool.set_model("other", concurrency=3)
    pool.pass_time(3_700_000, step_ms=4000)
    assert effective(pool, "model", "other") == ({"concurrency": 3}, {"concurrency": 3})


def test_every_change_is_logged_with_the_values_before_and_after(world: World) -> None:
    pool = Pool(world)
    first = pool.set_queue("free", weight=3.0, max_running=2)
    second = pool.set_model("llama:7b é", paused=True)
    third = pool.set_queue("free", weight=None)
    entries = trail(world)
    assert [entry["id"] for entry in entries] == [c.audit_id for c in (first, second, third)]
    assert [(e["who"], e["address"], e["action"], e["target"]) for e in entries] == [
        (*OPS, "update", target) for target in ("queue free", "model llama:7b é", "queue free")
    ]
    assert [(json.loads(e["before"]), json.loads(e["after"])) for e in entries] == [
        ({"weight": "1.0", "max_running": None}, {"weight": "3.0", "max_running": "2"}),
        ({"paused": None}, {"paused": "1"}),
        ({"weight": "3.0"}, {"weight": "1.0"}),
    ]


def test_a_change_of_nothing_is_no_error(world: World) -> None:
    change = Pool(world).set_queue("free")
    assert (change.before, change.after) == ({}, {})


def test_switching_every_rule_on_and_off_leaves_the_books_right(world: World) -> None:
    pool = Pool(world)
    tasks = [f"t{n}" for n in range(12)]
    for n, task in enumerate(tasks):
        pool.submit(task, queue="free" if n % 2 else "paid", user=f"u{n % 3}")
    running = pool.take(want=3)
    for values, change, name in ((QUEUE_VALUES, pool.set_queue, "free"), (MODEL_VALUES, pool.set_model, "m")):
        for setting, value in values.items():
            change(name, **{setting: value})
            running += pool.take()
            audit(world, tasks)
        for setting in values:
            change(name, **{setting: None})
            running += pool.take()
            audit(world, tasks)
    for grant in running:
        pool.finish(grant)
    audit(world, tasks)
    world.advance(120_000)
    pool.offer("m")
    assert len(pool.take(want=12)) == 12 - len(running)


def test_what_is_configured_for_a_model_is_not_taken_for_that_of_a_shorter_name(world: World) -> None:
    pool = Pool(world)
    drive(pool.scheduler.configure({}, {"a:b": {"concurrency": 3}}))
    pool.set_model("a", concurrency=2)
    pool.set_model("a", concurrency=None)
    pool.set_model("a:b", paused=True)
    assert world.call("HGET", world.keys("model", model="a"), "fixed") is None
    assert world.call("HGET", world.keys("model", model="a:b"), "fixed") == b"1"


# ---- overrides as objects ----------

EVE = Actor("eve", "192.0.2.9")


class Store:
    """The calls of one store, answered immediately."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = OverrideStore(cast(RedisLink, world.link))
        self.pool = Pool(world, limit=8)
        self._number = 0

    def create(self, target: Any, name: str, values: dict[str, Any], **more: Any) -> Any:
        self._number += 1
        check = more.pop("check", False)
        override = Override(target, name, values, **{"id": f"o{self._number}", **more})
        return drive(self.store.create(override, OPS, check=check))

    def all(self) -> Overrides:
        known: Overrides = drive(self.store.all())
        return known

    def values(self, kind: Any = "model", name: str = "m") -> dict[str, Value]:
        found: dict[str, Value] = drive(self.pool.scheduler.effective(kind, name)).values
        return found

    def sweep(self, replica: str = "r1") -> bytes:
        """The version that a sweep returns."""
        versions: list[bytes] = []
        scheduler = self.world.scheduler(replica)
        scheduler.on_overrides = versions.append
        drive(scheduler.sweep())
        return versions[0]


@pytest.fixture
def store(world: World) -> Store:
    return Store(world)


def test_an_override_holds_immediately_and_every_sweep_returns_the_new_version(store: Store) -> None:
    assert (store.sweep(), store.all().overrides) == (b"", [])
    values = {"model": "b", "tiers.paid.fallbacks": [], "repair": None}
    created = store.create("route", "r", values, percent=10)
    assert (created.values, created.percent, created.status) == (values, 10, "active")
    assert (created.created_by, created.created_ms) == ("ops", store.world.now_ms)
    assert store.sweep("r1") == store.sweep("r2") == store.all().version != b""
    assert store.all().overrides == [created]
    assert store.create("route", "r", values, id=created.id) == created, "a repeated call changes nothing"
    [entry] = trail(store.world)
    assert (entry["who"], entry["action"], entry["target"]) == ("ops", "create", "override o1")
    assert json.loads(entry["after"]) == {
        "target": "route",
        "name": "r",
        "values": values,
        "percent": 10,
        "until": None,
    }


def test_an_override_ends_by_itself_once_and_the_value_below_it_holds_again(store: Store) -> None:
    now = store.world.now_ms
    store.create("model", "m", {"concurrency": 3, "first_output_ms": 5}, until_ms=now + 9000)
    store.create("model", "m", {"concurrency": 2}, until_ms=now + 4000)
    assert store.values()["concurrency"] == 2
    for passed, concurrency in ((4000, 3), (5000, 8)):
        store.world.advance(passed)
        for replica in ("r1", "r2"):
            store.sweep(replica)
        assert store.values()["concurrency"] == concurrency
    assert store.all().overrides == []
    ends = [(entry["who"], entry["target"]) for entry in trail(store.world) if entry["action"] == "end"]
    assert ends == [("ops", "override o2"), ("ops", "override o1")]
    assert store.world.call("ZCARD", store.world.keys("override_ends")) == 0


def test_rolling_back_in_any_order_leaves_what_the_others_set(store: Store) -> None:
    configure(store.pool, {}, {"m": {"concurrency": 8}})
    for concurrency in (2, 3):
        store.create("model", "m", {"concurrency": concurrency})
    configure(store.pool, {}, {"m": {"concurrency": 7}})
    drive(store.store.roll_back("o1", EVE))
    assert store.values()["concurrency"] == 3
    drive(store.store.roll_back("o2", EVE))
    assert store.values()["concurrency"] == 7
    assert drive(store.store.roll_back("o2", EVE)) == Rejected("unknown")
    assert [entry["action"] for entry in trail(store.world)] == ["create", "create", "rollback", "rollback"]


def test_a_promoted_override_is_the_baseline_of_later_ones(store: Store) -> None:
    store.create("model", "m", {"concurrency": 2, "paused": True}, until_ms=store.world.now_ms + 1000)
    promoted = drive(store.store.promote("o1", EVE))
    assert (promoted.status, promoted.percent, promoted.until_ms) == ("promoted", ALL, 0)
    assert drive(store.store.promote("o1", EVE)) == promoted
    store.create("model", "m", {"concurrency": 3})
    drive(store.store.promote("o2", EVE))
    assert [one.values for one in store.all().overrides] == [{"paused": True}, {"concurrency": 3}]
    drive(store.pool.scheduler.override("model", "m", {"concurrency": 4, "paused": None}, OPS))
    assert [(one.values, one.status) for one in store.all().overrides] == [({"concurrency": 4}, "promoted")]
    assert drive(store.store.update("o1", EVE, percent=3)) == Rejected("unknown")
    [left] = store.all().overrides
    assert drive(store.store.update(left.id, EVE, percent=3)) == Rejected("promoted")
    drive(store.store.roll_back(left.id, EVE))
    assert store.values()["concurrency"] == 8
    assert store.values().get("paused") is None


def test_share_and_end_are_updated_and_two_shares_of_one_route_conflict(store: Store) -> None:
    now = store.world.now_ms
    store.create("route", "r", {"model": "b"}, percent=10)
    assert store.create("route", "r", {"mode": "batch"}, percent=20) == Rejected("conflict", "o1")
    assert store.create("route", "other", {"mode": "batch"}, percent=20).id == "o3"
    assert store.create("route", "r", {"mode": "batch"}).percent == ALL
    assert drive(store.store.update("o4", EVE, percent=20)) == Rejected("conflict", "o1")
    updated = drive(store.store.update("o1", EVE, percent=50, until_ms=now + 5))
    assert (updated.percent, updated.until_ms) == (50, now + 5)
    assert drive(store.store.update("o1", EVE, until_ms=0)).until_ms == 0
    assert drive(store.store.update("o1", EVE, until_ms=now - 1)) == Rejected("past")
    assert store.create("route", "x", {"model": "b"}, until_ms=now) == Rejected("past")
    store.world.advance(10)
    store.sweep()
    assert [one.id for one in store.all().overrides] == ["o1", "o3", "o4"]


def test_a_check_writes_nothing(store: Store) -> None:
    assert store.create("model", "m", {"concurrency": 2}, check=True).values == {"concurrency": 2}
    assert (store.all().overrides, store.values()["concurrency"], trail(store.world)) == ([], 8, [])


def test_there_is_an_end_to_the_number_of_overrides(store: Store) -> None:
    for number in range(1000):
        store.create("route", f"r{number}", {"model": "b"})
    assert store.create("route", "more", {"model": "b"}) == Rejected("full")
    with pytest.raises(OverflowError):
        drive(store.pool.scheduler.override("model", "m", {"concurrency": 4}, OPS))
    drive(store.pool.scheduler.override("model", "m", {"concurrency": None}, OPS))
    assert len(store.all().overrides) == 1000
