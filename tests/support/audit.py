"""Reads the whole store and reports what is wrong with it: the invariants that hold after every call."""

import json
import re
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlane.gateway.credits.ledger import read_charge
from fairlane.gateway.database.tables import UsageRow
from fairlane.gateway.records.entries import read_usage
from fairlane.gateway.webhooks.enqueue import read_announced
from fairlane.queues.keys import BALANCE, CHAIN, KEYS, LIMIT, POOL, RECORD, SPEC, UPSTREAM, Key
from fairlane.queues.replies import decode_map, decode_values, read_state, texts
from fairlane.queues.store.link import Arg

if TYPE_CHECKING:
    from tests.contract.store.store import World

TERMINAL = {"completed", "failed", "cancelled"}
GONE = -2
"""What Redis says instead of a time to live."""
LARGE_BODY = 16384
"""As in payloads.lua."""
PART_KEPT_MS = 60_000
"""As in chains.lua."""
PROBES = 2
"""As in upstreams.lua."""
TERMINAL_EVENTS = {b"done", b"error", b"cancelled"}
_KINDS = {key.name: key.kind for key in KEYS}


_READS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "hash": (("HGETALL",), ()),
    "zset": (("ZRANGE",), ("0", "-1", "WITHSCORES")),
    "set": (("SMEMBERS",), ()),
    "stream": (("XRANGE",), ("-", "+")),
    "string": (("GET",), ()),
    "list": (("LRANGE",), ("0", "-1")),
}
"""What reads all of a key, before and behind its name. A key of another type is an error."""


class Snapshot:
    """Every key of a pool, at one moment, by name of its kind and by its parts. Values are shared with snapshots before."""

    def __init__(self, world: "World") -> None:
        self.now_ms = world.now_ms
        self.read_s = time.monotonic()
        self.ttls: dict[tuple[str, tuple[str, ...]], int] = {}
        self.by_kind: dict[str, dict[tuple[str, ...], Any]] = defaultdict(dict)
        names: list[bytes] = world.call("KEYS", "*")
        reads: list[tuple[Arg, ...]] = [("MULTI",)]
        for name in names:
            before, behind = _READS[_KINDS[_identify(name, world.prefix)[0]]]
            reads += [(*before, name, *behind), ("PTTL", name)]
        values = world.connection.pipeline([*reads, ("EXEC",)])[-1]
        for at, name in enumerate(names):
            key, parts = _identify(name, world.prefix)
            value, ttl = values[2 * at : 2 * at + 2]
            assert not isinstance(value, Exception), (name, value)
            if ttl == GONE:
                continue
            read, shaped = world.read.get(name, (None, None))
            if value != read:
                shaped = _SHAPES.get(key, partial(_shape, _KINDS[key]))(value)
                world.read[name] = value, shaped
            self.by_kind[key][parts] = shaped
            self.ttls[key, parts] = ttl
        self.lanes = {
            (queue, model): lane
            for (model,), fields in self.by_kind["model"].items()
            for queue, lane in fields["lanes"].items()
        }

    def one(self, key: str, *parts: str) -> Any:
        """The value of a key; {} when there is none."""
        return self.by_kind[key].get(parts, {})

    def ttl(self, key: str, *parts: str) -> int:
        return self.ttls[key, parts]

    def expires(self) -> dict[str, float]:
        """When what is left of ended tasks expires, ms."""
        lines = self.by_kind["expiries"].values()
        return {entry.split()[0]: at for line in lines for entry, at in line.items()}


