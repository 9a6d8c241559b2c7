"""What must be true of Redis when all tasks have ended, whatever happened before."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, msgpack
from tests.support.serving import DEADLINE_S, until

from fairlane.queues.keys import Keys, pool_prefix

KEYS = Keys(pool_prefix())
ENDS = {b"done", b"error", b"cancelled"}


def record_of(store: Any, task_id: str) -> dict[str, Any]:
    """What scripts have written of a task; {} if there is none."""
    packed = store.hget(KEYS("task", id=task_id), "run")
    return msgpack.decode(packed) if packed else {}


class _Ends(Struct):
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


def ended(states: Iterable[bytes | None]) -> Counter[str]:
    """How many tasks have ended in each state, by the states of their models."""
    models = [msgpack.decode(state, type=_Ends) for state in states if state]
    return Counter({end: sum(getattr(model, end) for model in models) for end in _Ends.__struct_fields__})


def ended_in(store: Any) -> Counter[str]:
    """How many tasks have ended in each state."""
    return ended(store.hget(key, "state") for key in store.scan_iter(f"{KEYS.prefix}model:*"))


async def ended_at(link: Any) -> Counter[str]:
    """The same, over a gateway's connection."""
    keys = await link.command("KEYS", f"{KEYS.prefix}model:*")
    return ended([await link.command("HGET", key, "state") for key in keys])


def tasks_in(store: Any) -> list[str]:
    """All tasks with a log."""
    begin = KEYS("log", id="")
    return [key.decode().removeprefix(begin) for key in store.scan_iter(f"{begin}*")]


def change_record(store: Any, task_id: str, **values: Any) -> None:
    """Write fields of a task."""
    run = record_of(store, task_id) | values
    store.hset(KEYS("task", id=task_id), "run", msgpack.encode(run))


def events(store: Any, task_id: str) -> list[tuple[str, bytes]]:
    """Id and type of every event in a task's log."""
    entries: Any = store.xrange(KEYS("log", id=task_id))
    return [(entry.decode(), fields[b"type"]) for entry, fields in entries]


def ended_once(store: Any, task_id: str) -> bytes:
    """Check that a log has one end, at its end, and no hole; the type of the end."""
    log = events(store, task_id)
    kinds = [kind for _, kind in log]
    assert len([kind for kind in kinds if kind in ENDS]) == 1, f"{task_id}: {log}"
    assert kinds[-1] in ENDS, f"{task_id}: {log}"
    assert [int(event_id.partition("-")[2]) for event_id, _ in log] == list(range(1, len(log) + 1))
    epochs = [int(event_id.partition("-")[0]) for event_id, _ in log]
    assert epochs == sorted(epochs)
    return kinds[-1]


def leftovers(store: Any) -> list[str]:
    """What is still taken or queued: empty when every task has ended and every worker has answered."""
    prefix = pool_prefix()
    found = []
    for sort in ("slots:", "flow:", "flows:"):
        found += [key.decode() for key in store.scan_iter(f"{prefix}{sort}*")]
    for name in ("due", "backlog"):
        if store.exists(KEYS(name)):
            found.append(f"{name}: {store.zrange(KEYS(name), 0, -1)!r}")
    if queued := int(store.hget(KEYS("pool"), "bytes") or 0):
        found.append(f"queued bytes: {queued}")
    for queue in store.smembers(KEYS("queues")):
        if waiting := int(store.hget(KEYS("queue", queue=queue.decode()), "waiting") or 0):
            found.append(f"waiting in {queue.decode()}: {waiting}")
    return found


async def nothing_left(store: Any, deadline_s: float = DEADLINE_S) -> None:
    """Wait until nothing is taken or queued; fails with what still is."""
    try:
        await until(lambda: leftovers(store) == [], "everything to be given back", deadline_s)
    except AssertionError as error:
        tasks = [key.decode() for key in store.scan_iter(f"{pool_prefix()}slots:*")]
        for key in tasks:
            for task_id, end in store.zrange(key, 0, -1, withscores=True):
                record = record_of(store, task_id.decode())
                error.add_note(f"{key} until {end:.0f}: {record} {events(store, task_id.decode())}")
        error.add_note(f"left: {leftovers(store)}")
        raise
