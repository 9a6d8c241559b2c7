"""The map of every Redis key: one line each for what it holds, how long it lives and who removes it.

All keys of a pool share its hash tag, so that one script may touch them all and a cluster keeps them on one node. Queue names
hold no colon, so a pattern that begins with one reads back unambiguously; where a model and a user both follow, the model
carries its length in front.

The Lua scripts get the same map: `lua_builders` turns each pattern into a function `key_<name>(…)` over `P`, the prefix.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Key:
    """One kind of key. `pattern` stands behind the pool's prefix; `{#x}` is the length in bytes of `x`."""

    name: str
    pattern: str
    kind: str
    holds: str
    removed: str


KEYS = (
    Key("task", "t:{id}", "hash", "a task's record (fields: see RECORD)", "EXPIRE, set when it ends"),
    Key("payload", "p:{id}", "string", "the request body", "first output, or the end"),
    Key(
        "log",
        "e:{id}",
        "stream",
        "the event log, id attempt-seq, fields type and data",
        "EXPIRE with the record",
    ),
    Key(
        "model",
        "m:{model}",
        "hash",
        "limit, cost, lane tags and means of a model",
        "sweep, when idle for an hour",
    ),
    Key(
        "slots",
        "s:{model}",
        "zset",
        "task -> lease end (ms): the concurrency limit's leases",
        "emptied by ending",
    ),
    Key(
        "lanes", "a:{model}", "zset", "queue -> start tag, of lanes with waiting tasks", "emptied by dispatch"
    ),
    Key(
        "flows",
        "l:{queue}:{model}",
        "zset",
        "user -> start tag, of flows with waiting tasks",
        "emptied by dispatch",
    ),
    Key(
        "debts",
        "d:{queue}:{model}",
        "zset",
        "user -> start tag, of idle flows not yet forgotten",
        "finish, sweep",
    ),
    Key(
        "flow",
        "f:{queue}:{#model}:{model}:{user}",
        "zset",
        "task -> order of one user",
        "emptied by dispatch",
    ),
    Key("busy", "u:{queue}:{#model}:{model}:{user}", "set", "running tasks of one flow", "emptied by ending"),
    Key("mean", "n:{#model}:{model}:{user}", "string", "mean output tokens of one user", "EXPIRE 1 h"),
    Key(
        "queue",
        "q:{queue}",
        "hash",
        "weight, limit and number of waiting tasks of a queue",
        "kept: configured",
    ),
    Key("backlog", "b", "zset", "model with waiting tasks -> last grant (us)", "emptied by dispatch"),
    Key("look", "x", "zset", "task -> next instant (ms) the sweep must look at it", "emptied by ending"),
    Key("pool", "pool", "hash", "queued bytes, last sweep, totals of ended tasks", "kept: one per pool"),
    Key("queues", "queues", "set", "known queues", "kept: configured"),
    Key("models", "models", "zset", "known model -> last use (ms)", "sweep, when idle for an hour"),
    Key("recent", "recent", "zset", "the last 10,000 tasks -> enqueued (ms)", "trimmed by submit"),
    Key("offers", "o:{model}", "zset", "replica with workers for the model -> expiry (ms)", "offer, sweep"),
    Key("offered", "offered", "zset", "model some worker offers -> expiry (ms)", "offer, sweep"),
    Key(
        "idle",
        "i:{model}",
        "zset",
        "replica with a free slot for the model -> since (ms)",
        "popped by a wake-up",
    ),
    Key("replicas", "replicas", "zset", "replica -> expiry (ms)", "offer, sweep"),
    Key(
        "presence",
        "w:{replica}",
        "string",
        "JSON: the workers connected to a replica",
        "PX, renewed by offer",
    ),
    Key("secret", "secret", "string", "signs stream tickets when none is configured", "kept"),
    Key("clock", "clock", "string", "the time, in tests only", "tests"),
)

ANY_MODEL = "*"
"""Stands for a model in `offers` and `idle` when a worker takes every model."""

RECORD = {
    "st": "state",
    "q": "queue",
    "m": "model",
    "u": "user",
    "k": "id of the caller's key",
    "ty": "task type",
    "en": "enqueued, ms",
    "or": "order inside the flow: enqueued minus the head start of its priority",
    "pr": "priority",
    "ei": "input tokens, estimated from the request",
    "mo": "output tokens the caller asks for at most",
    "w": "weight of the flow",
    "dl": "total deadline, ms",
    "wd": "deadline of the wait, ms",
    "rl": "run limit from the grant, ms",
    "tl": "how long log and record are kept after the end, ms",
    "lg": "linger: cancelled this long after its last reader left, ms",
    "lv": "instant at which it is cancelled unless a reader renews, ms",
    "wt": "1: a caller waits for it",
    "sf": "1: the caller wants tokens as they come",
    "md": "metadata, JSON",
    "pb": "bytes of the payload",
    "rd": "replicas with readers, comma-separated",
    "at": "attempt",
    "gt": "grant token",
    "ow": "owner: the replica that holds the grant",
    "wk": "worker",
    "ga": "granted, ms",
    "xd": "deadline of the attempt, ms",
    "bg": "1: a worker has begun this attempt",
    "tr": "tries",
    "ch": "cost charged at dispatch",
    "fo": "first output, ms",
    "sq": "top sequence number of the log",
    "ls": "workers that were lost with it, comma-separated",
    "hi": "earlier attempts: worker|granted|ended|why; …",
    "ed": "ended, ms",
    "co": "failure code",
    "fn": "nonce of the call that ended it",
    "ng": "tasks granted by the call named in fn or by its submit",
}
"""Fields of a task's record, by their short names: they are stored with every queued task."""

_PART = re.compile(r"\{(#?\w+)\}")


def pool_prefix(pool: int = 0, namespace: str = "fairlane") -> str:
    """The prefix of every key of a pool, with its hash tag."""
    return f"{namespace}:{{{pool}}}:"


class Keys:
    """Builds the full name of each key of one pool: `Keys(prefix)("task", id=…)`."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._patterns = {key.name: key.pattern for key in KEYS}

    def __call__(self, name: str, **parts: str) -> str:
        def fill(match: re.Match[str]) -> str:
            part = match.group(1)
            return str(len(parts[part[1:]].encode())) if part[0] == "#" else parts[part]

        return self.prefix + _PART.sub(fill, self._patterns[name])

    def channel(self, replica: str) -> str:
        """The pub/sub channel of a replica: wake-ups, stop requests and events of the tasks it reads."""
        return f"{self.prefix}c:{replica}"


def lua_builders() -> str:
    """The same map as Lua functions: `key_task(id)` and so on, over the prefix in `P`."""
    lines = []
    for key in KEYS:
        names = list(dict.fromkeys(part.lstrip("#") for part in _PART.findall(key.pattern)))
        pieces = ["P"]
        at = 0
        for match in _PART.finditer(key.pattern):
            if match.start() > at:
                pieces.append(f"'{key.pattern[at : match.start()]}'")
            pieces.append(match.group(1))
            at = match.end()
        if at < len(key.pattern):
            pieces.append(f"'{key.pattern[at:]}'")
        lines.append(f"local function key_{key.name}({', '.join(names)}) return {' .. '.join(pieces)} end")
    return "\n".join(lines) + "\n"
