"""The map of every Redis key: one line each for what it holds, how long it lives and who removes it.

All keys of a pool share its hash tag, so that one script may touch them all and a cluster keeps them on one node. Queue names
hold no colon, so a pattern that begins with one reads back unambiguously; where a model and a user both follow, the model
carries its length in front.

The Lua scripts use the same map: `keys_in_lua` makes their `keys.<name>(…)` of it.
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


# fmt: off
KEYS = (
    Key("task", "task:{id}", "hash",
        "a task's record: `spec` and `run`, packed maps (see SPEC, RECORD); `payload` until the first output or the end",
        "sweep, by expiries; PX, if it was never submitted"),
    Key("chain", "chain:{id}", "hash", "what belongs to a chain as a whole (fields: see CHAIN)", "with the record"),
    Key("log", "log:{id}", "stream", "the events: id epoch-seq, fields type, data", "with the record"),
    Key("model", "model:{model}", "hash",
        "`settings` and `state`, packed maps (see MODEL, MODEL_STATE); user:QUEUE:NAME -> a user of a lane, packed (lanes.lua)",
        "sweep, when idle for an hour"),
    Key("slots", "slots:{model}", "zset", "task -> lease end (ms), of tasks that hold a slot", "emptied by ending"),
    Key("flows", "flows:{queue}:{model}", "zset", "user -> start tag, of flows that wait", "emptied by dispatch"),
    Key("parked", "parked:{queue}:{model}", "zset",
        "user -> start tag, of flows that wait for a reason of their user's", "ending, sweep"),
    Key("flow", "flow:{queue}:{#model}:{model}:{user}", "zset", "task -> order of one user", "emptied by dispatch"),
    Key("load", "load:{queue}", "set", "running tasks of a queue over all models, if it has max_running", "emptied by ending"),
    Key("spent", "spent:{model}", "hash", "second -> tokens dispatched in it, of a model paced by tokens", "EXPIRE 2 min"),
    Key("windows", "windows:{model}", "zset",
        "attempt -> when its request had left, us; FOREVER: unknown (pacing.lua)", "PX, a day behind the longest"),
    Key("limit", "limit:{subject}", "hash", "what a key or user has used of its limits (fields: LIMIT)", "PX, till all is back"),
    Key("waits", "waits", "hash", "key or user with a limit of waiting tasks -> how many wait", "emptied by dispatch"),
    Key("balance", "balance:{subject}", "hash",
        "what a key or user can pay with (fields: BALANCE)", "amend, a day after it was used"),
    Key("balances", "balances", "zset", "key or user with a balance -> when it is reckoned up next (ms)", "with the balance"),
    Key("runs", "runs:{subject}", "set", "running tasks of a key or user with a limit of them", "emptied by ending"),
    Key("at_limit", "at_limit", "zset", "key or user with flows parked at its limit -> its limit", "emptied with the next"),
    Key("at_limit_lanes", "at_limit_lanes:{subject}", "hash",
        "queue:model with held flows -> user last let go", "emptied with the next"),
    Key("at_limit_flows", "at_limit_flows:{queue}:{#model}:{model}:{subject}", "zset",
        "user -> start tag, of held flows", "emptied by ending"),
    Key("name_cooldown", "name_cooldown:{model}", "string",
        "no task of * that asks for this name starts before, ms: the provider said so", "PX"),
    Key("fallbacks", "fallbacks:{model}", "zset",
        "waiting task with fallback models -> its order", "emptied with its flow"),
    Key("fallback_models", "fallback_models", "set", "models with such tasks", "sweep, when there are none"),
    Key("aside", "aside", "zset",
        "waiting task whose name is held, or refused too often -> when it is back (ms)", "sweep, ending"),
    Key("queue", "queue:{queue}", "hash", "`settings`, a packed map, and `waiting`, a number (see QUEUE)", "kept: configured"),
    Key("backlog", "backlog", "zset", "model with waiting tasks -> place in the line of models", "emptied by dispatch"),
    Key("line", "line:{models}", "string", "place last served by workers shared by models (their SHA-1)", "EXPIRE 1 h"),
    Key("due", "due", "zset", "task -> next instant (ms) the sweep must look at it", "emptied by ending"),
    Key("pool", "pool", "hash", "bytes, last sweep, totals, places to continue at (fields: see POOL)", "kept: one per pool"),
    Key("bulk", "bulk", "hash", "user -> bytes of its payloads of 16 KiB and more", "first output, or the end"),
    Key("expiries", "expiries:{line}", "zset", "ended task, bytes of its record and log -> when they expire (ms)", "sweep"),
    Key("outbox", "outbox", "stream", "what SQL does not know yet: kind -> entry (outbox.lua; counted rejections)", "recorded"),
    Key("archive", "archive", "stream", "tasks that ended and that the archive shall have: task -> its id", "archived"),
    Key("request", "request:{id}", "string",
        "the request of a task that the archive shall have", "archived; with the record"),
    Key("configured", "configured", "hash", "q:queue or m:model -> settings by the configuration, packed", "configure"),
    Key("overrides", "overrides", "hash", "override -> its fields, packed (see OVERRIDE)", "update_override, sweep"),
    Key("override_ends", "override_ends", "zset", "override -> when it ends (ms)", "with its override"),
    Key("history", "history", "stream", "what each replica counted in ten seconds: from, at, bucket", "trimmed: an hour; EXPIRE"),
    Key("queues", "queues", "set", "known queues", "kept: configured"),
    Key("models", "models", "zset", "known model -> last use (ms), a minute exact", "sweep, when idle for an hour"),
    Key("upstreams", "upstreams", "zset", "model, a line feed, upstream with a stored state -> 0", "sweep"),
    Key("upstream", "upstream:{#model}:{model}:{upstream}", "hash",
        "breaker and hold of a model's upstream (see UPSTREAM)", "sweep"),
    Key("outcomes", "outcomes:{#model}:{model}:{upstream}", "list", "what its attempts came to: ms 1|0", "PX, a window"),
    Key("probes", "probes:{#model}:{model}:{upstream}", "set", "running tasks that probe it", "emptied by ending"),
    Key("serving", "serving:{model}", "zset", "upstream, replica with workers of it -> expiry (ms)", "PX, by offer"),
    Key("offers", "offers:{model}", "zset", "replica with workers for the model -> expiry (ms)", "PX, renewed by offer"),
    Key("offered", "offered", "zset", "model some worker offers -> expiry (ms)", "offer, sweep"),
    Key("idle", "idle:{model}", "zset", "replica with a free slot for it -> since (us)", "popped by a wake-up; PX"),
    Key("replicas", "replicas", "zset", "replica -> expiry (ms)", "offer, sweep"),
    Key("versions", "versions", "hash", "replica -> version of its configuration: modified, read (ms), hash", "sweep"),
    Key("hosts", "hosts", "hash", "replica -> JSON of what it reports of itself (ReplicaInfo)", "sweep"),
    Key("taken", "taken:{nonce}", "string", "tasks granted by a call that has no record", "PX, five times a grant"),
    Key("presence", "presence:{replica}", "hash",
        "the workers connected to a replica (fields: see PRESENCE)", "PX, renewed by present"),
    Key("secret", "secret", "string", "signs stream tickets when none is configured", "kept"),
    Key("database", "database", "string", "identifier of the SQL database that the replicas share", "kept"),
    Key("ticket", "ticket:{until}:{id}", "string", "a stream ticket in use: that of a task which ends at `until`", "PX"),
    Key("uses", "uses:{token}", "string", "how many tasks a signed token of limited uses has submitted", "PX, behind its end"),
    Key("idempotency", "idempotency:{digest}", "string",
        "an idempotency key: fingerprint and task that it names", "PX, set again when its task ends"),
    Key("idempotency_keys", "idempotency_keys:{user}", "string",
        "when a user's idempotency keys are all over, as if they came evenly, us", "PX, then"),
    Key("probe", "probe", "string", "nothing: written to see whether Redis accepts writes again", "PX"),
    Key("clock", "clock", "string", "the time, in tests only", "tests"),
)
# fmt: on

ANY_MODEL = "*"
"""Stands for a model in `offers` and `idle` when a worker takes every model; and the model as which all tasks are scheduled that
ask for a name which no worker offers and no operator configured."""

ENDPOINT = "http:"
"""How the models of endpoints are called, and no others: such a name, and behind it the endpoint's."""
ANY_ENDPOINT = f"{ENDPOINT}*"
"""What a worker registers that makes the calls of all endpoints, also of those that come later."""


