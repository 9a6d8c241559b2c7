"""The schemas of the native events, for the OpenAPI document and tests.

The server builds its events without them (`streaming/events.py`); a test compares the two.
"""

from collections.abc import Mapping
from typing import Any, get_args

from fairlane.gateway.api.schemas import BOOLEAN, NULLABLE, REF, STRING, WaitedFor, json_text

Json = dict[str, Any]

ANY: Json = {}
OBJECT: Json = {"type": "object"}
TEXT = {**STRING, "minLength": 1}
COUNT = {"type": "integer", "minimum": 0}
FROM_ONE = {"type": "integer", "minimum": 1}
ESTIMATE = {"type": ["integer", "null"], "minimum": 0}
PERCENT = {"type": ["number", "null"], "minimum": 0, "maximum": 100}
EVENT_ID = {**STRING, "pattern": "^[0-9]{1,16}-[0-9]{1,13}$", "description": "opaque: epoch-seq"}


def _object(about: str, required: Mapping[str, Any], optional: Mapping[str, Any] = {}) -> Json:
    members = {"required": [*required], "properties": {**required, **optional}}
    return {"type": "object", "description": about, **members, "additionalProperties": False}


def _data(about: str, required: Mapping[str, Any], optional: Mapping[str, Any] = {}) -> Json:
    """Return the schema of an event's data. `ts` is milliseconds since 1970, on the store's clock."""
    return _object(about, {"taskId": TEXT, "ts": COUNT, **required}, optional)


def _chunk(about: str, kinds: tuple[str, ...], delta: Json) -> Json:
    about += " `index` is the choice, and `n` the number of worker deltas joined in this event."
    return _data(about, {"index": COUNT, "n": FROM_ONE, "kind": {"enum": [*kinds]}, "delta": delta})


_STAGE_END = _object(
    "The end of one stage of a chain.",
    {"name": STRING, "status": {"enum": ["completed", "skipped", "failed"]}},
    {"usage": ANY},
)
_STAGES = {"type": "array", "items": _STAGE_END}