def audit(
    world: "World", accepted: Iterable[str], *, carried: bool = False, balances_lost: bool = False
) -> Snapshot:
    """Check every invariant that needs only the store and the ids of the tasks it accepted. `carried`: a gateway carries
    the entries of the outbox to SQL meanwhile."""
    shot = Snapshot(world)
    latest = world.latest_ms
    tasks = {parts[0]: record for parts, record in shot.by_kind["task"].items() if record["state"] != "gone"}
    of_chains = {task for task, record in tasks.items() if "chain" in record}
    gone = set(accepted) - set(tasks)
    """What was kept of them is over."""
    assert set(tasks) - of_chains == set(accepted) - gone, "accepted = queued + executing + ended"
    waiting, holding = Counter[tuple[str, str]](), defaultdict[tuple[str, str, str], set[str]](set)
    in_flow: dict[str, tuple[str, str, str]] = {}
    for (queue, _, model, user), members in shot.by_kind["flow"].items():
        for task in members:
            in_flow[task] = (queue, model, user)
            waiting[queue, model] += 1
    aside, expires = shot.one("aside"), shot.expires()
    check_upstreams(shot)
    check_windows(shot)
    in_slots = {task: model for (model,), members in shot.by_kind["slots"].items() for task in members}
    payload_bytes = check_chains(shot, tasks, in_slots)
    stored_parts = parts_that_hold(tasks, in_slots)

    for task, record in tasks.items():
        assert set(record) <= {"payload", *RECORD, *SPEC}, set(record) - set(RECORD) - set(SPEC)
        state, model = record["state"], record["model"]
        place = (record["queue"], model, record["user"])
        log = shot.one("log", task) or []
        check_log(task, record, log)
        has_payload = "payload" in record
        assert has_payload == (
            state not in TERMINAL and "first_output_at" not in record and "parts" not in record
        ), (task, record)
        size = int(record["payload_bytes"]) if has_payload else 0
        payload_bytes += size if size >= LARGE_BODY else 0
        due = [int(record[field]) for field in ("wait_deadline", "deadline", "linger_at") if field in record]
        if state == "queued":
            expired = bool(due) and min(due) <= latest
            assert (task in aside) <= (
                task not in in_flow and ("requested_model" in record or int(record.get("throttled", 0)) > 3)
            ), (task, record)
            in_line = in_flow.get(task) == place or task in aside or (task not in in_flow and expired)
            assert in_line if "parts" not in record else task not in in_flow, (task, record)
            if task in aside:
                waiting[place[:2]] += 1
            assert task not in in_slots
        else:
            assert task not in in_flow
            assert task not in aside
        if state == "executing":
            assert in_slots.get(task) == model, (task, record)
        if task in in_slots:
            holding[place].add(task)
        live = state not in TERMINAL or task in in_slots
        assert (task in shot.one("due")) == live, (task, record)
        live = live or task in stored_parts
        assert (task in expires) != live, (task, record)
    assert set(in_flow) | set(in_slots) | set(aside) | set(shot.one("due")) <= set(tasks)

    pool = shot.one("pool")
    assert int(pool.get("bytes", 0)) == payload_bytes
    if not carried:
        check_outbox(shot, tasks, in_slots, gone)
    check_lanes(shot, waiting, holding)
    check_rules(shot, holding)
    check_room(shot, tasks, latest, carried=carried)
    check_names(shot, tasks)
    waits = {task for task in tasks if task in in_flow or task in aside}
    waits |= {task for task, record in tasks.items() if record["state"] == "queued" and "parts" in record}
    check_limits(shot, waits, set(in_slots))
    live = {task for task, record in tasks.items() if record["state"] not in TERMINAL or task in in_slots}
    live |= stored_parts
    check_credits(shot, live, balances_lost)
    fall = {
        task for task, record in tasks.items() if "fallbacks" in record and (task in in_flow or task in aside)
    }
    lines = {(task, model) for (model,), members in shot.by_kind["fallbacks"].items() for task in members}
    assert lines == {(task, tasks[task]["model"]) for task in fall}, (lines, fall)
    assert {model for _, model in lines} <= set(shot.one("fallback_models") or ())
    asides = Counter((tasks[task]["queue"], tasks[task]["model"], tasks[task]["user"]) for task in aside)
    flows = Counter(in_flow.values())
    for (model,), fields in shot.by_kind["model"].items():
        for (queue, name), user in fields["users_by_lane"].items():
            place = queue, model, name
            held = user.running, user.waiting, user.aside
            assert held == (len(holding[place]), flows[place], asides[place]), (place, user)
    return shot


def parts_that_hold(tasks: dict[str, dict[str, str]], in_slots: dict[str, str]) -> set[str]:
    """Chains of which a part holds a slot still, or has not ended."""
    return {
        record["chain"]
        for task, record in tasks.items()
        if "chain" in record and (record["state"] not in TERMINAL or task in in_slots)
    }


