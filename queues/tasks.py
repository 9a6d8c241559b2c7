"""Arguments and answers of the scheduler: plain values, no Redis."""

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlane.queues.limits import RateLimitStatus


class State(enum.StrEnum):
    """Where a task is in its life."""

    QUEUED = "queued"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class TaskSpec(
    msgspec.Struct,
    omit_defaults=True,
    rename={
        "task_type": "type",
        "key": "key_id",
        "estimated_input": "input_tokens",
        "run_ms": "run_limit",
        "keep_ms": "ttl",
        "asked": "route",
    },
):
    """A task as it is submitted. Durations in ms; 0 = none. `packed` names its fields as a record does (keys.py, SPEC)."""

    id: str
    model: str
    queue: str
    user: str
    payload: bytes = b""
    blobs: Sequence[bytes] = ()
    """More bytes that a feature stores with it."""
    task_type: str = msgspec.field(default_factory=lambda: "openaiLike")  # (always packed, as each factory's)
    key: str = ""
    priority: int = 0
    weight: float = 0
    """Of its user's flow; 0 = 1."""
    estimated_input: int = 0
    """Tokens of the request, estimated."""
    max_output: int = 0
    """Tokens of output the caller asks for at most; 0 = not said."""
    answers: int = 1
    """How many answers it asks for, if `max_output` does not include them all."""
    timeout_ms: int = 0
    """From submission to the end, waiting included."""
    wait_ms: int = 0
    """For the wait alone."""
    whole_wait: bool = False
    """It may wait for so long, also where its queue's `max_wait_ms` is less."""
    run_ms: int = 0
    """From the grant to the end."""
    keep_ms: int = msgspec.field(default_factory=lambda: 300_000)
    """How long record and log are kept after the end."""
    max_tries: int = 0
    """How often a worker may begin it before it fails finally; 0 = three times. 1 = never twice, even if a worker is lost."""
    linger_ms: int = 0
    """Cancelled this long after its last reader left; 0 = never."""
    waiting: bool = False
    """A caller waits: with no worker left it ends immediately instead of waiting for one."""
    stream: bool = False
    """The caller wants tokens as they come (sent to the worker)."""
    metadata: str = ""
    """JSON."""
    traceparent: str = ""
    """The trace that it belongs to (W3C Trace Context); '' = none."""
    request_id: str = ""
    """Of the HTTP request that brought it; for the log."""
    asked: str = ""
    """The name that its caller gave, where more than one model may run it."""
    template: str = ""
    """What its payload was made of: name, version and locale of the template."""
    model_omitted: bool = False
    """Its payload is an object without the model, which is put in when the task is granted."""
    extras: dict[str, Any] = {}
    """What features say of it, by the record's fields: only what is set."""
    downgrade: "TaskSpec | None" = None
    """What it becomes, and is not paid, where there is not enough; None = it is refused."""
    idempotency_key: str = ""
    """As its caller said it, for answers."""
    again: bool = False
    """It is submitted by this id until that is answered, without a waiting caller: a submission of unknown
    outcome is not cancelled, and a rejection does not count as the caller's."""

    def packed(self) -> bytes:
        """Return what the record holds of it: everything but its payload."""
        if self.extras or self.again:
            return _pack(self.fields())
        payload, self.payload = self.payload, b""
        packed = _pack(self)
        self.payload = payload
        return packed

    def fields(self) -> dict[str, Any]:
        """Return the same as a map."""
        values = ((name, getattr(self, field), default) for field, name, default in _FIELDS)
        said = {name: value for name, value, default in values if value != default}
        return said | self.extras | {"extras": True} if self.extras else said

    def apply_plan(
        self, other: "TaskSpec", fields: Collection[str] = (), extras: Collection[str] = ()
    ) -> None:
        """Take over another plan, or these of its `fields` and `extras`: what runs, where, for how long and at whose cost."""
        for name in fields or _OF_A_PLAN:
            setattr(self, name, getattr(other, name))
        taken = extras or _EXTRAS_OF_A_PLAN
        self.extras = {name: value for name, value in self.extras.items() if name not in taken} | {
            name: value for name, value in other.extras.items() if name in taken
        }


_pack = msgspec.msgpack.Encoder().encode
_FIELDS = tuple(
    (field.name, field.encode_name, field.default)
    for field in msgspec.structs.fields(TaskSpec)
    if field.name not in ("payload", "blobs", "extras", "downgrade", "idempotency_key", "again")
)
"""What a record holds of every task: the attribute, the record's field, the default."""
_OF_A_PLAN = (
    *("model", "queue", "payload", "blobs", "estimated_input", "max_output", "answers", "timeout_ms"),
    *("wait_ms", "whole_wait", "run_ms", "max_tries", "downgrade", "asked", "template", "model_omitted"),
)
_EXTRAS_OF_A_PLAN = frozenset(
    {
        *("max_input", "price", "quota", "fallbacks", "fallback_after", "schema", "repair"),
        *("stage", "chain_start", "reserve", "parts", "part_inputs"),
    }
)