DATA: dict[str, Json] = {
    "StartData": _data(
        "A worker's attempt begins. There can be several before the first output. `repair`: a retry of an output that did not "
        "match its schema. Of a chain: the `stage` that it begins, and its number (`index`), from 1.",
        {"attempt": FROM_ONE, "model": STRING, "queue": STRING},
        {"repair": {"const": True}, "stage": STRING, "index": FROM_ONE, "metadata": ANY},
    ),
    "TextChunkData": _chunk("A part of a text.", ("text", "reasoning", "refusal"), STRING),
    "ToolChunkData": _chunk(
        "OpenAI tool call deltas, one or more.", ("tool",), {"type": "array", "items": OBJECT}
    ),
    "FinishChunkData": _chunk("The choice has ended; `delta` is the finish reason.", ("finish",), STRING),
    "ExtraChunkData": _chunk(
        "Other members of an OpenAI stream choice; those of its delta under `delta`.", ("extra",), OBJECT
    ),
    "StageData": _data(
        "A step of a longer job: `index` of `of`, from 1. In a chain it is a stage with the `status` `queued`, `completed`, "
        "`skipped` or `failed`, and with the `usage` of all its parts together.",
        {"name": STRING, "index": COUNT, "of": COUNT, "status": STRING},
        {"usage": ANY},
    ),
    "UsageData": _data(
        "The usage so far, as the worker reports it. The terminal event's takes precedence.", {"usage": ANY}
    ),
    "PermitData": _data(
        "The client may call the endpoint now, once, until `expiresAt`, with `permit` in the header `X-Fairlane-Permit`.",
        {"permit": STRING, "endpoint": STRING, "url": STRING, "expiresAt": COUNT},
    ),
    "DebugData": _data("A note of the worker.", {"note": STRING}, {"data": ANY}),
    "DoneData": _data(
        "The task completed. In the log `result` is missing if the chunks make it up; readers always get it. A chain's `result` "
        "is that of its last stage that ran, and its `usage` is of all stages.",
        {"finishReason": NULLABLE},
        {"result": ANY, "usage": ANY, "stages": _STAGES, "metadata": ANY},
    ),
    "ErrorData": _data(
        "The task failed: a message, a failure code, whether the same request may succeed later, and when (`retryAfterMs`), if "
        "that is known. `category`: of its code; missing in the log, readers always get it. `waitedFor`: of a task whose time is "
        "over; `model`: it ran. `failedStage`: of a chain.",
        {"error": STRING, "code": TEXT, "retryable": BOOLEAN},
        {
            "category": STRING,
            "retryAfterMs": COUNT,
            "waitedFor": {"enum": [*get_args(WaitedFor)]},
            "usage": ANY,
        }
        | {"failedStage": STRING, "stages": _STAGES, "metadata": ANY},
    ),
    "CancelledData": _data("The task was cancelled.", {"by": STRING}, {"metadata": ANY}),
    "QueuedData": _data(
        "The task waits; `position` counts from 1. The wait is an estimate in ms; in nine cases of ten the real one is between "
        "the low and the high bound. It is null, and `estimating`, while there is no estimate.",
        {"position": FROM_ONE, "estimatedWaitMs": ESTIMATE}
        | {"estimatedWaitLowMs": ESTIMATE, "estimatedWaitHighMs": ESTIMATE},
        {"estimating": BOOLEAN},
    ),
    "ProgressData": _data("The progress that the worker reports.", {}, {"pct": PERCENT, "note": NULLABLE}),
    "GapData": _data(
        "Events after the cursor `requested` are lost; `earliest` is the first id that remains.",
        {"requested": STRING, "earliest": {"anyOf": [EVENT_ID, {"type": "null"}]}}
        | {"reason": {"enum": ["expired", "ahead", "lost"]}},
    ),
    "RestartData": _data(
        "The events so far are invalid: discard them and the last id. The log follows from its beginning, here or, after a "
        "`bye`, on the next connection.",
        {"reason": STRING},
    ),
    "ByeData": _data(
        "This connection ends, the task does not: reconnect after `reconnectMs`, with the last id if there is one.",
        {"reason": STRING, "reconnectMs": COUNT},
    ),
}
EVENTS: dict[str, Json | None] = {
    **dict.fromkeys(("start", "chunk", "stage", "usage", "permit", "debug", "done", "cancelled"), EVENT_ID),
    "error": EVENT_ID,
    **dict.fromkeys(("queued", "progress", "gap", "bye"), None),
    "restart": {"const": "", "description": "so that EventSource drops the last one"},
}
"""The schema of each event's id; None: it has none. An `error` may lack it: if the deadline has passed and Redis does not report
the task's end, the log does not have the event."""


def data_of(event: str) -> list[str]:
    """Return the names of the schemas of an event's data: one, or those of the kinds of chunks."""
    return [name for name in DATA if name.endswith(f"{event.title()}Data")]


def components(*, as_text: bool = True) -> dict[str, Json]:
    """Return the schemas by name. `as_text`: the data of a frame is a text, which is JSON."""
    found = dict(DATA)
    for event, event_id in EVENTS.items():
        data: Json = {"anyOf": [{"$ref": REF.format(name=name)} for name in data_of(event)]}
        members = {"event": {"const": event}, "data": json_text(data) if as_text else data}
        with_id = {} if event_id is None else {"id": event_id}
        shape = (members, with_id) if event == "error" else (members | with_id, {})
        found[f"{event.title()}Event"] = _object(f"An event `{event}`.", *shape)
    frames = [{"$ref": REF.format(name=f"{event.title()}Event")} for event in EVENTS]
    about = "One SSE frame of the native stream: its `id`, its `event` name, its `data`."
    return found | {"NativeEvent": {"anyOf": frames, "description": about}}