def check_chains(shot: Snapshot, tasks: dict[str, dict[str, str]], in_slots: dict[str, str]) -> int:
    """What belongs to a chain as a whole agrees with its stages and parts. Returns the bytes that chains take."""
    stored = 0
    chains = {task: record for task, record in tasks.items() if "stage" in record and "chain" not in record}
    assert {parts[0] for parts in shot.by_kind["chain"]} == set(chains)
    parts_of = defaultdict[str, dict[str, dict[str, str]]](dict)
    for task, record in tasks.items():
        if "chain" in record:
            over = record["state"] in TERMINAL and task not in in_slots
            assert record["chain"] in chains or over, (task, record)  # ended parts may be kept for longer
            parts_of[record["chain"]][task] = record
    for task, record in chains.items():
        fields = shot.one("chain", task)
        kinds = {name: _field_of_chain(name) for name in fields}
        assert set(kinds.values()) <= set(CHAIN), (task, kinds)
        results = {name.partition(":")[2] for name, kind in kinds.items() if kind == "result:{stage}"}
        assert results == {name.partition(":")[2] for name, kind in kinds.items() if kind == "usage:{stage}"}
        over = record["state"] in TERMINAL
        assert ("plan" in fields, "stored_bytes" in fields) == (not over, not over), (task, record)
        size = 0 if over else int(fields["stored_bytes"])
        stored += size if size >= LARGE_BODY else 0
        if not over:
            texts = [fields["plan"], fields["head"], *(fields[f"result:{name}"] for name in results)]
            request = shot.one("request", task) or b""
            assert size == sum(len(text.encode(errors="replace")) for text in texts) + len(request), task
        stage = record["stage"].split()[0]
        now = {name: part for name, part in parts_of[task].items() if part["stage"].split()[0] == stage}
        held = {
            name for name, part in parts_of[task].items() if part["state"] not in TERMINAL or name in in_slots
        }
        assert held <= set(now), "parts of stages before are over"
        for name, part in parts_of[task].items():
            number, index, _ = part["stage"].split()
            assert (part["state"] == "completed") == (f"{number}.{index}" in results), (name, part)
        if "parts" not in record:
            assert not held, (task, record)
            continue
        if over and int(record["ended_at"]) + PART_KEPT_MS <= shot.now_ms:
            swept = int(shot.one("pool")["swept"])
            for name in held:  # one that is being stopped keeps its slot until a sweep finds its lease over
                assert float(shot.one("slots", in_slots[name])[name]) > swept, (name, parts_of[task][name])
            continue  # what is left of the others goes
        number = int(record["parts"])
        done = {name.partition(".")[2] for name in results if name.startswith(f"{stage}.")}
        there = {part["stage"].split()[1] for part in now.values()}
        assert there | done == {str(index) for index in range(number)}, "what is done is kept for a minute"
        assert number > 1, (task, record)
        assert int(fields["todo"]) == number - len(done), (task, fields)
        assert int(fields["live"]) == len(held) + (not over), (task, fields)
        begun = {part["stage"].split()[1] for part in now.values() if "attempt" in part}
        assert int(fields["begun"]) == len(begun | done), (task, fields)
        if not over:
            assert {part["state"] for part in now.values()} <= {"queued", "executing", "completed"}
            assert len(done) < number, "the last one takes the chain on"
        else:
            assert not [name for name, part in now.items() if part["state"] not in TERMINAL], task
    return stored


