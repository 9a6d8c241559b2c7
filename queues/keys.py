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
    Key("task", "task:{id}", "hash", "a task's record (fields: see RECORD)", "EXPIRE, set when it ends"),
    Key("payload", "payload:{id}", "string", "the request body", "first output, or the end"),
    Key("chain", "chain:{id}", "hash", "what belongs to a chain as a whole (fields: see CHAIN)", "EXPIRE with the record"),
    Key("log", "log:{id}", "stream", "the events: id epoch-seq, fields type, data", "EXPIRE with the record"),
    Key("model", "model:{model}", "hash", "settings, tags, means (fields: see MODEL)", "sweep, when idle for an hour"),
    Key("slots", "slots:{model}", "zset", "task -> lease end (ms), of tasks that hold a slot", "emptied by ending"),
    Key("lanes", "lanes:{model}", "zset", "queue -> start tag, of lanes with waiting tasks", "emptied by dispatch"),
    Key("flows", "flows:{queue}:{model}", "zset", "user -> start tag, of flows that wait", "emptied by dispatch"),
    Key("parked", "parked:{queue}:{model}", "zset", "user -> start tag, of flows at their user's cap", "emptied by ending"),
    Key("debts", "debts:{queue}:{model}", "zset", "user -> start tag, of idle flows not forgotten", "finish, sweep"),
    Key("lifts", "lifts:{queue}:{model}", "zset", "user -> sum of lifts while tasks of it run", "emptied by ending"),
    Key("flow", "flow:{queue}:{#model}:{model}:{user}", "zset", "task -> order of one user", "emptied by dispatch"),
    Key("busy", "busy:{queue}:{#model}:{model}:{user}", "set", "running tasks of one flow", "emptied by ending"),
    Key("running", "running:{queue}:{model}", "set", "running tasks of a lane, while a rule asks for them", "emptied by ending"),
    Key("load", "load:{queue}", "set", "running tasks of a queue over all models, for the same rules", "emptied by ending"),
    Key("spent", "spent:{model}", "hash", "second -> tokens dispatched in it, of a model paced by tokens", "EXPIRE 2 min"),
    Key("windows", "windows:{model}", "zset",
        "attempt -> when its request had left, us; FOREVER: unknown (windows.lua)", "PX, a day"),
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
    Key("mean_ms", "mean_ms:{#model}:{model}:{user}", "string", "mean duration of one user's attempts, ms", "EXPIRE 1 h"),
    Key("mean_output", "mean_output:{#model}:{model}:{user}", "string", "mean output tokens of one user", "EXPIRE 1 h"),
    Key("name_cooldown", "name_cooldown:{model}", "string",
        "no task of * that asks for this name starts before, ms: the provider said so", "PX"),
    Key("aside_of", "aside_of:{queue}", "hash", "user -> tasks of a queue that stand aside", "emptied with aside"),
    Key("fallbacks", "fallbacks:{model}", "zset",
        "waiting task with fallback models -> its order", "emptied with its flow"),
    Key("fallback_models", "fallback_models", "set", "models with such tasks", "sweep, when there are none"),
    Key("aside", "aside", "zset",
        "waiting task whose name is held, or refused too often -> when it is back (ms)", "sweep, ending"),
    Key("queue", "queue:{queue}", "hash", "settings and number of waiting tasks (fields: see QUEUE)", "kept: configured"),
    Key("backlog", "backlog", "zset", "model with waiting tasks -> place in the line of models", "emptied by dispatch"),
    Key("line", "line:{models}", "string", "place last served by workers shared by models (their SHA-1)", "EXPIRE 1 h"),
    Key("due", "due", "zset", "task -> next instant (ms) the sweep must look at it", "emptied by ending"),
    Key("pool", "pool", "hash", "bytes, last sweep, totals, places to continue at (fields: see POOL)", "kept: one per pool"),
    Key("bulk", "bulk", "hash", "user -> bytes of its payloads of 16 KiB and more", "first output, or the end"),
    Key("endings", "endings", "list", "task, bytes, ended, expiry (ms) of those ended since the last sweep", "sweep"),
    Key("ended", "ended", "zset", "task, bytes of its record and log -> ended (ms)", "sweep, when it expires"),
    Key("expiries", "expiries", "zset", "the same -> when record and log expire (ms)", "sweep, when it expires"),
    Key("outbox", "outbox", "stream", "what SQL does not know yet: kind -> entry (records.lua; counted rejections)", "recorded"),
    Key("archive", "archive", "stream", "tasks that ended and that the archive shall have: task -> its id", "archived"),
    Key("request", "request:{id}", "string",
        "the request of a task that the archive shall have", "archived; PX, set when it ends"),
    Key("configured", "configured", "hash", "setting of a queue or model -> value, from the configuration", "configure"),
    Key("overrides", "overrides", "hash", "override -> its fields, packed (see OVERRIDE)", "update_override, sweep"),
    Key("overridden", "overridden", "hash", "setting of a queue or model -> value that overrides set", "with its override"),
    Key("override_ends", "override_ends", "zset", "override -> when it ends (ms)", "with its override"),
    Key("history", "history", "stream", "what each replica counted in ten seconds: from, at, bucket", "trimmed: an hour; EXPIRE"),
    Key("queues", "queues", "set", "known queues", "kept: configured"),
    Key("models", "models", "zset", "known model -> last use (ms), a minute exact", "sweep, when idle for an hour"),
    Key("recent", "recent", "zset", "the last 10,000 tasks -> enqueued (ms)", "trimmed by sweep"),
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
        "an idempotency key: fingerprint and task that it names", "PX, set when it ends"),
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