def only_set(**extras: Any) -> dict[str, Any]:
    """Return those of a task's `extras` that say something."""
    return {name: value for name, value in extras.items() if value}


class Permit(NamedTuple):
    """A permit to call an endpoint, which the store issues when the task's turn has come."""

    event: str
    """Fields of its event, without braces; when it expires is added."""
    unused_ms: int
    """How long it can be used."""
    used_ms: int
    """How long a used one holds its slot, unless its end is reported."""


class Grant(msgspec.Struct, gc=False):
    """The right to run one task once."""

    task_id: str
    attempt: int
    """Its number, from 1: how often the task was granted. For people."""
    epoch: int
    """The first part of the attempt's event ids: the time of the grant, us. No second grant has it, whatever the store forgot."""
    token: str
    model: str
    """As which it is scheduled; `asked` is what the caller named."""
    queue: str
    task_type: str
    user: str
    key: str
    stream: bool
    left_ms: int
    """Time left for the attempt at the grant; 0 = unlimited."""
    tries: int
    enqueued_ms: int
    start_seq: int
    """Sequence number of the `start` event, the top of the log."""
    waiting: bool
    readers: str
    granted_ms: int
    start: str
    """Data of the `start` event, as it is logged."""
    traceparent: str = ""
    asked: str = ""
    """The model as its caller named it, which users and workers see."""
    request_id: str = ""
    model_omitted: bool = False
    """The payload is to be given the model: it has none."""
    max_tries: int = 0
    """As `TaskSpec` has it."""
    last_lost: str = ""
    """Why it may be the reason that a worker was lost, as the record's field has it: see `suspects.py`."""
    extras: Mapping[str, Any] = {}
    """Its record, if it uses a feature."""

    @property
    def has_fallback(self) -> bool:
        """Whether there is another model to fall back to."""
        return bool(self.extras.get("fallbacks"))

    @property
    def answer(self) -> str:
        """What its finished text must be, or it fails: a JSON schema; `payload`: as the payload's `response_format` says;
        `object`: any JSON object; '' = anything."""
        return self.extras.get("schema") or ""

    @property
    def repairs(self) -> bool:
        """Whether an answer that does not match may be asked for again: once, and not behind its first output."""
        return bool(self.extras.get("repair")) and not self.extras.get("redone")

    @property
    def repaired(self) -> "Used | None":
        """What an answer used that this attempt repairs, and that counts in addition to its own."""
        used = self.extras.get("used_before")
        return None if used is None else Used.read(used)

    @property
    def report_sent(self) -> bool:
        """Whether its model has windows: call `Scheduler.sent` when its request has left."""
        return bool(self.extras.get("report_sent"))

    @property
    def stage(self) -> str:
        """What it runs of a chain: see `chains.running`; '' = its task is none."""
        return self.extras.get("stage") or ""


class Place(NamedTuple):
    """Where a waiting task stands in its queue, from 1 (0: it does not wait), and how long it may wait. Estimates, ms; all three
    are -1 as long as too little has been learned, or while nothing of its queue or model can start."""

    position: int
    wait_ms: int
    low_ms: int
    """It takes less in about one case of twenty."""
    high_ms: int
    """It takes longer in about one case of twenty."""

    @property
    def estimating(self) -> bool:
        """Whether nothing can be said yet of how long it waits."""
        return self.wait_ms < 0


NO_PLACE = Place(0, 0, 0, 0)


class WaitEstimate(NamedTuple):
    """What a task that came now into a lane would have to expect, ms."""

    wait_ms: int
    """Until it starts."""
    run_ms: int
    """From there to its end; -1: nothing has run there."""


RetryAt = tuple[tuple[str, int], ...]
"""Models that may start their next task only in the given ms, as they are throttled or in a cooldown: ask again then."""
ClosedUpstreams = tuple[tuple[str, int], ...]
"""Those of them that may not through the upstream of the worker that asked; through others they may."""


class Taken(NamedTuple):
    """The answer to `take`."""

    grants: list[Grant]
    retry_at: RetryAt
    closed_upstreams: ClosedUpstreams = ()