def check_outbox(
    shot: Snapshot, tasks: dict[str, dict[str, str]], in_slots: dict[str, str], gone: set[str]
) -> None:
    """Each task that has ended and holds no slot is recorded once, with its end; no other is. Of a chain it is each of its stages
    that ran in place, and each part."""
    entries = [entry[1] for entry in shot.one("outbox") or []]
    assert {kind for kind, _ in entries} <= {b"usage", b"audit", b"charge"}
    rows = [_usage(packed) for kind, packed in entries if kind == b"usage"]
    assert gone <= {row.chain or row.task for row in rows}, "nothing is forgotten before its end"
    # those of tasks that are still there: an ended part is kept for a minute, whenever its chain goes
    rows = [row for row in rows if (row.task if row.part is not None else row.chain or row.task) in tasks]
    holding = set(in_slots) | parts_that_hold(tasks, in_slots)
    over = {task for task, record in tasks.items() if record["state"] in TERMINAL and task not in holding}
    names, ends = list[str](), dict[str, str]()
    for task, record in tasks.items():
        if "stage" not in record:
            names += [task] * (task in over)
            ends[task] = task
            continue
        stage, part, _ = record["stage"].split()
        if part != "-":
            names += [task] * (task in over)
            ends[task] = task
            continue
        last = task in over and "parts" not in record
        done = {
            name[7:] for name in shot.one("chain", task) if name[:7] == "result:" and name[7:].isdecimal()
        }
        names += [f"{task}.{number}" for number in done | ({stage} if last else set())]
        if last:
            ends[f"{task}.{stage}"] = task
    assert Counter(row.task for row in rows) == Counter(names)
    paid = [_charge(packed) for kind, packed in entries if kind in (b"usage", b"charge")]
    charges = Counter(charge.task for charge in paid if charge and charge.task in tasks)
    assert not [task for task, number in charges.items() if number > 1], "one debit for the whole"
    assert set(charges) <= {task for task in over if "reserved" in tasks[task]}
    announced = [read_announced(packed) for kind, packed in entries if kind in (b"usage", b"charge")]
    told = {task for task in over if "webhooks" in tasks[task]}
    assert Counter(
        (end.object_id, end.event) for end in announced if end and end.object_id in tasks
    ) == Counter((task, f"task.{tasks[task]['state']}") for task in told)
    for row in rows:
        if row.task not in ends:
            assert (row.state, row.code, row.chain) == ("completed", "", row.task.rpartition(".")[0])
            continue
        record = tasks[ends[row.task]]
        assert (row.state, row.code) == (record["state"], record["code"])
        assert (row.ended, row.enqueued) == (
            int(record["ended_at"]),
            int(record.get("stage_entered_at", record["enqueued_at"])),
        )
        assert (row.model, row.scheduled) == (record.get("requested_model", record["model"]), record["model"])
        attempts = int(record.get("attempt", 0)) - int(record.get("attempts_before", 0))
        assert (row.user_name, row.attempts) == (record["user"], attempts)


def check_upstreams(shot: Snapshot) -> None:
    """Probes hold a slot, and are no more than may be; what is remembered of upstreams is found by those who tidy up."""
    for (_, model, upstream), members in shot.by_kind["probes"].items():
        assert len(members) <= PROBES, (model, upstream, members)
        for task in members:
            record = shot.one("task", task)
            assert task in shot.one("slots", model), (task, record)
            assert (record["model"], record.get("upstream", ""), record["probe"]) == (model, upstream, "1")
    known = {tuple(member.split("\n")) for member in shot.one("upstreams")}
    for kind in ("upstream", "outcomes"):
        assert {parts[1:] for parts in shot.by_kind[kind]} <= known
    for model, _ in known:
        fields = shot.one("model", model)
        assert fields["upstreams"], model
        assert fields.get("barred") or not any(parts[1] == model for parts in shot.by_kind["upstream"]), model
    for fields in shot.by_kind["upstream"].values():
        assert set(fields) <= set(UPSTREAM), fields


UNKNOWN = float((1 << 53) - 1)
"""When a request has left of which that is not known."""


def check_windows(shot: Snapshot) -> None:
    """Attempts count only on models with windows, and do not count on when they are over; nothing counts for ever."""
    for (model,), attempts in shot.by_kind["windows"].items():
        assert {"windows", "requests_per_minute"} & set(shot.one("model", model)), model
        assert shot.ttl("windows", model) > 0, model
        for attempt, left in attempts.items():
            task, _, epoch = attempt.rpartition(":")
            if left == UNKNOWN:
                assert task in shot.one("slots", model), (model, attempt)
                assert shot.one("task", task)["epoch"] == epoch, (model, attempt)


def check_names(shot: Snapshot, tasks: dict[str, dict[str, str]]) -> None:
    """An idempotency key names the one task that was accepted with it, as long as that has not ended, and if it is completed."""
    named = {parts[0]: value.decode().split()[1] for parts, value in shot.by_kind["idempotency"].items()}
    for name, task in named.items():
        assert shot.ttl("idempotency", name) > 0, name
        assert task not in tasks or json.loads(tasks[task]["idempotency"])["name"] == name
    for task, record in tasks.items():
        if "idempotency" in record and record["state"] not in TERMINAL - {"completed"}:
            assert named.get(json.loads(record["idempotency"])["name"]) == task, (task, record)