def is_reserved(model: str) -> bool:
    """Whether a model is an endpoint's: workers of every model do not run it."""
    return model.startswith(ENDPOINT)


SPEC = {
    "id": "task id",
    "model": "model that it is scheduled as",
    "queue": "queue",
    "user": "user",
    "type": "task type",
    "key_id": "id of the caller's key",
    "priority": "priority, 0 to 5",
    "weight": "weight of the flow, unless 1",
    "input_tokens": "input tokens, estimated from the request",
    "max_input": "the most that they may be, where that is more and the task has a price",
    "max_output": "output tokens the caller asks for at most",
    "answers": "answers it asks for, if more than one and not how long they may be",
    "timeout_ms": "from submission to the end",
    "wait_ms": "for the wait alone",
    "whole_wait": "it may wait for so long, also where its queue's max_wait_ms is less",
    "run_limit": "run limit from the grant, ms",
    "ttl": "how long log and record are kept after the end, ms",
    "max_tries": "tries that it may have, where these are not three",
    "linger_ms": "it is cancelled so long after its last reader left",
    "waiting": "a caller waits for it",
    "stream": "the caller wants tokens as they come",
    "metadata": "metadata, JSON",
    "request_id": "id of the request that submitted it, for the log",
    "traceparent": "traceparent of the trace that it belongs to",
    "model_omitted": "its payload is an object without the model, which is put in for its worker",
    "route": "name that its caller gave, where more than one model may run it",
    "template": "template that its payload was made of: name, version, locale, a line for each",
    "extras": "it uses a feature",
    "keep_after_read": "how long it is kept when its caller has read its end, ms, until then",
    "token_use": "the signed token that it uses (tokens.lua)",
    "price": "what its model costs, packed (credits.lua)",
    "quota": "what it is paid from, packed (credits.lua)",
    "reserve": "what the later stages of its chain may cost",
    "fallbacks": "models that it may fall back to, and what each costs",
    "fallback_after": "it falls back while its model is in a cooldown or paced for longer, ms",
    "schema": "what the finished text must be: a JSON schema, `payload` (as its response_format says) or `object`",
    "repair": "an answer that does not match may be asked for again",
    "idempotency": "the idempotency key that names it (idempotency.lua)",
    "archive": "how long it is kept for the archive, ms",
    "archive_log": "the archive is to have its log",
    "keep_request": "its payload is kept, as its request",
    "limits": "limits of its key and of its user, packed (limits.lua)",
    "part_limits": "limits of a part's chain: the part counts for running tasks alone",
    "webhooks": "webhooks of its caller get its end",
    "permit": "the permit that it waits for (permits.lua)",
    "stage": "stage of its chain: its number, the part or -, its name",
    "chain_start": "it begins a chain (chains.lua)",
    "chain": "its chain, of a part",
    "parts": "parts of the stage that its chain is in, each of them a task: the chain is in no line",
    "part_inputs": "input of each, as estimated, and the most that it may be",
}
"""Fields of a task's record, as the gateway wrote them when it submitted the task: only what is set."""

