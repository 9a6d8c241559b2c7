"""Overrides on top of the configuration: they hold immediately, the newest wins, and each step is in the audit log."""

from typing import Any

import pytest
from tests.contract.store.store import Store

pytestmark = pytest.mark.feature("overrides")

QUEUE_VALUES: dict[str, Any] = {
    "weight": 2.5,
    "max_length": 7,
    "max_wait_ms": 1234,
    "max_running": 3,
    "reserved": 2,
    "admission": "adaptive",
    "paused": True,
}
MODEL_VALUES: dict[str, Any] = {
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


@pytest.mark.parametrize(
    ("kind", "name", "setting", "value"),
    [("queue", "free", *item) for item in QUEUE_VALUES.items()]
    + [("model", "llama:7b é", *item) for item in MODEL_VALUES.items()],
)
def test_a_setting_can_be_changed_and_rolled_back(
    store: Store, kind: Any, name: str, setting: str, value: Any
) -> None:
    change = store.set_queue if kind == "queue" else store.set_model
    was = store.settings(kind, name)[0].get(setting)
    assert change(name, **{setting: value}) == ({setting: was}, {setting: value})
    values, overrides = store.settings(kind, name)
    assert (values[setting], overrides) == (value, {setting: value})
    assert type(values[setting]) is type(value)
    assert change(name, **{setting: None}) == ({setting: value}, {setting: was})
    values, overrides = store.settings(kind, name)
    assert (values.get(setting), overrides) == (was, {})


def test_overrides_survive_the_configuration_until_they_are_rolled_back(store: Store) -> None:
    store.apply(models={"m": {"concurrency": 5}})
    store.set_model(concurrency=9)
    for configured in (6, None, 7):
        store.apply(models={"m": {"concurrency": configured}})
        assert store.settings("model", "m") == ({"concurrency": 9}, {"concurrency": 9})
    assert store.set_model(concurrency=None) == ({"concurrency": 9}, {"concurrency": 7})
    assert store.settings("model", "m") == ({"concurrency": 7}, {})


def test_a_false_or_zero_override_is_not_the_same_as_none(store: Store) -> None:
    store.apply(queues={"free": {"max_running": 1}}, models={"m": {"concurrency": 2}})
    store.set_queue("free", max_running=0)
    store.set_model(concurrency=0, paused=False)
    assert store.settings("queue", "free")[1] == {"max_running": 0}
    assert store.settings("model", "m")[1] == {"concurrency": 0, "paused": False}
    for n in range(4):
        store.submit(f"t{n}")
    assert len(store.take(want=9)) == 4, "0 = no limit"


def test_an_unknown_queue_or_setting_changes_nothing(store: Store) -> None:
    before = store.world.contents()
    assert store.set_queue("fre", paused=True) is None
    with pytest.raises(KeyError):
        store.set_queue("free", max_running=1, tempo=3)
    assert store.world.contents() == before


def test_only_a_model_with_an_override_is_kept_while_it_is_idle(store: Store) -> None:
    store.set_model("kept", concurrency=3)
    store.set_model("forgotten", concurrency=3)
    store.set_model("forgotten", concurrency=None)
    store.pass_time(3_700_000, step_ms=4000)
    assert store.settings("model", "kept") == ({"concurrency": 3}, {"concurrency": 3})
    assert not [name for name in store.world.names() if "forgotten" in name]


def test_every_change_is_in_the_audit_log_with_the_values_before_and_after(store: Store) -> None:
    store.set_queue("free", weight=3.0, max_running=2)
    store.set_model("llama:7b é", paused=True)
    store.set_queue("free", weight=None)
    entries = store.audit_log()
    assert [entry["target"] for entry in entries] == ["queue free", "model llama:7b é", "queue free"]
    assert {(entry["who"], entry["address"], entry["action"]) for entry in entries} == {
        ("ops", "192.0.2.7", "update")
    }
    assert [(entry["before"], entry["after"]) for entry in entries] == [
        ({"weight": 1.0, "max_running": None}, {"weight": 3.0, "max_running": 2}),
        ({"paused": None}, {"paused": True}),
        ({"weight": 3.0}, {"weight": 1.0}),
    ]


def test_switching_every_rule_on_and_off_leaves_the_store_consistent(store: Store) -> None:
    for n in range(12):
        store.submit(f"t{n}", queue="free" if n % 2 else "paid", user=f"u{n % 3}")
    running = store.take(want=3)
    for values, change, name in (
        (QUEUE_VALUES, store.set_queue, "free"),
        (MODEL_VALUES, store.set_model, "m"),
    ):
        for setting, value in [*values.items(), *dict.fromkeys(values).items()]:
            change(name, **{setting: value})
            running += store.take()
            store.world.check()
    for grant in running:
        store.finish(grant)
    store.world.advance(120_000)
    store.offer("m")
    assert len(store.take(want=12)) == 12 - len(running)


# ---- overrides as objects ----------


def concurrency(store: Store) -> Any:
    return store.settings("model", "m")[0].get("concurrency")


@pytest.fixture(autouse=True)
def eight(store: Store) -> None:
    store.apply(models={"m": {"concurrency": 8}}, queues={"free": {"weight": 1.0}, "paid": {"weight": 4.0}})


def test_an_override_holds_immediately_and_every_sweep_returns_the_new_version(store: Store) -> None:
    assert (store.overrides_version(), store.overrides()) == (b"", [])
    values = {"model": "b", "tiers.paid.fallbacks": [], "repair": None}
    created = store.create_override("o1", "route", "r", values, percent=10)
    assert (created.values, created.percent, created.status) == (values, 10, "active")
    assert (created.created_by, created.created_ms) == ("ops", store.world.now_ms)
    assert store.overrides_version() == store.replica("r2").overrides_version() != b""
    assert store.overrides() == [created]
    assert store.create_override("o1", "route", "r", values) == created, "a repeated call changes nothing"
    (entry,) = store.audit_log()
    assert (entry["action"], entry["target"]) == ("create", "override o1")
    assert entry["after"] == {"target": "route", "name": "r", "values": values, "percent": 10, "until": None}


def test_an_override_ends_by_itself_once_and_the_value_below_it_holds_again(store: Store) -> None:
    now = store.world.now_ms
    store.create_override("o1", "model", "m", {"concurrency": 3, "first_output_ms": 5}, until_ms=now + 9000)
    store.create_override("o2", "model", "m", {"concurrency": 2}, until_ms=now + 4000)
    assert concurrency(store) == 2
    for passed, below in ((4000, 3), (5000, 8)):
        store.world.advance(passed)
        for replica in (store, store.replica("r2")):
            replica.sweep()
        assert concurrency(store) == below
    assert store.overrides() == []
    ends = [entry["target"] for entry in store.audit_log() if entry["action"] == "end"]
    assert ends == ["override o2", "override o1"]


def test_rolling_back_in_any_order_leaves_the_values_of_the_others(store: Store) -> None:
    for number in (2, 3):
        store.create_override(f"o{number}", "model", "m", {"concurrency": number})
    store.apply(models={"m": {"concurrency": 7}})
    store.roll_back("o2")
    assert concurrency(store) == 3
    store.roll_back("o3")
    assert concurrency(store) == 7
    assert store.roll_back("o3").rejected == "unknown"
    assert [entry["action"] for entry in store.audit_log()] == ["create", "create", "rollback", "rollback"]


def test_a_promoted_override_is_the_baseline_of_later_ones(store: Store) -> None:
    store.create_override(
        "o1", "model", "m", {"concurrency": 2, "paused": True}, until_ms=store.world.now_ms + 1000
    )
    promoted = store.promote("o1")
    assert (promoted.status, promoted.percent, promoted.until_ms) == ("promoted", 100, 0)
    assert store.promote("o1") == promoted
    store.create_override("o2", "model", "m", {"concurrency": 3})
    store.promote("o2")
    assert [one.values for one in store.overrides()] == [{"paused": True}, {"concurrency": 3}]
    store.set_model(concurrency=4, paused=None)
    (left,) = store.overrides()
    assert (left.values, left.status) == ({"concurrency": 4}, "promoted")
    assert store.update_override("o1", percent=3).rejected == "unknown"
    assert store.update_override(left.id, percent=3).rejected == "promoted"
    store.roll_back(left.id)
    assert concurrency(store) == 8


def test_percent_and_end_are_updated_and_two_percentages_of_one_route_conflict(store: Store) -> None:
    now = store.world.now_ms
    store.create_override("o1", "route", "r", {"model": "b"}, percent=10)
    conflict = store.create_override("o2", "route", "r", {"mode": "batch"}, percent=20)
    assert (conflict.rejected, conflict.other) == ("conflict", "o1")
    store.create_override("o3", "route", "other", {"mode": "batch"}, percent=20)
    assert store.create_override("o4", "route", "r", {"mode": "batch"}).percent == 100
    assert store.update_override("o4", percent=20).other == "o1"
    updated = store.update_override("o1", percent=50, until_ms=now + 5)
    assert (updated.percent, updated.until_ms) == (50, now + 5)
    assert store.update_override("o1", until_ms=now - 1).rejected == "past"
    assert store.create_override("o5", "route", "x", {"model": "b"}, until_ms=now).rejected == "past"
    store.world.advance(10)
    store.sweep()
    assert [one.id for one in store.overrides()] == ["o3", "o4"]


def test_a_check_writes_nothing(store: Store) -> None:
    before = store.world.contents()
    assert store.create_override("o1", "model", "m", {"concurrency": 2}, check=True).values == {
        "concurrency": 2
    }
    assert store.world.contents() == before


def test_the_number_of_overrides_is_bounded(store: Store) -> None:
    for number in range(1000):
        store.create_override(f"o{number}", "route", f"r{number}", {"model": "b"})
    assert store.create_override("more", "route", "more", {"model": "b"}).rejected == "full"
    with pytest.raises(OverflowError):
        store.set_model(concurrency=4)
