"""Changes of settings that begin and end at times of their own: once, by whichever replica looks, and written down."""

import json
from typing import Any, cast

import msgspec
import pytest
from tests.support.direct import World, drive
from tests.support.pool import OPS, Pool

from fairlane.gateway.records.entries import read_usage
from fairlane.queues.actor import Actor
from fairlane.queues.changes import ChangeStore, Hindered, Known, Phase, PlannedChange
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import RedisLink

EVE = Actor("eve", "192.0.2.9")


class Changes:
    """The calls, answered at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = ChangeStore(cast(RedisLink, world.link))
        self.pool = Pool(world, limit=8)
        self._number = 0

    def try_plan(self, kind: Any, name: str, fields: dict[str, Any], **more: Any) -> PlannedChange | Hindered:
        self._number += 1
        check = more.pop("check", False)
        change = PlannedChange(kind, name, fields, **{"id": f"c{self._number}", **more})
        answer: PlannedChange | Hindered = drive(self.store.plan(change, OPS, check=check))
        return answer

    def plan(self, kind: Any, name: str, fields: dict[str, Any], **more: Any) -> PlannedChange:
        made = self.try_plan(kind, name, fields, **more)
        assert isinstance(made, PlannedChange)
        return made

    def alter(self, change: PlannedChange, **more: Any) -> PlannedChange | Hindered:
        answer: PlannedChange | Hindered = drive(self.store.alter(change.id, EVE, **more))
        return answer

    def take_back(self, change: PlannedChange) -> PlannedChange | Hindered:
        answer: PlannedChange | Hindered = drive(self.store.take_back(change.id, EVE))
        return answer

    def known(self) -> Known:
        known: Known = drive(self.store.all())
        return known

    def phase(self, change: PlannedChange) -> Phase:
        return next(one.phase for one in self.known().changes if one.id == change.id)

    def sweep(self, replica: str = "r1") -> bytes:
        """The version that a sweep tells."""
        versions: list[bytes] = []
        scheduler: Scheduler = self.world.scheduler(replica)
        scheduler.on_changes = versions.append
        drive(scheduler.sweep())
        return versions[0]

    def concurrency(self) -> Any:
        return drive(self.pool.scheduler.effective("model", "m")).values["concurrency"]

    def acts(self) -> list[tuple[str, str, str, Any, Any]]:
        """Who did what to what, and what was and is."""
        entries = self.world.call("XRANGE", self.world.keys("outbox"), "-", "+")
        acts = [msgspec.msgpack.decode(flat[1]) for _, flat in entries if flat[0] == b"audit"]
        assert len({act[0] for act in acts}) == len(acts)
        return [(act[1], act[3], act[4], json.loads(act[5]), json.loads(act[6])) for act in acts]


@pytest.fixture
def changes(world: World) -> Changes:
    return Changes(world)


def test_a_change_holds_at_once_and_every_sweep_tells_that_something_is_new(changes: Changes) -> None:
    before = changes.sweep()
    assert (before, changes.known().changes) == (b"", [])
    made = changes.plan("route", "r", {"model": "b"}, rollout=10, note="try", tier="paid", by_user=True)
    assert (made.phase, made.began_ms, made.who) == (Phase.ACTIVE, changes.world.now_ms, "ops")
    assert changes.sweep("r1") == changes.sweep("r2") == changes.known().version != before
    (known,) = changes.known().changes
    assert known == made
    assert (known.fields, known.rollout, known.tier, known.by_user) == ({"model": "b"}, 10, "paid", True)
    ((who, action, target, was, now),) = changes.acts()
    assert (who, action, target, was) == ("ops", "create", "change c1", {})
    assert now["of"] == "route r"
    assert now["change"] == {"set": {"model": "b"}, "tier": "paid", "by": "user"}


def test_a_scheduled_change_begins_and_ends_once_by_whoever_sweeps(changes: Changes) -> None:
    now = changes.world.now_ms
    made = changes.plan("model", "m", {"concurrency": 3}, whole=True, at_ms=now + 5000, until_ms=now + 9000)
    assert made.phase is Phase.SCHEDULED
    changes.sweep()
    assert (changes.phase(made), changes.concurrency()) == (Phase.SCHEDULED, 8)
    changes.world.advance(5000)
    version = changes.known().version
    assert changes.sweep("r2") != version
    for replica in ("r1", "r2", "r3"):
        changes.sweep(replica)
    assert (changes.phase(made), changes.concurrency()) == (Phase.ACTIVE, 3)
    changes.world.advance(4000)
    for replica in ("r3", "r1"):
        changes.sweep(replica)
    assert (changes.phase(made), changes.concurrency()) == (Phase.ENDED, 8)
    assert [act[:3] for act in changes.acts()] == [
        ("ops", "create", "change c1"),
        ("ops", "begin", "change c1"),
        ("ops", "set", "model m"),
        ("ops", "end", "change c1"),
        ("ops", "set", "model m"),
    ]
    assert changes.world.call("ZCARD", changes.world.keys("due")) == 0


def test_what_was_to_be_while_nobody_looked_is_made_up_for(changes: Changes) -> None:
    now = changes.world.now_ms
    made = changes.plan("model", "m", {"concurrency": 3}, whole=True, at_ms=now + 100, until_ms=now + 200)
    changes.world.advance(60_000)
    changes.sweep()
    assert (changes.phase(made), changes.concurrency()) == (Phase.ENDED, 8)


def test_a_beginning_in_the_past_is_now_and_an_end_in_the_past_is_refused(changes: Changes) -> None:
    now = changes.world.now_ms
    assert changes.plan("route", "r", {"model": "b"}, at_ms=now - 1000).phase is Phase.ACTIVE
    refused = Hindered("past", str(now))
    assert changes.try_plan("route", "s", {"model": "b"}, until_ms=now - 1) == refused
    assert changes.try_plan("route", "s", {"model": "b"}, at_ms=now + 9, until_ms=now + 9) == refused
    assert len(changes.known().changes) == 1


def test_what_is_taken_back_is_what_it_was_before_also_where_that_was_changed(changes: Changes) -> None:
    changes.pool.set_model(concurrency=5)
    made = changes.plan("model", "m", {"concurrency": 3, "paused": True}, whole=True)
    assert changes.concurrency() == 3
    assert isinstance(changes.take_back(made), PlannedChange)
    settled = drive(changes.pool.scheduler.effective("model", "m"))
    assert (settled.overrides, settled.values["concurrency"]) == ({"concurrency": 5}, 5)
    assert changes.acts()[-2:] == [
        ("eve", "take_back", "change c1", {"state": "active"}, {"state": "taken_back"}),
        ("eve", "set", "model m", {"concurrency": "3", "paused": "1"}, {"concurrency": "5", "paused": None}),
    ]


def test_what_an_operator_set_meanwhile_stays_when_a_change_ends(changes: Changes) -> None:
    made = changes.plan("model", "m", {"concurrency": 3}, whole=True)
    changes.pool.set_model(concurrency=6)
    changes.take_back(made)
    assert changes.concurrency() == 6


def test_taking_back_twice_makes_no_difference_and_what_has_ended_cannot_be_altered(changes: Changes) -> None:
    made = changes.plan("route", "r", {"model": "b"}, at_ms=changes.world.now_ms + 1000)
    assert changes.take_back(made) == changes.take_back(made)
    assert changes.alter(made, rollout=5) == Hindered("over", "taken_back")
    assert len(changes.acts()) == 2
    changes.world.advance(2000)
    changes.sweep()
    assert changes.phase(made) is Phase.TAKEN_BACK
    assert changes.alter(PlannedChange("route", "r", {}, id="nobody"), rollout=5) == Hindered("gone")


def test_a_share_and_an_end_can_be_changed(changes: Changes) -> None:
    now = changes.world.now_ms
    made = changes.plan("route", "r", {"model": "b"}, rollout=10, until_ms=now + 1000)
    wider = changes.alter(made, rollout=50, until_ms=0)
    assert isinstance(wider, PlannedChange)
    assert (wider.rollout, wider.until_ms, wider.began_ms) == (50, 0, made.began_ms)
    assert changes.acts()[-1][3:] == ({"rollout": 10, "until": now + 1000}, {"rollout": 50, "until": 0})
    changes.alter(made, rollout=50)  # is so already
    assert len(changes.acts()) == 2
    changes.world.advance(2000)
    changes.sweep()
    assert changes.phase(made) is Phase.ACTIVE
    assert changes.alter(made, until_ms=now) == Hindered("past", str(now + 2000))


def test_a_route_has_one_change_at_a_time(changes: Changes) -> None:
    now = changes.world.now_ms
    first = changes.plan("route", "r", {"model": "b"}, until_ms=now + 1000)
    assert changes.try_plan("route", "r", {"mode": "batch"}) == Hindered("busy", "c1")
    assert changes.try_plan("route", "r", {"mode": "batch"}, at_ms=now + 999, check=True) == Hindered(
        "busy", "c1"
    )
    later = changes.plan("route", "r", {"mode": "batch"}, at_ms=now + 1000)
    assert changes.alter(first, until_ms=0) == Hindered("busy", later.id)
    assert changes.alter(first, until_ms=now + 1001) == Hindered("busy", later.id)
    changes.plan("route", "other", {"model": "b"})
    changes.take_back(first)
    changes.plan("route", "r", {"model": "c"}, until_ms=now + 1000)


def test_a_model_may_have_a_change_of_its_tasks_and_changes_of_other_settings(changes: Changes) -> None:
    changes.plan("model", "m", {"fallbacks": ["b"]})
    changes.plan("model", "m", {"concurrency": 3}, whole=True)
    changes.plan("model", "m", {"requests_per_minute": 3}, whole=True)
    assert isinstance(changes.try_plan("model", "m", {"silence_ms": 3}), Hindered)
    assert isinstance(
        changes.try_plan("model", "m", {"paused": True, "concurrency": 1}, whole=True), Hindered
    )
    changes.plan("queue", "free", {"weight": 3.0}, whole=True)


def test_looking_whether_a_change_could_be_made_makes_none(changes: Changes) -> None:
    told = changes.plan("model", "m", {"concurrency": 3}, whole=True, check=True)
    assert told.phase is Phase.ACTIVE
    assert (changes.known().changes, changes.acts(), changes.concurrency()) == ([], [], 8)


def test_a_change_that_is_made_again_is_made_once(changes: Changes) -> None:
    change = PlannedChange("model", "m", {"concurrency": 3}, whole=True, id="c9")
    assert drive(changes.store.plan(change, OPS)) == drive(changes.store.plan(change, OPS))
    assert len(changes.acts()) == 2


def test_so_many_may_be_live_and_so_many_are_known(changes: Changes) -> None:
    live = [changes.plan("route", f"r{number}", {"model": "b"}) for number in range(50)]
    assert changes.try_plan("route", "one more", {"model": "b"}) == Hindered("many", "50")
    changes.take_back(live[0])
    for number in range(170):
        changes.take_back(changes.plan("route", f"s{number}", {"model": "b"}))
    known = changes.known().changes
    assert len(known) == 200
    assert sum(change.active for change in known) == 49
    assert live[0].id not in {change.id for change in known}
    kept = changes.world.call("KEYS", changes.world.keys("change", change="*"))
    assert len(kept) == 200


def test_a_task_is_recorded_with_its_side_and_how_often_it_went_on(changes: Changes) -> None:
    pool = changes.pool
    pool.offer("n")
    pool.submit("a", change="c1 new", fallbacks="n\t", fallback_after_ms=1000)
    (grant,) = pool.take("m")
    assert grant.change == "c1 new"
    pool.finish(grant)
    pool.submit("b", "gone", change="c1 old", fallbacks="n\t", fallback_after_ms=1000)
    (grant,) = pool.take("n")
    pool.finish(grant)
    pool.finish(pool.run("c"))
    entries = changes.world.call("XRANGE", changes.world.keys("outbox"), "-", "+")
    rows = [read_usage(flat[1], lambda _: "free") for _, flat in entries]
    assert [(row.task, row.change_id, row.side, row.moves) for row in rows] == [
        ("a", "c1", "new", 0),
        ("b", "c1", "old", 1),
        ("c", "", "", None),
    ]