def check_room(shot: Snapshot, tasks: dict[str, dict[str, str]], now: int, *, carried: bool) -> None:
    """What bodies and ended tasks take: each is counted once, as long as it is there."""
    pool, sizes = shot.one("pool"), Counter[str]()
    assert set(pool) <= set(POOL), set(pool) - set(POOL)
    bodies = [(task, int(record["payload_bytes"])) for task, record in tasks.items() if "payload" in record]
    bodies += [
        (task, int(fields.get("stored_bytes", 0))) for (task,), fields in shot.by_kind["chain"].items()
    ]
    for task, size in bodies:
        if size >= LARGE_BODY:
            sizes[tasks[task]["user"]] += size
    assert {user: int(size) for user, size in shot.one("bulk").items()} == dict(sizes)
    kept = [entry.split() for line in shot.by_kind["expiries"].values() for entry in line]
    assert int(pool.get("kept", 0)) == sum(int(size) for _, size in kept)
    assert len({task for task, _ in kept}) == len(kept), "each is counted once"
    if not carried:  # else the sweep may remove what is over its time while this is read
        assert {task for task, _ in kept} <= set(tasks), "what is counted is there"


def subjects_of(user: str) -> tuple[str, str]:
    """The key of a user and the user, as those who have limits."""
    return f"k:{user.partition('/')[0]}", f"u:{user}"


def running_limits(record: dict[str, str]) -> dict[str, int]:
    """Who may run how many tasks at the same time, of those whom a task counts for."""
    packed = json.loads(record.get("limits") or record.get("part_limits") or '["", ""]')
    limits = [int(text.split()[5]) if text else 0 for text in packed]
    return {
        subject: limit for subject, limit in zip(subjects_of(record["user"]), limits, strict=True) if limit
    }


def check_limits(shot: Snapshot, waiting: set[str], holding: set[str]) -> None:
    """Waiting and running tasks are counted once for each who has a limit of them, and nobody is held without need."""
    waits, runs = Counter[str](), defaultdict[str, set[str]](set)
    for task in waiting:
        waits.update(json.loads(shot.one("task", task).get("charge", "{}")).get("waits") or [])
    assert {subject: int(count) for subject, count in shot.one("waits").items()} == dict(waits)
    for task in holding:
        for subject in json.loads(shot.one("task", task).get("runs", "[]")):
            runs[subject].add(task)
    assert {parts[0]: tasks for parts, tasks in shot.by_kind["runs"].items()} == dict(runs)
    for (subject,), fields in shot.by_kind["limit"].items():
        assert set(fields) <= set(LIMIT)
        assert shot.ttl("limit", subject) > 0
    lanes = defaultdict[str, set[str]](set)
    for queue, _, model, subject in shot.by_kind["at_limit_flows"]:
        lanes[subject].add(f"{queue}:{model}")
    assert {parts[0]: set(found) for parts, found in shot.by_kind["at_limit_lanes"].items()} == dict(lanes)
    assert set(shot.one("at_limit")) == set(lanes)
    for subject, limit in shot.one("at_limit").items():
        if len(runs[subject]) < limit:
            for lane, user in shot.one("at_limit_lanes", subject).items():
                assert user in shot.one("flows", *lane.split(":", 1)), (subject, lane, "one more may run")


def check_credits(shot: Snapshot, live: set[str], lost: bool) -> None:
    """What is held of each balance is what tasks hold of it that have not ended, or whose worker is still to stop. `lost`: tasks
    may hold something of a balance that is not there."""
    held = Counter[tuple[str, str]]()
    balances = {parts[0]: fields for parts, fields in shot.by_kind["balance"].items()}
    for task in live:
        record = shot.one("task", task)
        if "reserved" in record:
            of = json.loads(record["reserved"])
            subject = subjects_of(record["user"])[of["whose"] == "u"]
            of_another = subject in balances and int(balances[subject]["generation"]) != of["generation"]
            if not of_another and not (lost and subject not in balances):
                held[subject, ""] += of["granted"]
                held[subject, of["window"]] += of["of_window"]
    assert {subject for (subject, _), amount in held.items() if amount} <= set(balances)
    assert set(shot.one("balances")) == set(balances)
    for subject, fields in balances.items():
        windows = [fields[name] for name in ("window_1", "window_2") if name in fields]
        older = {window for (whose, window), amount in held.items() if whose == subject and amount} - {
            "",
            "-",
        }
        known = {name.format(window=window) for name in BALANCE for window in windows or [""]}
        assert set(fields) <= known | {f"reserved:{window}" for window in older}, (fields, held)
        for window in ("", *windows, *older):
            name = f"reserved:{window}" if window else "reserved"
            assert int(fields.get(name, 0)) == held[subject, window], (subject, window, fields)


