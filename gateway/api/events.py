"""Every native event as a pydantic model, for the OpenAPI document and tests.

The server builds its events without these models (`streaming/events.py`); a test compares the two.
"""

from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model
from pydantic.alias_generators import to_camel

from fairlane.gateway.api.schemas import WaitedFor

EventId = Annotated[
    str, Field(pattern=r"^[0-9]{1,16}-[0-9]{1,13}$", description="opaque: epoch-seq, e.g. 1790000000000000-7")
]
Count = Annotated[int, Field(ge=0)]
FromOne = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", alias_generator=to_camel, frozen=True)


class EventData(_Strict):
    """Members of every event's data. `ts` is milliseconds since 1970, on the store's clock."""

    task_id: Annotated[str, Field(min_length=1)]
    ts: Count


class StartData(EventData):
    """A worker's attempt begins. There can be several before the first output. `repair`: a retry of an output that did not match
    its schema."""

    attempt: FromOne
    model: str
    queue: str
    repair: Literal[True] | None = None
    stage: str | None = Field(None, description="of a chain: the stage that it begins")
    index: FromOne | None = Field(None, description="of a chain: the number of this stage, from 1")
    metadata: JsonValue = None


class _Chunk(EventData):
    index: Annotated[int, Field(ge=0, description="choice")]
    n: Annotated[int, Field(ge=1, description="worker deltas joined in this event")]


class TextChunkData(_Chunk):
    kind: Literal["text", "reasoning", "refusal"]
    delta: str


class ToolChunkData(_Chunk):
    """`delta` holds OpenAI tool call deltas, one or more."""

    kind: Literal["tool"]
    delta: list[dict[str, JsonValue]]


class FinishChunkData(_Chunk):
    """The choice has ended; `delta` is the finish reason."""

    kind: Literal["finish"]
    delta: str


class ExtraChunkData(_Chunk):
    """Other members of an OpenAI stream choice; those of its delta under `delta`."""

    kind: Literal["extra"]
    delta: dict[str, JsonValue]


ChunkData = Annotated[
    TextChunkData | ToolChunkData | FinishChunkData | ExtraChunkData, Field(discriminator="kind")
]


class StageData(EventData):
    """A step of a longer job: `index` of `of`, from 1. In a chain it is a stage with the `status` `queued`, `completed`,
    `skipped` or `failed`."""

    name: str
    index: Count
    of: Count
    status: str
    usage: JsonValue = Field(None, description="the usage of a chain's stage, all its parts together")


class UsageData(EventData):
    """The usage so far, as the worker reports it. The terminal event's takes precedence."""

    usage: JsonValue


class PermitData(EventData):
    """The client may call the endpoint now, once, until `expiresAt`, with `permit` in the header `X-Fairlane-Permit`."""

    permit: str
    endpoint: str
    url: str
    expires_at: Count


class DebugData(EventData):
    note: str
    data: JsonValue = None


class StageEnd(_Strict):
    """The end of one stage of a chain."""

    name: str
    status: Literal["completed", "skipped", "failed"]
    usage: JsonValue = None


class DoneData(EventData):
    """The task completed. In the log `result` is missing if the chunks make it up; readers always get it. A chain's `result` is
    that of its last stage that ran, and its `usage` is of all stages."""

    finish_reason: str | None
    result: JsonValue = None
    usage: JsonValue = None
    stages: list[StageEnd] | None = None
    metadata: JsonValue = None


class ErrorData(EventData):
    """The task failed: a message, a failure code, and whether the same request may succeed later."""

    error: str
    code: Annotated[str, Field(min_length=1)]
    category: str = Field("", description="of its code; missing in the log, readers always get it")
    retryable: bool
    retry_after_ms: Count | None = Field(None, description="when it may, if that is known")
    waited_for: WaitedFor | None = Field(None, description="of a task whose time is over; `model`: it ran")
    usage: JsonValue = None
    failed_stage: str | None = Field(None, description="of a chain: the stage in which it failed")
    stages: list[StageEnd] | None = None
    metadata: JsonValue = None


class CancelledData(EventData):
    by: str
    metadata: JsonValue = None


class QueuedData(EventData):
    """The task waits; `position` counts from 1. The wait is an estimate in ms; in nine cases of ten the real one is between the
    low and the high bound. It is null, and `estimating`, while there is no estimate."""

    position: FromOne
    estimated_wait_ms: Count | None
    estimated_wait_low_ms: Count | None
    estimated_wait_high_ms: Count | None
    estimating: bool = False


class ProgressData(EventData):
    pct: Annotated[float, Field(ge=0, le=100)] | None = None
    note: str | None = None


class GapData(EventData):
    """Events after the cursor `requested` are lost; `earliest` is the first id that remains."""

    requested: str
    earliest: EventId | None
    reason: Literal["expired", "ahead", "lost"]


class RestartData(EventData):
    """The events so far are invalid: discard them and the last id. The log follows from its beginning, here or, after a `bye`, on
    the next connection."""

    reason: str


class ByeData(EventData):
    """This connection ends, the task does not: reconnect after `reconnectMs`, with the last id if there is one."""

    reason: str
    reconnect_ms: Count


class _Logged(_Strict):
    id: EventId


class _Error(_Strict):
    """Without an id the log does not hold it: the deadline has passed, and Redis does not report the task's end."""

    id: EventId | None = None


class _Restart(_Strict):
    """Its frame has an empty id, so that EventSource drops the last one."""

    id: Literal[""]


def _event(name: str, data: Any, base: type[_Strict] = _Strict) -> type[BaseModel]:
    members: dict[str, Any] = {"event": (Literal[name], ...), "data": (data, ...)}
    return create_model(f"{name.title()}Event", __base__=base, **members)


EVENTS = (
    _event("start", StartData, _Logged),
    _event("chunk", ChunkData, _Logged),
    _event("stage", StageData, _Logged),
    _event("usage", UsageData, _Logged),
    _event("permit", PermitData, _Logged),
    _event("debug", DebugData, _Logged),
    _event("done", DoneData, _Logged),
    _event("error", ErrorData, _Error),
    _event("cancelled", CancelledData, _Logged),
    _event("queued", QueuedData),
    _event("progress", ProgressData),
    _event("gap", GapData),
    _event("restart", RestartData, _Restart),
    _event("bye", ByeData),
)
NativeEvent: Any = Annotated[reduce(or_, EVENTS), Field(discriminator="event")]
"""One SSE frame of the native stream: its `id` (logged events; empty for `restart`), its `event` name, its parsed `data`."""
