"""Reads the whole store and says what is wrong with it: the invariants of DESIGN.md §3 and §7 that hold after every call."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.direct import World

from fairlane.queues.keys import KEYS, RECORD

TERMINAL = {"completed", "failed", "cancelled"}
TERMINAL_EVENTS = {b"done", b"error", b"cancelled"}
_KINDS = {key.name: key.kind for key in KEYS}


class Snapshot:
    """Every key of a pool, by name of its kind and by its parts."""

    def __init__(self, world: World) -> None:
        names = sorted(world.call("KEYS", "*"))
        kinds = world.connection.pipeline([("TYPE", name) for name in names])
        self.ttls = dict(zip(names, world.connection.pipeline([("PTTL", n) for n in names]), strict=True))
        reads = [_read(name, kind.decode()) for name, kind in zip(names, kinds, strict=True)]
        values = world.connection.pipeline(reads)
        self.by_kind: dict[str, dict[tuple[str, ...], Any]] = defaultdict(dict)
        self.names: dict[tuple[str, tuple[str, ...]], bytes] = {}
        for name, kind, value in zip(names, kinds, values, strict=True):
            key, parts = _identify(name.decode(), world.prefix)
            assert _KINDS[key] == kind.decode(), f"{name!r} is a {kind.decode()}"
            self.by_kind[key][parts] = _shape(kind.decode(), value)
            self.names[key, parts] = name

    def one(self, key: str, *parts: str) -> Any:
        """The value of a key; {} when there is none."""
        return self.by_kind[key].get(parts, {})

    def ttl(self, key: str, *parts: str) -> int:
        return int(self.ttls[self.names[key, parts]])


def audit(world: World, accepted: Iterable[str]) -> Snapshot:
    """Check every invariant that needs only the store and the ids of the tasks it accepted."""
    shot = Snapshot(world)
    now = world.now_ms
    tasks = {parts[0]: record for parts, record in shot.by_kind["task"].items() if record["st"] != "gone"}
    assert set(tasks) == set(accepted), "accepted = queued + executing + ended"
    waiting, holding = Counter[tuple[str, str]](), defaultdict[tuple[str, str, str], set[str]](set)
    in_flow: dict[str, tuple[str, str, str]] = {}
    for (queue, _, model, user), members in shot.by_kind["flow"].items():
        for task in members:
            in_flow[task] = (queue, model, user)
            waiting[queue, model] += 1
    in_slots = {task: model for (model,), members in shot.by_kind["slots"].items() for task in members}
    payload_bytes = 0

    for task, record in tasks.items():
        assert set(record) <= set(RECORD), set(record) - set(RECORD)
        state, model = record["st"], record["m"]
        place = (record["q"], model, record["u"])
        log = shot.one("log", task) or []
        check_log(task, record, log)
        has_payload = (task,) in shot.by_kind["payload"]
        assert has_payload == (state not in TERMINAL and "fo" not in record), (task, record)
        payload_bytes += int(record["pb"]) if has_payload else 0
        due = [int(record[field]) for field in ("wd", "dl", "lv") if field in record]
        if state == "queued":
            expired = bool(due) and min(due) <= now
            assert in_flow.get(task) == place or (task not in in_flow and expired), (task, record)
            assert task not in in_slots
        else:
            assert task not in in_flow
        if state == "executing":
            assert in_slots.get(task) == model, (task, record)
        if task in in_slots:
            holding[place].add(task)
        live = state not in TERMINAL or task in in_slots
        assert (task in shot.one("look")) == live, (task, record)
        assert (shot.ttl("task", task) == -1) == live, (task, record, shot.ttl("task", task))
        if log:
            assert (shot.ttl("log", task) == -1) == live, (task, record)
    assert set(in_flow) | set(in_slots) | set(shot.one("look")) <= set(tasks)
    assert {parts[0] for parts in shot.by_kind["payload"]} <= set(tasks)

    pool = shot.one("pool")
    assert int(pool.get("bytes", 0)) == payload_bytes
    ended = Counter(record["st"] for record in tasks.values() if record["st"] in TERMINAL)
    assert {state: int(pool[state]) for state in TERMINAL if state in pool} == dict(ended)
    check_lanes(shot, waiting, holding)
    return shot


def check_log(task: str, record: dict[str, str], log: list[Any]) -> None:
    """One log: contiguous, attempts never go back, at most one end, and that last."""
    ids = [tuple(int(part) for part in entry[0].split(b"-")) for entry in log]
    assert [seq for _, seq in ids] == list(range(1, len(ids) + 1)), (task, ids)
    assert ids == sorted(ids), (task, ids)
    assert int(record.get("sq", 0)) == len(ids), (task, record, ids)
    kinds = [entry[1][1] for entry in log]
    ends = [kind for kind in kinds if kind in TERMINAL_EVENTS]
    assert len(ends) == (record["st"] in TERMINAL), (task, record["st"], kinds)
    assert not ends or kinds[-1] in TERMINAL_EVENTS, (task, kinds)


def check_lanes(
    shot: Snapshot, waiting: Counter[tuple[str, str]], holding: dict[tuple[str, str, str], set[str]]
) -> None:
    """Lanes, flows, debts and counters agree with the tasks that wait and run."""
    flows = {
        (queue, model, user) for (queue, model), users in shot.by_kind["flows"].items() for user in users
    }
    parked = {
        (queue, model, user) for (queue, model), users in shot.by_kind["parked"].items() for user in users
    }
    assert not flows & parked
    assert flows | parked == {(queue, model, user) for queue, _, model, user in shot.by_kind["flow"]}
    for (model,), fields in shot.by_kind["model"].items():
        assert int(fields.get("users", 0)) == sum(m == model for _, m, _ in flows), (model, fields)
    counted = {
        task: place
        for place, members in holding.items()
        for task in members
        if shot.one("task", task)["ac"].endswith(" 1")
    }
    by_lane = {place: set(members) for place, members in shot.by_kind["running"].items()}
    assert by_lane == _grouped(counted, lambda place: place[:2])
    by_queue = {parts[0]: set(members) for parts, members in shot.by_kind["load"].items()}
    assert by_queue == _grouped(counted, lambda place: place[0])
    lanes = {(queue, model) for (model,), queues in shot.by_kind["lanes"].items() for queue in queues}
    assert lanes == {(queue, model) for queue, model, _ in flows}
    assert set(shot.one("backlog")) == {model for _, model in lanes}
    counts = {
        (field[2:], model): int(value)
        for (model,), fields in shot.by_kind["model"].items()
        for field, value in fields.items()
        if field.startswith("n:")
    }
    assert {place: number for place, number in counts.items() if number} == dict(waiting)
    for (queue,), fields in shot.by_kind["queue"].items():
        assert int(fields.get("n", 0)) == sum(n for (q, _), n in waiting.items() if q == queue)
    busy = {
        (queue, model, user): set(members)
        for (queue, _, model, user), members in shot.by_kind["busy"].items()
    }
    assert busy == dict(holding)
    debts = {
        (queue, model, user) for (queue, model), users in shot.by_kind["debts"].items() for user in users
    }
    lifts = {
        (queue, model, user) for (queue, model), users in shot.by_kind["lifts"].items() for user in users
    }
    assert not debts & (flows | parked)
    assert lifts <= set(busy), "the lifts of a flow are kept only while something of it runs"
    assert set(busy) <= debts | flows | parked, "a flow with running tasks is not forgotten"


def _grouped(
    tasks: dict[str, tuple[str, str, str]], by: Callable[[tuple[str, str, str]], Any]
) -> dict[Any, set[str]]:
    groups = defaultdict[Any, set[str]](set)
    for task, place in tasks.items():
        groups[by(place)].add(task)
    return dict(groups)


def _read(name: bytes, kind: str) -> tuple[bytes | str, ...]:
    return {
        "hash": ("HGETALL", name),
        "zset": ("ZRANGE", name, "0", "-1", "WITHSCORES"),
        "set": ("SMEMBERS", name),
        "stream": ("XRANGE", name, "-", "+"),
        "string": ("GET", name),
    }[kind]


def _shape(kind: str, value: Any) -> Any:
    if kind == "hash":
        return {value[i].decode(): value[i + 1].decode() for i in range(0, len(value), 2)}
    if kind == "zset":
        return {value[i].decode(): float(value[i + 1]) for i in range(0, len(value), 2)}
    if kind == "set":
        return {member.decode() for member in value}
    return value


def _identify(name: str, prefix: str) -> tuple[str, tuple[str, ...]]:
    """Which key of the map it is, and its parts. Fails for a name that the map does not know."""
    assert name.startswith(prefix), name
    rest = name[len(prefix) :]
    for key in KEYS:
        pattern = re.sub(r"\\\{(#?)(\w+)\\\}", _group, re.escape(key.pattern).replace("\\#", "#"))
        match = re.fullmatch(pattern, rest, re.DOTALL)
        if not match:
            continue
        parts = match.groupdict()
        if "model_len" in parts:  # the length says where the model ends and the user begins
            tail, length = f"{parts['model']}:{parts['user']}".encode(), int(parts["model_len"])
            parts["model"], parts["user"] = tail[:length].decode(), tail[length + 1 :].decode()
        return key.name, tuple(parts.values())
    raise AssertionError(f"no key of the map has the name {name!r}")


def _group(match: re.Match[str]) -> str:
    if match.group(1):
        return rf"(?P<{match.group(2)}_len>\d+)"
    return rf"(?P<{match.group(2)}>{'[^:]*' if match.group(2) in ('queue', 'period') else '.*'})"