class Submitted(msgspec.Struct):
    """The answer to an accepted submit. `grants` may hold other tasks than the one submitted."""

    state: State
    place: Place
    enqueued_ms: int
    grants: list[Grant]
    retry_at: RetryAt = ()
    line: str = ""
    """The model that it is scheduled as."""
    model: str = ""
    """The model that it asks for: where more than one may run it, the one that it waits for now."""
    rate_limits: RateLimitStatus | None = None
    """What is left of the caller's limits, if it has any."""
    closed_upstreams: ClosedUpstreams = ()


class ExistingTask(msgspec.Struct):
    """The answer to a submit whose idempotency key names a task already: nothing has changed, and nothing was taken."""

    task_id: str
    state: State | None
    """None: what is known of it is not kept here any more."""
    place: Place
    enqueued_ms: int
    line: str
    """The model that it is scheduled as."""
    model: str
    """The model that it asks for."""
    asked: str
    """As `TaskSpec` has it; so is the template."""
    template: str
    rate_limits: RateLimitStatus | None = None


class LimitHit(NamedTuple):
    """A limit of the caller's key or user that refused a task."""

    setting: str
    limit: int
    used: int
    asked: int
    """What the task would have taken of it."""
    of_user: bool = False
    """Of the user of a delegating key; else of the key."""


class QuotaShortfall(NamedTuple):
    """A quota that is not enough for a task, micro-credits."""

    needed: int
    """What the task would be held."""
    available: int


class Rejection(msgspec.Struct):
    """The answer to a refused submit; nothing of the task was kept.

    `reason`: full, full_bytes, user_full (the user's own waiting tasks), too_long (`waiting` = the wait to expect, `limit` = the
    longest, both ms), no_worker, unavailable (the breakers of all its upstreams are open),
    cancelled, outbox_full (SQL is behind), rate_limited (`reached` says which limit), quota
    (`short` says by how much), no_balance (the balance must be loaded first: `unknown`),
    used_up (what it would be a use of; `limit` = how many there are), idempotency_keys (its user has as many as
    may be), other (its idempotency key names a task that was asked for otherwise).
    `retry_ms`: how long it will take, as far as can be estimated, until it would be accepted.
    """

    reason: str
    waiting: int = 0
    limit: int = 0
    retry_ms: int = 0
    others_offered: bool = False
    """With `no_worker`: workers are connected, for other models, and there was none for this one in the last minute."""
    reached: LimitHit | None = None
    rate_limits: RateLimitStatus | None = None
    """What is left of the caller's limits, if it has any."""
    short: QuotaShortfall | None = None
    unknown: tuple[str, str] = ("", "")
    """With `no_balance`: whose, and which window of its budget."""


EventFields = tuple[str, bytes]
"""Type and data of an event that is to be logged."""


class Append(NamedTuple):
    """Events for the log of one task, from number `seq` on. `output`: there has been output, so it is not tried again."""

    grant: Grant
    seq: int
    events: Sequence[EventFields]
    output: bool


class Appended(NamedTuple):
    """What became of an `Append`."""

    outcome: str
    """'ok'; 'open': ok, and the next events need no script (`Scheduler.append_next`); 'stale': the grant is not current;
    'hole': events before it are missing."""
    more: str | int = ""
    """'ok', 'open': the replicas that read the task, with commas. 'hole': the number of the log's last event."""


class Used(NamedTuple):
    """Tokens that a task used; -1 = unknown."""

    input: int = -1
    output: int = -1
    cached: int = -1
    """Of the input, what a cache held."""
    reasoning: int = -1
    """Of the output, what its reader does not see."""
    estimated: bool = False
    """Input or output is the gateway's own count."""

    @staticmethod
    def read(used: Mapping[str, Any] | None) -> "Used":
        """Return tokens as scripts keep them: only what is known."""
        used = used or {}  # Lua packs an empty table as a list
        return Used(
            used.get("input", -1),
            used.get("output", -1),
            used.get("cached", -1),
            used.get("reasoning", -1),
            used.get("estimated", False),
        )

    @property
    def more(self) -> str:
        """What is known in addition to input and output, as the usage record has it."""
        return "" if self[2:] == _NOTHING_MORE else f"{self.cached} {self.reasoning} {self.estimated:d}"

    def plus(self, other: "Used") -> "Used":
        """What both used; what one of them does not know is as the other one says."""
        pairs = zip(self[:4], other[:4], strict=True)
        read, wrote, cached, reasoning = (max(a, b) if a < 0 or b < 0 else a + b for a, b in pairs)
        return Used(read, wrote, cached, reasoning, self.estimated or other.estimated)


_NOTHING_MORE = Used()[2:]


class Repair(NamedTuple):
    """Lets a task be done once more, with another payload: its answer was finished, and is not what it must be."""

    payload: bytes
    used: Used
    """By the answer."""


