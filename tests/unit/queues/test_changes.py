"""Settings changed while running: overrides on top of the configuration, in force at once everywhere, written down."""

import json
from typing import Any

import msgspec
import pytest
from tests.support.audit import audit
from tests.support.direct import World, drive
from tests.support.pool import OPS, Pool

from fairlane.queues.actor import Actor
from fairlane.queues.rules import MODEL_SETTINGS, QUEUE_SETTINGS, Override, Value

QUEUE_VALUES: dict[str, Value] = {
    "weight": 2.5,
    "max_length": 7,
    "max_wait_ms": 1234,
    "max_running": 3,
    "reserved": 2,
    "lendable": 0,
    "borrow": 0,
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
    "breaker_window_ms": 30_000,
    "breaker_open_ms": 2000,
    "breaker_slow_ms": 8000,
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
def test_a_setting_can_be_changed_and_taken_back(
    world: World, kind: Any, name: str, setting: str, value: Value
) -> None:
    pool = Pool(world)
    was = effective(pool, kind, name)[0].get(setting)
    change = drive(pool.scheduler.change(kind, name, {setting: value}, OPS))
    assert (change.before, change.after) == ({setting: was}, {setting: value})
    values, overrides = effective(pool, kind, name)
    assert (values[setting], overrides) == (value, {setting: value})
    assert type(values[setting]) is type(value)
    back = drive(pool.scheduler.change(kind, name, {setting: None}, OPS))
    assert (back.before, back.after) == ({setting: value}, {setting: was})
    values, overrides = effective(pool, kind, name)
    assert (values.get(setting), overrides) == (was, {})


@pytest.mark.parametrize(
    ("kind", "name", "setting", "value"),
    [("queue", "free", "weight", 2.5), ("model", "llama:7b é", "paused", False)],
)
def test_who_changed_a_setting_is_known_as_long_as_the_change_holds(
    world: World, kind: Any, name: str, setting: str, value: Value
) -> None:
    pool = Pool(world)
    configure(pool, {"free": {"weight": 4.0}})
    first = drive(pool.scheduler.change(kind, name, {setting: True if value is False else 9}, OPS))
    second = drive(pool.scheduler.change(kind, name, {setting: value}, Actor("ann", "")))
    configure(pool, {"free": {"weight": 6.0}})
    ruling = drive(pool.scheduler.ruling())
    [override] = ruling.overrides
    assert override == Override(kind, name, setting, value, second.audit_id, "ann")
    assert override.at_ms == int(second.audit_id.partition("-")[0]) // 1000
    assert first.audit_id != second.audit_id
    assert ruling.configured[("queue", "free", "weight")] == 6.0
    assert ruling.in_force is not None
    drive(pool.scheduler.change(kind, name, {setting: None}, OPS))
    assert drive(pool.scheduler.ruling()).overrides == []
    assert world.call("EXISTS", world.keys("changed")) == 0


def test_a_change_that_an_older_release_makes_is_nobodys(world: World) -> None:
    pool = Pool(world)
    pool.set_queue("free", weight=3.0)
    world.call("HSET", world.keys("overrides"), "q:free:weight", "5.0")
    assert drive(pool.scheduler.ruling()).overrides == [Override("queue", "free", "weight", 5.0)]


@pytest.mark.parametrize("kind", ["queue", "model"])
def test_overrides_survive_the_configuration_until_they_are_taken_back(world: World, kind: Any) -> None:
    pool = Pool(world)
    setting, name = ("max_running", "free") if kind == "queue" else ("concurrency", "m")

    def says(value: int | None) -> None:
        if kind == "queue":
            configure(pool, {name: {setting: value}})
        else:
            configure(pool, {}, {name: {setting: value}})

    says(5)
    drive(pool.scheduler.change(kind, name, {setting: 9}, OPS))
    for configured in (6, None, 7):
        says(configured)
        assert effective(pool, kind, name) == ({setting: 9}, {setting: 9})
    change = drive(pool.scheduler.change(kind, name, {setting: None}, OPS))
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
    assert drive(pool.scheduler.change("queue", "fre", {"paused": True}, OPS)) is None
    assert sorted(world.call("KEYS", "*")) == before


def test_any_model_can_be_set_before_it_is_known(world: World) -> None:
    pool = Pool(world)
    pool.set_model("later", concurrency=1)
    pool.offer("later")
    pool.submit("a", "later")
    pool.submit("b", "later")
    assert len(pool.take("later", want=2)) == 1


def test_an_unknown_setting_is_an_error_and_changes_nothing(world: World) -> None:
    pool = Pool(world)
    with pytest.raises(KeyError):
        pool.set_queue("free", max_running=1, tempo=3)
    assert effective(pool, "queue", "free") == ({"weight": 1.0}, {})
    assert trail(world) == []


def test_a_model_whose_overrides_are_gone_is_forgotten_like_any_other(world: World) -> None:
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


def test_every_change_is_written_down_with_what_held_before_and_after(world: World) -> None:
    pool = Pool(world)
    first = pool.set_queue("free", weight=3.0, max_running=2)
    second = pool.set_model("llama:7b é", paused=True)
    third = pool.set_queue("free", weight=None)
    entries = trail(world)
    assert [entry["id"] for entry in entries] == [c.audit_id for c in (first, second, third)]
    assert [(e["who"], e["address"], e["action"], e["target"]) for e in entries] == [
        (*OPS, "set", target) for target in ("queue free", "model llama:7b é", "queue free")
    ]
    assert [(json.loads(e["before"]), json.loads(e["after"])) for e in entries] == [
        ({"weight": "1.0", "max_running": None}, {"weight": "3.0", "max_running": "2"}),
        ({"paused": None}, {"paused": "1"}),
        ({"weight": "3.0"}, {"weight": "1.0"}),
    ]


def test_a_change_of_nothing_is_no_error(world: World) -> None:
    change = Pool(world).set_queue("free")
    assert (change.before, change.after) == ({}, {})


def test_a_weight_holds_from_the_next_decision_on(world: World) -> None:
    pool = Pool(world, limit=1)
    pool.configure(1, "requests")
    for n in range(60):
        for queue in ("free", "paid"):
            pool.submit(f"{queue}{n}", queue=queue, user=queue)
    running = pool.take()

    def served(number: int) -> list[str]:
        queues = []
        for _ in range(number):
            grant = running.pop()
            queues.append(grant.queue)
            running.extend(pool.finish(grant, want=1).grants)
        return queues

    assert served(20).count("paid") == 16
    pool.set_queue("paid", weight=1.0)
    served(4)
    assert served(20).count("paid") == 10
    pool.set_queue("free", weight=3.0)
    served(4)
    assert served(20).count("paid") == 5


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
