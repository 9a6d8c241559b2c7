"""The messages between gateway and worker, as types. The meaning of each is in PROTOCOL.md.

Pure: no sockets, no server. Both sides decode with the tagged unions at the end; unknown fields are ignored and unknown
types raise `msgspec.ValidationError`. JSON that is passed through (payloads, results) stays `msgspec.Raw`: bytes that were
checked to be JSON but never built into objects.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from fairlane.queues.failures import FAILURES

SUBPROTOCOL = "fairlane.worker.v2"
VERSION = 2

CLOSE_PROTOCOL = 4400
CLOSE_UNAUTHORIZED = 4401
CLOSE_NO_ACK = 4408
CLOSE_REPLACED = 4409
CLOSE_VERSION = 4426
CLOSE_FLOOD = 4429
CLOSE_RESTART = 1012
FATAL_CLOSE_CODES = frozenset({CLOSE_PROTOCOL, CLOSE_UNAUTHORIZED, CLOSE_VERSION})

FAILURE_CODES: dict[str, bool] = {code: row.retry for code, row in FAILURES.items() if row.worker}
"""Failure codes that a worker can report, and whether a retry is usually sensible."""


def worker_code(code: str) -> str:
    """Return a worker's failure code; WORKER_ERROR for one that a worker may not report."""
    return code if code in FAILURE_CODES else "WORKER_ERROR"


MAX_PAUSE_MS = 3_600_000
"""The longest pause that a failure's `retryAfterMs` can ask for. A worker that is rejected after it asks again."""

MAX_UPSTREAM_CHARS = 100
SDK_NAME = "fairlane-python"
"""How Fairlane's SDK names itself in `register`."""
DEFAULT_MAX_MESSAGE_BYTES = 1 << 20
"""What a worker takes in one message if `register` does not say: stock WebSocket clients close the connection on a larger one."""

HTTP_TASK = "http"
"""The type of tasks that are calls of endpoints: any HTTP interfaces behind lines of their own."""
ENDPOINT_PREFIX = "http:"
"""How the models of endpoints begin; what follows is an endpoint's name."""
ANY_ENDPOINT = "http:*"
"""The model that a worker offers that makes the calls of all endpoints, those that come later among them."""

PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f]*\Z"
"""No control characters: names are shown, logged, and are parts of keys."""
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=PRINTABLE)]
InstanceId = Annotated[str, Meta(min_length=1, max_length=100, pattern=PRINTABLE)]
Names = Annotated[list[Name], Meta(min_length=1, max_length=256)]
Id = Annotated[str, Meta(min_length=1, max_length=100)]
Attempt = Annotated[int, Meta(ge=1, le=2**53 - 1)]
"""Opaque: no second grant of a task has the same one."""
Index = Annotated[int, Meta(ge=0, le=1023)]
"""Which choice of an answer."""
Millis = Annotated[int, Meta(ge=0, le=10_000_000_000)]
Count = Annotated[int, Meta(ge=0, le=10_000_000_000)]


class _Message(Struct, rename="camel", tag_field="type", omit_defaults=True):
    pass


class Delta(Struct, rename="camel", omit_defaults=True):
    """One piece of output of one choice; `index` (default 0) is the choice."""

    index: Index = 0
    content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Raw | UnsetType = UNSET
    finish_reason: str | None = None
    extra: Raw | UnsetType = UNSET


class Stage(Struct, rename="camel"):
    """A step of a longer job: `index` of `of`, from 1."""

    name: Name
    index: Annotated[int, Meta(ge=0, le=10_000)]
    of: Annotated[int, Meta(ge=0, le=10_000)]
    status: Name


class ErrorInfo(Struct, rename="camel", omit_defaults=True):
    code: Name
    retryable: bool = False
    message: str | None = None
    http_status: Annotated[int, Meta(ge=100, le=599)] | None = None
    retry_after_ms: Millis | None = None


class Timings(Struct, rename="camel", omit_defaults=True):
    ttft_ms: Millis | None = None
    total_ms: Millis | None = None


class Running(Struct, rename="camel"):
    """One task that a worker holds, in its heartbeat's inventory."""

    task_id: Id
    attempt: Attempt


class Sdk(Struct, rename="camel"):
    name: Name
    version: Name


class ModelInfo(Struct, rename="camel", omit_defaults=True, frozen=True):
    """A model as clients see it: its context length, and its owner."""

    context_length: Annotated[int, Meta(ge=1, le=2**53 - 1)] | None = None
    owned_by: Annotated[str, Meta(min_length=1, max_length=100, pattern=PRINTABLE)] | None = None


class Limits(Struct, rename="camel"):
    """What a side takes: the largest message, in bytes."""

    max_message_bytes: Annotated[int, Meta(ge=1, le=2**53 - 1)]


# ---- worker to gateway --------------------------------------------------------------------------------------------------