def is_held(shot: Snapshot, queue: str, model: str, user: str) -> bool:
    """Whether a flow is held for its key's or user's limit of running tasks."""
    return any(
        user in users
        for (q, _, m, _), users in shot.by_kind["at_limit_flows"].items()
        if (q, m) == (queue, model)
    )


def running_of_user(shot: Snapshot, model: str, user: str) -> int:
    """Tasks of a user that hold a slot of a model, over all queues."""
    users = shot.one("model", model).get("users_by_lane", {}).items()
    return sum(int(of_lane.running) for (_, name), of_lane in users if name == user)


def check_rules(shot: Snapshot, holding: dict[tuple[str, str, str], set[str]]) -> None:
    """Users are parked for a reason, and no lane's cost shrinks."""
    for (queue, model), users in shot.by_kind["parked"].items():
        cap = int(shot.one("model", model).get("max_running_per_user", 0))
        for user in users:
            running = sum(len(tasks) for (_, m, u), tasks in holding.items() if (m, u) == (model, user))
            assert 0 < cap <= running or is_held(shot, queue, model, user), (queue, user, "is parked")
    for (queue, model), cost in settled_costs(shot).items():
        assert cost >= 0, (queue, model, cost)


def settled_costs(shot: Snapshot) -> dict[tuple[str, str], int]:
    """Cost charged to each lane beside what its running tasks were charged so far: it never shrinks."""
    costs = {place: lane.charged for place, lane in shot.lanes.items()}
    for (model,), tasks in shot.by_kind["slots"].items():
        for task in tasks:
            record = shot.one("task", task)
            costs[record["queue"], model] -= json.loads(record["account"])["cost"]
    return costs


def _set(fields: dict[str, str], *names: str) -> bool:
    return any(fields.get(name, "0") != "0" for name in names)


def check_log(task: str, record: dict[str, str], log: list[Any]) -> None:
    """One log: contiguous, attempts never go back, at most one end, and that last."""
    ids = [tuple(int(part) for part in entry[0].split(b"-")) for entry in log]
    assert [seq for _, seq in ids] == list(range(1, len(ids) + 1)), (task, ids)
    assert ids == sorted(ids), (task, ids)
    # while an attempt streams, the log alone knows its top
    streams = record["state"] == "executing" and "first_output_at" in record
    assert int(record.get("top", len(ids) if streams else 0)) == len(ids), (task, record, ids)
    kinds = [entry[1][1] for entry in log]
    ends = [kind for kind in kinds if kind in TERMINAL_EVENTS]
    assert len(ends) == (record["state"] in TERMINAL), (task, record["state"], kinds)
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
        task
        for task, record in _records(shot).items()
        if record.get("counted") and task in set().union(*holding.values())
    }
    by_queue = {parts[0]: set(members) for parts, members in shot.by_kind["load"].items()}
    assert by_queue == _grouped(
        {task: place for place, tasks in holding.items() for task in tasks & counted}, lambda place: place[0]
    )
    lanes = Counter((queue, model) for queue, model, _ in flows)
    running = Counter[tuple[str, str]]()
    for (queue, model, _), tasks in holding.items():
        running[queue, model] += len(tasks)
    for place, lane in shot.lanes.items():
        assert (lane.users, lane.waiting, lane.running) == (lanes[place], waiting[place], running[place]), (
            place,
            lane,
        )
    assert set(lanes) | {place for place, number in waiting.items() if number} <= set(shot.lanes)
    assert set(shot.one("backlog")) == {model for _, model in lanes}
    for (queue,), fields in shot.by_kind["queue"].items():
        assert int(fields.get("waiting", 0)) == sum(n for (q, _), n in waiting.items() if q == queue)


def _records(shot: Snapshot) -> dict[str, dict[str, str]]:
    return {parts[0]: record for parts, record in shot.by_kind["task"].items()}


def _grouped(
    tasks: dict[str, tuple[str, str, str]], by: Callable[[tuple[str, str, str]], Any]
) -> dict[Any, set[str]]:
    groups = defaultdict[Any, set[str]](set)
    for task, place in tasks.items():
        groups[by(place)].add(task)
    return dict(groups)