RECORD = {
    "state": "state",
    "requested_model": "model that was asked for, where it is scheduled as *",
    "enqueued_at": "enqueued, ms",
    "order": "order inside the flow, us: enqueued minus the head start of its priority",
    "deadline": "total deadline, ms",
    "wait_deadline": "deadline of the wait, ms",
    "linger_at": "instant at which it is cancelled unless a reader renews, ms",
    "payload_bytes": "bytes of the payload, while that is stored",
    "readers": "replicas with readers, comma-separated",
    "event_fields": "further fields of its `start` events",
    "failure_fields": "further fields of the event of its failure",
    "attempt": "attempt: its number, from 1",
    "epoch": "epoch of the attempt: the first part of its events' ids. The time of its grant, us, larger than any before",
    "token": "grant token",
    "owner": "owner: the replica that holds the grant",
    "worker": "worker",
    "upstream": "its upstream, if that has a name",
    "granted_at": "granted, ms",
    "attempt_deadline": "deadline of the attempt, ms; 0: none",
    "lease": "end of its lease, ms",
    "account": "account of the attempt: cost charged, weight of the lane, lifts of lane and flow until then",
    "counted": "it counts among the running tasks of its queue",
    "begun": "a worker has begun this attempt",
    "tries": "tries",
    "attempts_before": "attempts before this stage",
    "first_output_at": "first output, ms",
    "top": "top sequence number of the log; absent while its writer adds events without a script (log.lua)",
    "log_bytes": "bytes of the log, about; absent if its writer has added events without a script",
    "progress": "epoch of an attempt, and the data of its last `progress`, which is not logged",
    "gap_moved": "end of the last gap that moved its time, ms",
    "last_lost": "why it may be the reason that its worker was lost (suspects.py)",
    "stranded_until": "until when it waits for a worker, as none was left when it lost its own",
    "history": "earlier attempts: worker, granted, ended, why of each",
    "redone": "its answer was asked for again",
    "used": "tokens: as counted at its last renewal, then as reported with its end",
    "used_before": "tokens of the answer before, of one that was asked for again",
    "ended_at": "ended, ms",
    "end_id": "id of the terminal event",
    "code": "failure code",
    "end_nonce": "nonce of the call that ended it",
    "granted": "tasks granted by the call named in end_nonce, or by its submit if that granted others",
    "kept_bytes": "bytes that are kept of it, of an ended task",
    "kept_in": "line of ended tasks that it stands in (retention.lua)",
    "expires_at": "when what is kept of it goes, ms",
    "keep_ms": "for how long it was to be kept when it ended",
    "more_bytes": "bytes kept in addition to record and log",
    "throttled": "how often its model's provider refused it (429)",
    "report_sent": "its model has windows: its request is reported when it has left (pacing.lua)",
    "paced_tokens": "tokens that it counts for in its model's minute",
    "probe": "1: it probes its upstream; 2: and has shown that this works",
    "granted_in": "last_slot or free_slots of its model when it was granted, until its first output (adaptive.lua)",
    "runs": "key, user or user of a model for which it counts among the running tasks",
    "charge": "what it is charged to the limits of its key and user (limits.lua)",
    "tokens_used": "tokens that it used so far; -1: unknown",
    "reserved": "what it is held of its key's or user's quota (credits.lua)",
    "max_cost": "the most that this stage, or part, may cost, micro-credits",
    "part_costs": "the same of each part",
    "cost": "what it cost, micro-credits",
    "cost_before": "what the answer before cost, of one that was asked for again",
    "paid": "what was paid, for the ledger (credits.lua)",
    "named_until": "until when its idempotency key names it, ms",
    "fallback_history": "models that it left: when and why of each",
    "stage_entered_at": "when its chain entered this stage, ms; absent in the first",
    "advanced": "the call that completed the last stage, and its outcome",
    "parts_run": "its chain has ended, and a part holds a slot still",
    "record_as": "kind of its entry in the outbox, of a chain with parts",
    "permit": "its permit that was used: when, and by which call",
}
"""Fields of a task's record, as the scripts wrote them. One that is in SPEC, too, hides that; false: it is taken away."""