class Register(_Message, tag="register"):
    instance_id: InstanceId
    name: Name
    models: Names
    protocols: Annotated[list[int], Meta(max_length=16)] = msgspec.field(default_factory=lambda: [VERSION])
    slots: Annotated[int, Meta(ge=1, le=1024)] = 1
    task_types: Annotated[list[Name], Meta(max_length=256)] | None = None
    unhealthy: Annotated[str, Meta(max_length=500, pattern=PRINTABLE)] | None = None
    upstream: Annotated[str, Meta(max_length=MAX_UPSTREAM_CHARS, pattern=PRINTABLE)] | None = None
    model_info: Annotated[dict[Name, ModelInfo], Meta(max_length=256)] | None = None
    limits: Limits | None = None
    wants_user: bool = False
    sdk: Sdk | None = None
    tags: (
        Annotated[dict[Name, Annotated[str, Meta(max_length=200, pattern=PRINTABLE)]], Meta(max_length=64)]
        | None
    ) = None


class TaskAck(_Message, tag="taskAck"):
    task_id: Id
    attempt: Attempt


class TaskSent(_Message, tag="taskSent"):
    """The request of a task to its target has left. Only for a task with `tellSent`."""

    task_id: Id
    attempt: Attempt


class TaskReject(_Message, tag="taskReject"):
    task_id: Id
    attempt: Attempt
    reason: Literal["capacity", "unsupported", "draining", "badPayload"]
    retry_after_ms: Millis | None = None
    message: str | None = None


class TaskChunk(_Message, tag="taskChunk"):
    """Version 2 sends `attempt`, `seq` and `deltas`; version 1 sends `delta`, a text."""

    task_id: Id
    attempt: Annotated[int, Meta(ge=0)] = 0
    seq: Annotated[int, Meta(ge=0)] = 0
    deltas: Annotated[list[Delta], Meta(max_length=4096)] = []
    delta: str | None = None


class TaskProgress(_Message, tag="taskProgress"):
    task_id: Id
    attempt: Attempt
    pct: Annotated[float, Meta(ge=0, le=100)] | None = None
    note: Annotated[str, Meta(max_length=2000)] | None = None
    stage: Stage | None = None
    usage: Raw | UnsetType = UNSET


class TaskResult(_Message, tag="taskResult"):
    """The end of a task; `error` non-empty means failure. Version 1 sends no attempt (0)."""

    task_id: Id
    attempt: Annotated[int, Meta(ge=0)] = 0
    last_seq: Count = 0
    result: Raw = Raw(b"null")
    error: str | None = None
    error_info: ErrorInfo | None = None
    usage: Raw | UnsetType = UNSET
    timings: Timings | None = None


class Heartbeat(_Message, tag="heartbeat"):
    running: Annotated[list[Running], Meta(max_length=2048)] = []


class Draining(_Message, tag="draining"):
    grace_ms: Millis = 0


# ---- gateway to worker --------------------------------------------------------------------------------------------------


class Registered(_Message, tag="registered"):
    worker_id: Id
    heartbeat_ms: Millis
    dead_after_ms: Millis
    limits: Limits
    protocol: int


class Task(_Message, tag="task"):
    task_type: str
    task_id: Id
    payload: Raw
    attempt: int = 0
    model: str = ""
    stream: bool = False
    timeout_ms: int = 0
    traceparent: str | None = None
    tell_sent: bool = False
    user: str = ""


class Cancel(_Message, tag="cancel"):
    task_id: Id
    attempt: Attempt
    reason: Literal["client", "timeout", "admin", "superseded"]
    grace_ms: Millis


class ResultAck(_Message, tag="resultAck"):
    task_id: Id
    attempt: Annotated[int, Meta(ge=0)]
    status: Literal["accepted", "duplicate", "stale", "unknown"]


class Drain(_Message, tag="drain"):
    grace_ms: Millis
    reconnect: bool = False


class Error(_Message, tag="error"):
    code: str
    message: str
    task_id: str | None = None
    fatal: bool = False


FromWorker = (
    Register | TaskAck | TaskSent | TaskReject | TaskChunk | TaskProgress | TaskResult | Heartbeat | Draining
)
FromGateway = Registered | Task | Cancel | ResultAck | Drain | Error

encoder = msgspec.json.Encoder()
from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)
from_gateway: msgspec.json.Decoder[FromGateway] = msgspec.json.Decoder(FromGateway)


def task_frame(
    task_type: str,
    task_id: str,
    payload: bytes,
    *,
    version: int,
    attempt: int,
    model: str,
    stream: bool,
    timeout_ms: int,
    traceparent: str = "",
    tell_sent: bool = False,
    user: str = "",
) -> bytes:
    """The `task` frame with `payload` spliced in unparsed. Version 1 gets its four keys and nothing else."""
    head = b'{"type":"task","taskType":%b,"taskId":"%b","payload":%b' % (
        encoder.encode(task_type),
        task_id.encode(),
        payload,
    )
    if version == 1:
        return head + b"}"
    trace = b',"traceparent":"%b"' % traceparent.encode() if traceparent else b""
    more = b',"tellSent":true' if tell_sent else b""
    more += b',"user":%b' % encoder.encode(user) if user else b""
    return head + b',"attempt":%d,"model":%b,"stream":%b,"timeoutMs":%d%b%b}' % (
        attempt,
        encoder.encode(model),
        b"true" if stream else b"false",
        timeout_ms,
        trace,
        more,
    )


def with_model(payload: bytes, model: str) -> bytes:
    """A payload that is an object without a model, with this one in it. Its first byte is the brace."""
    return b'{"model":%b%b%b' % (encoder.encode(model), b"" if payload == b"{}" else b",", payload[1:])