def _record(value: Any) -> dict[str, str]:
    """A task's record: both parts, as texts."""
    parts = dict(zip(value[::2], value[1::2], strict=True))
    spec = decode_map(parts[b"spec"]) if b"spec" in parts else {}
    run = decode_map(parts[b"run"])
    held = {"payload": "held"} if parts.get(b"payload") or run.get("payload_bytes") == 0 else {}
    return texts(spec | run) | held


def _model(value: Any) -> dict[str, Any]:
    """A model: its settings, and its state with its lanes."""
    parts = dict(zip(value[::2], value[1::2], strict=True))
    state = parts.get(b"state")
    fields = msgspec.msgpack.decode(state, type=dict[str, msgspec.Raw]) if state else {}
    known = {name: _plain(raw) for name, raw in fields.items() if name != "lanes"}
    users = [
        (name.decode().split(":", 2), packed) for name, packed in parts.items() if name.startswith(b"user:")
    ]
    return texts(decode_values(parts.get(b"settings")) | known) | {
        "lanes": read_state(state).lanes,
        "users_by_lane": {(queue, user): _User(*_USER.unpack(packed)) for (_, queue, user), packed in users},
    }


def _plain(raw: msgspec.Raw) -> Any:
    return msgspec.msgpack.decode(raw)


class _User(NamedTuple):
    """What is known of a user in a lane (lanes.lua)."""

    tag: float
    lifts: float
    running: float
    waiting: float
    aside: float
    output: float
    ms: float
    at: float


_USER = struct.Struct("<8d")


def _queue(value: Any) -> dict[str, str]:
    parts = dict(zip(value[::2], value[1::2], strict=True))
    waiting = {"waiting": parts[b"waiting"].decode()} if b"waiting" in parts else {}
    return texts(decode_values(parts.get(b"settings"))) | waiting


def _pool(value: Any) -> dict[str, Any]:
    pool = _shape("hash", value)
    pool["gaps"] = next(
        (msgspec.msgpack.decode(value[i + 1]) for i in range(0, len(value), 2) if value[i] == b"gaps"), []
    )
    return pool


_SHAPES: dict[str, Callable[[Any], Any]] = {"task": _record, "model": _model, "queue": _queue, "pool": _pool}


def _shape(kind: str, value: Any) -> Any:
    if kind == "hash":
        return {value[i].decode(): value[i + 1].decode(errors="replace") for i in range(0, len(value), 2)}
    if kind == "zset":
        return {value[i].decode(): float(value[i + 1]) for i in range(0, len(value), 2)}
    if kind == "set":
        return {member.decode() for member in value}
    return value


@cache
def _field_of_chain(name: str) -> str:
    """As it stands in the map."""
    return re.sub(r"^(result|usage):.*", r"\1:{stage}", name)


@lru_cache(10_000)
def _usage(packed: bytes) -> UsageRow:
    return read_usage(packed, lambda queue: f"tier of {queue}")


_charge = lru_cache(10_000)(read_charge)


@cache
def _identify(name: bytes, prefix: str) -> tuple[str, tuple[str, ...]]:
    """Which key of the map it is, and its parts. Fails for a name that the map does not know."""
    text = name.decode()
    assert text.startswith(prefix), name
    rest = text[len(prefix) :]
    for key, pattern in _PATTERNS:
        match = pattern.fullmatch(rest)
        if not match:
            continue
        parts = match.groupdict()
        if "model_len" in parts:  # the length says where the model ends and the user begins
            last = list(parts)[-1]
            tail, length = f"{parts['model']}:{parts[last]}".encode(), int(parts["model_len"])
            parts["model"], parts[last] = tail[:length].decode(), tail[length + 1 :].decode()
        return key, tuple(parts.values())
    raise AssertionError(f"no key of the map has the name {name!r}")


def _group(match: re.Match[str]) -> str:
    if match.group(1):
        return rf"(?P<{match.group(2)}_len>\d+)"
    return rf"(?P<{match.group(2)}>{'[^:]*' if match.group(2) in ('queue', 'period') else '.*'})"


def _pattern(key: Key) -> re.Pattern[str]:
    text = re.escape(key.pattern).replace("\\#", "#")
    return re.compile(re.sub(r"\\\{(#?)(\w+)\\\}", _group, text), re.DOTALL)


_PATTERNS = [(key.name, _pattern(key)) for key in KEYS]