RECORD = {
    "state": "state",
    "queue": "queue",
    "model": "model that it is scheduled as",
    "requested_model": "model that was asked for, where it is scheduled as *",
    "route": "name that its caller gave, where more than one model may run it",
    "fallbacks": "models that it may fall back to: a line for each, with what it costs there",
    "fallback_after": "it falls back while its model is in a cooldown or throttled for longer, ms",
    "model_omitted": "1: its payload is an object without the model, which is put in for its worker",
    "template": "template that its payload was made of: name, version, locale, a line for each",
    "user": "user",
    "key_id": "id of the caller's key",
    "type": "task type",
    "enqueued_at": "enqueued, ms",
    "order": "order inside the flow, us: enqueued minus the head start of its priority",
    "priority": "priority",
    "input_tokens": "input tokens, estimated from the request",
    "max_input": "the most that they may be, where that is more and the task has a price",
    "max_output": "output tokens the caller asks for at most",
    "answers": "answers it asks for, if more than one and not how long they may be",
    "weight": "weight of the flow, unless 1",
    "deadline": "total deadline, ms",
    "wait_deadline": "deadline of the wait, ms",
    "run_limit": "run limit from the grant, ms",
    "ttl": "how long log and record are kept after the end, ms",
    "linger": "linger: cancelled this long after its last reader left, ms",
    "linger_at": "instant at which it is cancelled unless a reader renews, ms",
    "waiting": "1: a caller waits for it",
    "stream": "1: the caller wants tokens as they come",
    "metadata": "metadata, JSON",
    "request_id": "id of the request that submitted it, for the log",
    "token_use": "the signed token that it uses: how many uses that has, how long they are remembered (ms), its name",
    "idempotency": "the idempotency key that names it: its name, and until when it does (ms)",
    "traceparent": "traceparent of the trace that it belongs to",
    "payload_bytes": "bytes of the payload",
    "readers": "replicas with readers, comma-separated",
    "limits": "what it is charged to the limits of its key and user (limits.lua)",
    "price": "what its model costs: micro-credits for a million tokens of input, cached, output, reasoning; and for a task",
    "reserved_credits": "what it is held of its key's or user's quota (credits.lua)",
    "attempt": "attempt: its number, from 1",
    "epoch": "epoch of the attempt: the first part of its events' ids. The time of its grant, us, larger than any before",
    "grant_token": "grant token",
    "owner": "owner: the replica that holds the grant",
    "worker": "worker",
    "upstream": "its upstream, if that has a name",
    "probe": "1: it probes its upstream; 2: and has shown that this works",
    "granted_at": "granted, ms",
    "attempt_deadline": "deadline of the attempt, ms",
    "begun": "1: a worker has begun this attempt",
    "throttled": "how often its model's provider refused it (429)",
    "tries": "tries",
    "max_tries": "tries that it may have, where these are not three",
    "stage": "stage of its chain: its number, the part (or -), its name",
    "chain": "its chain, of a part",
    "parts": "parts of the stage that its chain is in, each of them a task: the chain is in no line",
    "stage_entered_at": "when its chain entered this stage, ms; absent in the first",
    "attempts_before": "attempts before this stage",
    "max_cost": "the most that this stage, or part, may cost, micro-credits",
    "advance": "nonce of the advance that completed the last stage, what that came to, and its first event",
    "account": "account of the attempt: cost charged, weight of the lane, lifts of lane and flow until then, tokens, 1: counted",
    "first_output_at": "first output, ms",
    "top_seq": "top sequence number of the log",
    "progress": "epoch of an attempt, and the data of its last `progress`, which is not logged",
    "gap_moved": "end of the last gap that moved its time, ms",
    "last_lost": "why it may be the reason that its worker was lost (suspects.py)",
    "stranded_until": "until when it waits for a worker, as none was left when it lost its own",
    "fallback_history": "models that it left: a line for each, with when (ms) and why",
    "history": "earlier attempts: worker|granted|ended|why; …",
    "ended_at": "ended, ms",
    "end_id": "id of the terminal event",
    "code": "failure code",
    "end_nonce": "nonce of the call that ended it",
    "schema": "what the finished text must be: a JSON schema, `payload` (as its response_format says) or `object`",
    "repair": "1: an answer that does not match may be asked for again; then 2, what that answer used, and cost (repairs.lua)",
    "usage": "tokens that were reported with its end, of one whose worker was still to stop: input, output, what else is known; "
    "before that, of a task with a price, as counted at its last renewal",
    "archive": "how long it is kept for the archive, ms, if that does not have it; and `r`: with its request; or `l`: its log, "
    "of a response",
    "keep_after_read": "how long it is kept when its caller has read its end, ms, until then",
    "permit": "its permit that is out: until when it may be used, or holds its slot, ms; for how long either is, ms; when it was "
    "used (0: not yet); and by which call",
    "stored_bytes": "bytes of record and log as they were noted at its end, of a task with archive or keep_after_read",
    "webhooks": "1: webhooks of its caller get its end",
    "granted_tasks": "tasks granted by the call named in end_nonce or by its submit",
}
"""Fields of a task's record."""

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
    "windows": "how many requests its target may see within a time (windows.lua)",
    "max_running_per_user": "then further tasks of the user wait, parked",
    "max_waiting_per_user": "then further tasks of the user are refused",
    "paused": "1: nothing starts",
    "fixed": "1: something is configured or was changed",
    "rules": "1: paused, paced, with windows, or capped per user",
    "cooldown_until": "nothing starts before, ms: the provider said so",
    "cooldown_by": "the worker that reported it",
    "requests_at": "no request before, us (pace by requests)",
    "tokens_at": "no request before, us (pace by tokens)",
    "fallback_cursor": "where the sweep continues among the tasks with fallback models",
    "breaker_failures": "failures of an upstream that open its breaker; 0: none does; absent: 5",
    "breaker_open_ms": "for so long at first; absent: 5,000",
    "upstream_state": "something is remembered of an upstream: 1 outcomes, 2 a breaker that is not closed, or a hold, too",
    "mean_output": "mean output, tokens",
    "longest_output": "longest recent output, tokens: it fades as shorter ones come",
    "mean_speed": "mean pace of a task, tokens a second",
    "mean_ms": "mean duration of an attempt, ms",
    "used": "last grant, us",
    "users": "flows in line, over all lanes",
    "turn": "last place in the line of models",
    "wide": "a long value, so that Redis keeps the hash as a table",
    "virtual_time": "virtual time of its lanes: largest start tag served",
    "lane_vtime:{queue}": "virtual time of the lane's flows",
    "lane_tag:{queue}": "start tag of the lane, valid while it is idle",
    "lane_lifts:{queue}": "sum of the lane's lifts",
    "lane_skipped:{queue}": "1: the lane had to stand back for a rule",
    "waiting:{queue}": "waiting tasks",
    "drain:{queue}": "departures from the lane while some waited: their number, the ms they took, when the last was; packed",
    "charged:{queue}": "cost charged so far: tokens, requests or ms of slots",
}
"""Fields of a model's hash; the first are settings, absent where nothing is set."""

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
    "strict": "1: some queue is paused or has a rule about running tasks",
    "waiting": "waiting tasks",
}
"""Fields of a queue's hash."""

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
    "dropped": "ended tasks that were dropped before their time, for want of room",
    "generation": "balances that were made, of all subjects: the last one's",
    "completed": "tasks that completed",
    "failed": "tasks that failed",
    "cancelled": "tasks that were cancelled",
    "strict": "1: some queue is paused or has a rule about running tasks",
    "version": "version of the configuration in effect: modified, read (ms), hash, replica that set it",
    "overrides": "version of the overrides: about when one was written last, us",
    "acted": "id of the newest entry of the audit record",
    "born": "when it was configured first, us: another one means that the store was emptied meanwhile",
    "swept": "last sweep, ms",
    "woke": "when the sweep last repeated wake-ups, ms",
    "ruling": "where to continue among the models that a change of a queue concerns; absent: nowhere",
    "tidied": "where the sweep continues to tidy up among the models",
    "moving": "where it continues to move offers after a gap, and from which instant (ms), by how much (ms); absent: nowhere",
    "away": "gaps in which no replica could renew anything: when each ended (ms), by how much it moves (ms), …",
    "stranded": "where it continues to look for tasks of * without a worker",
}
"""Fields of the pool's hash."""

CHANNEL = "channel:"
"""Behind the prefix, before the replica: its pub/sub channel. What is published there: see MESSAGES."""

MESSAGES = {
    "wake": "model: something of it can start, and this replica alone gets the message",
    "wake_all": "model: the same, to all replicas with workers for it",
    "permit": "model of an endpoint: a permit of it can be given out, and this replica alone gets the message",
    "stop": "task, epoch, why: stop the worker that runs it",
    "drain": "worker: drain it, an operator wants it to go",
    "event_id": "task, event id: an event of a task that is read here; it is large, so read it from the log",
    "event": "task, event id, type, data: an event of a task that is read here",
    "ephemeral": "task, type, data: the same, of an event that is not logged (`progress`)",
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