CHAIN = {
    "plan": "what is needed to continue; removed at the end",
    "head": "what is needed for reading",
    "stages": "how many stages there are",
    "stored_bytes": "bytes of plan, head, results and request, which count among those that are stored; absent behind the end",
    "request_bytes": "those of the request as it came, which the bound of a chain does not count; absent where there is none",
    "grace": "how long the slot of a part may stay `stopping`, ms",
    "spent": "what its stages and parts have cost, micro-credits",
    "todo": "parts of the stage that are not done",
    "live": "those that have not ended, or hold a slot still; and one for the chain while it has not ended",
    "begun": "those that were granted",
    "result:{stage}": "result of a stage, or of a part: result:0, result:1.3",
    "usage:{stage}": "tokens that it used: input, output, what else is known",
}
"""Fields of a chain's hash. Plan, head and results are bytes that no script reads."""

MODEL = {
    "concurrency": "concurrency limit",
    "cost": "tokens, requests or slot_seconds",
    "requests_per_minute": "pace",
    "tokens_per_minute": "pace",
    "windows": "how many requests its target may see within a time (pacing.lua)",
    "max_running_per_user": "then further tasks of the user wait, parked",
    "max_waiting_per_user": "then further tasks of the user are rejected",
    "breaker_failures": "failures of an upstream that open its breaker; 0: none does; absent: 5",
    "breaker_open_ms": "for so long at first; absent: 5,000",
    "auto_target_ms": "the concurrency limit is adapted to this time to the first output (adaptive.lua)",
    "auto_min": "the least adapted limit",
    "auto_max": "the largest adapted limit",
    "paused": "1: nothing starts",
    "fixed": "1: something is configured or was changed",
    "paced": "true: one of the two paces or windows are set",
    "extras": "true: a setting is set that a feature reads",
}
"""A model's `settings`, as they are in effect: absent where nothing is set. The last three follow from the others."""

