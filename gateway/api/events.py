"""Every native event as a pydantic model: what clients may rely on, for documentation, SDK and tests.

The server builds its events without these models (`streaming/events.py`); a test holds the two together.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

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
    """A worker's attempt begins. There may be several, as long as no output was seen. `repair`: an answer that did not match its
    schema is asked for again."""

    attempt: FromOne
    model: str
    queue: str
    repair: Literal[True] | None = None
    stage: str | None = Field(None, description="of a chain: the stage that it begins, and no other one")
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
    """A step of a longer job: `index` of `of`, from 1. Of a chain it is one of its stages, and `status` is `queued`, `completed`,
    `skipped` or `failed`."""

    name: str
    index: Count
    of: Count
    status: str
    usage: JsonValue = Field(None, description="what the stage of a chain used, all its parts together")


class UsageData(EventData):
    """What was used so far, in the worker's words, told while it runs. What the terminal event says counts more."""

    usage: JsonValue


class PermitData(EventData):
    """The caller may call the endpoint now, once, until `expiresAt`: `permit` goes with the request in the header
    `X-Fairlane-Permit`."""

    permit: str
    endpoint: str
    url: str
    expires_at: Count


class DebugData(EventData):
    note: str
    data: JsonValue = None


class StageTold(_Strict):
    """What became of one stage of a chain."""

    name: str
    status: Literal["completed", "skipped", "failed"]
    usage: JsonValue = None


class DoneData(EventData):
    """The end in success. In the log `result` is missing where chunks make it up; readers always get it. Of a chain it is that of
    its last stage that ran, and `usage` is of all stages."""

    finish_reason: str | None
    result: JsonValue = None
    usage: JsonValue = None
    stages: list[StageTold] | None = None
    metadata: JsonValue = None


class ErrorData(EventData):
    """The end in failure: a sentence, a failure code, and whether the same request may do better later."""

    error: str
    code: Annotated[str, Field(min_length=1)]
    category: str = Field("", description="of its code; in the log it is missing, readers always get it")
    retryable: bool
    usage: JsonValue = None
    failed_stage: str | None = Field(None, description="of a chain: the stage in which it failed")
    stages: list[StageTold] | None = None
    metadata: JsonValue = None


class CancelledData(EventData):
    by: str
    metadata: JsonValue = None


class QueuedData(EventData):
    """The task waits; `position` counts from 1. The wait is an estimate in ms, which nine times out of ten lies between its
    low and its high bound; null, and `estimating`, as long as nothing is known."""

    position: FromOne
    estimated_wait_ms: Count | None
    estimated_wait_low_ms: Count | None
    estimated_wait_high_ms: Count | None
    estimating: bool = False


class ProgressData(EventData):
    pct: Annotated[float, Field(ge=0, le=100)] | None = None
    note: str | None = None


class GapData(EventData):
    """Events after the cursor `requested` cannot be had; `earliest` is the first id still there."""

    requested: str
    earliest: EventId | None
    reason: Literal["expired", "ahead", "lost"]


class RestartData(EventData):
    """What you have seen is not what happened: discard it, the last id too. The log follows from its beginning, here or, behind a
    `bye`, when you come back."""

    reason: str


class ByeData(EventData):
    """This connection ends, the task does not: come back after `reconnectMs` with the last id, if there is one."""

    reason: str
    reconnect_ms: Count


class _Logged(_Strict):
    id: EventId


class StartEvent(_Logged):
    event: Literal["start"]
    data: StartData


class ChunkEvent(_Logged):
    event: Literal["chunk"]
    data: ChunkData


class StageEvent(_Logged):
    event: Literal["stage"]
    data: StageData


class UsageEvent(_Logged):
    event: Literal["usage"]
    data: UsageData


class PermitEvent(_Logged):
    event: Literal["permit"]
    data: PermitData


class DebugEvent(_Logged):
    event: Literal["debug"]
    data: DebugData


class DoneEvent(_Logged):
    event: Literal["done"]
    data: DoneData


class ErrorEvent(_Logged):
    event: Literal["error"]
    data: ErrorData


class CancelledEvent(_Logged):
    event: Literal["cancelled"]
    data: CancelledData


class QueuedEvent(_Strict):
    event: Literal["queued"]
    data: QueuedData


class ProgressEvent(_Strict):
    event: Literal["progress"]
    data: ProgressData


class GapEvent(_Strict):
    event: Literal["gap"]
    data: GapData


class RestartEvent(_Strict):
    """Its frame has an empty id: EventSource forgets the last one."""

    id: Literal[""]
    event: Literal["restart"]
    data: RestartData


class ByeEvent(_Strict):
    event: Literal["bye"]
    data: ByeData


NativeEvent = Annotated[
    StartEvent
    | ChunkEvent
    | StageEvent
    | UsageEvent
    | PermitEvent
    | DebugEvent
    | DoneEvent
    | ErrorEvent
    | CancelledEvent
    | QueuedEvent
    | ProgressEvent
    | GapEvent
    | RestartEvent
    | ByeEvent,
    Field(discriminator="event"),
]
"""One SSE frame of the native stream: its `id` (logged events; empty of `restart`), its `event` name, its parsed `data`."""