class End(msgspec.Struct, frozen=True):
    """How an attempt ends its task, and what its slot is asked for next."""

    state: State
    code: str
    terminal: EventFields
    used: Used
    nonce: str
    """Names the call, which may be repeated."""
    want: int = 0
    """Tasks to take for the slot, of these `models`, for this `worker`."""
    models: Sequence[str] = ()
    worker: str = ""
    keep_ms: int = 0
    """For so long the slot stays `stopping`, because the worker still runs the task: end it again when that has stopped."""
    upstream: str = ""
    """Of this worker."""


class Finished(msgspec.Struct, frozen=True):
    """The answer to `finish`. `outcome`: ok, late, stale, hole. `event_id` of the terminal event when ok."""

    outcome: str
    event_id: str
    grants: list[Grant]
    top: int = 0
    retry_at: RetryAt = ()
    closed_upstreams: ClosedUpstreams = ()


class Ended(msgspec.Struct, frozen=True):
    """The answer to `cancel` and `requeue`: what became of the task, and the terminal event if this call wrote it."""

    outcome: str
    """cancel: ended, over, unknown; requeue: queued, ended, stale."""
    state: str = ""
    event_id: str = ""
    kind: str = ""
    data: bytes = b""
    retry_at: RetryAt = ()


HTTP = "http"
"""The type of tasks that are requests to an endpoint, which a worker makes: the model is the endpoint's. So it is of the next."""
PERMIT = "permit"
"""The type of tasks that wait for a permit to call an endpoint oneself."""
OF_ENDPOINTS = frozenset({HTTP, PERMIT})


class Admitted(enum.StrEnum):
    """The answer to `admit`."""

    IN = "in"
    USED = "used"
    """Before, by another call."""
    OVER = "over"
    """It was not used in time, or its task was cancelled."""
    UNKNOWN = "unknown"


class PermitEnd(enum.StrEnum):
    """The answer to `leave`."""

    ENDED = "ended"
    OVER = "over"
    """It had ended before, or its time was over."""
    UNUSED = "unused"
    """The permit was not used."""
    UNKNOWN = "unknown"


class _Used(msgspec.Struct):
    used_at: int = 0


class Record(NamedTuple):
    """What is known of a task. `fields` as in keys.RECORD."""

    place: Place
    now_ms: int
    fields: dict[str, str]

    @property
    def state(self) -> State:
        return State(self.fields["state"])

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return asked_model(self.fields)

    @property
    def epoch(self) -> int:
        """The first part of the newest events' ids."""
        return self.number("epoch")

    @property
    def progress(self) -> bytes:
        """Data of the last `progress` of the attempt that runs; b"" when it has sent none."""
        epoch, _, data = self.fields.get("progress", "").partition("\n")
        return data.encode() if self.state is State.EXECUTING and epoch == self.fields.get("epoch") else b""

    @property
    def archives_log(self) -> bool:
        """Whether its log is to go to SQL, and is not known to be there."""
        return "archive" in self.fields and "archive_log" in self.fields

    @property
    def permit_used_ms(self) -> int | None:
        """When the permit of the task was used, ms; 0: not yet. None: none is out."""
        permit = self.fields.get("permit") if self.state is State.EXECUTING else None
        return msgspec.json.decode(permit, type=_Used).used_at if permit else None

    def number(self, field: str) -> int:
        """A numeric field; 0 when absent."""
        return int(float(self.fields.get(field) or 0))

    def grant(self, task_id: str) -> Grant:
        """The grant of its newest attempt, whose answer was lost: enough to give it back."""
        fields = self.fields
        return Grant(
            task_id=task_id,
            attempt=self.number("attempt"),
            epoch=self.number("epoch"),
            token=fields.get("token", ""),
            model=fields["model"],
            queue=fields["queue"],
            task_type=fields.get("type", ""),
            user=fields["user"],
            key=fields.get("key_id", ""),
            stream=False,
            left_ms=0,
            tries=0,
            enqueued_ms=self.number("enqueued_at"),
            start_seq=1,
            waiting=False,
            readers="",
            granted_ms=self.number("granted_at"),
            start="",
        )


def asked_model(fields: Mapping[str, str]) -> str:
    """The model that a task's record says was asked for; it may be scheduled as another one."""
    return fields.get("requested_model") or fields.get("model", "")


class Entry(NamedTuple):
    """One event of a log as it is stored. Its id is `epoch-seq`."""

    epoch: int
    seq: int
    kind: str
    data: bytes


class Top(NamedTuple):
    """Where a task stands: its state, the epoch of its last attempt, and how far its log reaches."""

    state: str
    epoch: int
    seq: int


class Fragment(NamedTuple):
    """Fields of a terminal event without braces, and the failure code that goes into the record."""

    rest: bytes
    code: str