MODEL_STATE = {
    "virtual_time": "virtual time of its lanes: largest start tag served",
    "lanes": "queue -> its lane, packed (lanes.lua has the meaning, models.lua the format)",
    "users": "flows in line, over all lanes",
    "turn": "last place in the line of models",
    "used_at": "last grant, ms",
    "seen_at": "last use that was written to `models`, ms",
    "cursor": "where the sweep continues to tidy up among the users of its lanes",
    "completed": "tasks that completed",
    "failed": "tasks that failed",
    "cancelled": "tasks that were cancelled",
    "mean_output": "mean output, tokens",
    "longest_output": "longest recent output, tokens: it fades as shorter ones come",
    "mean_speed": "mean pace of a task, tokens a second",
    "mean_ms": "mean duration of an attempt, ms",
    "extras": "true: a feature has something to do, whatever the settings are",
    "paced": "true: it was in a cooldown",
    "cooldown_until": "nothing starts before, ms: the provider asked for that",
    "cooldown_by": "the worker that reported it",
    "upstreams": "true: something is remembered of an upstream",
    "barred": "true: one has a breaker that is not closed, or a cooldown",
    "auto": "the adapted concurrency limit, and what it is computed from (adaptive.lua)",
    "permits": "waiting tasks that need a permit and no worker",
    "fallback_cursor": "where the sweep continues among the tasks with fallback models",
}
"""A model's `state`, which scripts write. A field hides the setting of the same name."""

UPSTREAM = {
    "till": "its breaker is open until then, ms, and then half-open; absent: closed",
    "since": "when it opened, or was forced, ms",
    "number": "how often it opened since, without closing between",
    "why": "failure code of the last failure",
    "forced": "open or closed: an operator wants it so",
    "cooldown_until": "nothing starts before, ms: its provider said so",
    "cooldown_by": "the worker that reported it",
}
"""Fields of an upstream's hash."""

QUEUE = {
    "weight": "share of service",
    "max_length": "waiting tasks over all models; 0 or absent: the default",
    "max_wait_ms": "longest wait",
    "max_running": "running tasks over all models",
    "reserved": "slots of each limited model that it is owed",
    "admission": "fixed or adaptive",
    "paused": "1: nothing of it starts",
    "waiting": "waiting tasks",
}
"""A queue's `settings`, and `waiting`, which is a field of the hash itself."""

LIMIT = {
    "limits": "by which limits it is reckoned, packed",
    "expires_at": "until when the key lives, us",
    "requests_minute": "requests a minute: when all is back, us",
    "requests_day": "requests a day",
    "tokens_minute": "tokens a minute",
    "tokens_day": "tokens a day",
}
"""Fields of the limits of a subject: a caller's key, `k:<id>`, or a user of one, `u:<user>`."""

BALANCE = {
    "balance": "what was granted, less what tasks that have ended have cost of it",
    "reserved": "held of it, for tasks that have not",
    "granted": "what was granted",
    "last_grant": "number of the last grant in it",
    "window_1": "window of the budget that was used last: d or m and its end, ms",
    "window_2": "the one before that",
    "spent:{window}": "what tasks that have ended have cost of a window",
    "reserved:{window}": "held of it",
    "settled": "tasks that have been paid or given back, as they are numbered in SQL",
    "generation": "generation: its number among the balances made of what SQL knew; holds of an earlier one are none of its own",
    "sql_mark": "mark of what SQL has said of it last: the time, us, and larger than any before",
    "reconciled": "settled, when it was last reckoned up",
    "idle_since": "since when that is so and nothing is held, ms",
}
"""Fields of the balance of a subject, as of LIMIT. Amounts are micro-credits."""

OVERRIDE = {
    "target": "queue, model or route",
    "name": "its name",
    "settings": "setting of a queue or model -> value: what scripts apply",
    "values": "dotted name of a setting -> value, JSON: what replicas apply",
    "percent": "share of the tasks",
    "until": "when it ends, ms; 0: when an operator rolls it back",
    "status": "active or promoted",
    "order": "of two overrides that set the same value, the one of the higher order wins",
    "created_by": "id of the operator's key",
    "created_at": "ms",
}
"""Fields of an override."""

PRESENCE = {
    "worker:{worker}": "JSON: what holds as long as the worker does not change",
    "live": "JSON: worker id -> running tasks and ms since it was last heard of; silent: worker id -> for how long a task of "
    "it has given no sign, ms; as of the last renewal",
}
"""Fields of a replica's presence."""

POOL = {
    "bytes": "bytes of payloads",
    "kept": "bytes of records and logs of ended tasks, as of the last sweep",
    "dropped": "ended tasks that were dropped early to save space",
    "generation": "balances that were made, of all subjects: the last one's",
    "version": "version of the configuration in effect: modified, read (ms), hash, replica that set it",
    "overrides": "version of the overrides: about when one was written last, us",
    "acted": "id of the newest entry of the audit record",
    "born": "when it was configured first, us: another one means that the store was emptied meanwhile",
    "swept": "last sweep, ms",
    "woke": "when the sweep last repeated wake-ups, ms",
    "tidied": "where the sweep continues to tidy up among the models",
    "moving": "where it continues to move offers after a gap, and from which instant (ms), by how much (ms); absent: nowhere",
    "gaps": "gaps in which no replica could renew anything: when each ended and by how much it moves, ms, packed",
    "stranded": "where it continues to look for tasks of * without a worker",
}
"""Fields of the pool's hash."""

CHANNEL = "channel:"
"""Behind the prefix, before the replica: its pub/sub channel. What is published there: see MESSAGES."""

MESSAGES = {
    "wake": "model: something of it can start, and this replica alone gets the message",
    "wake_all": "model: the same, to all replicas with workers for it",
    "stop": "task, epoch, why: stop the worker that runs it",
    "drain": "worker: drain it, an operator wants it to go",
    "event_id": "task, event id: an event of a task that is read here; it is large, so read it from the log",
    "event": "task, event id, type, data: an event of a task that is read here",
    "ephemeral": "task, type, data: the same, of an event that is not logged (`progress`)",
    "reader": "task, epoch, replica: the replica reads a task that runs here",
    "breaker": "a breaker: open, probing or closed; for how long, ms; replica that logs it, failure code, model, upstream",
}
"""Messages of a replica's channel: a word, and what follows it, each behind a line feed."""

_PART = re.compile(r"\{(#?\w+)\}")


def pool_prefix(pool: int = 0) -> str:
    """The prefix of every key of a pool, with its hash tag."""
    return f"fairlane:{{{pool}}}:"


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
        """The pub/sub channel of a replica: wake-ups, requests to stop a task or drain a worker, events of the tasks it reads."""
        return f"{self.prefix}{CHANNEL}{replica}"


def keys_in_lua() -> str:
    """Lua's builders of the same names: `keys.task(id)`, over the prefix in `P`."""
    lines = ["local P", "local keys = {}"]
    for entry in KEYS:
        values = [
            f"{part}_" for part in dict.fromkeys(part.lstrip("#") for part in _PART.findall(entry.pattern))
        ]
        name = _PART.sub(lambda part: f"' .. {part[1]}_ .. '", entry.pattern)
        lines.append(
            f"function keys.{entry.name}({', '.join(values)}) return P .. '{name}' end".replace(" .. ''", "")
        )
    return "\n".join([*lines, f"function keys.channel(replica) return P .. '{CHANNEL}' .. replica end", ""])
