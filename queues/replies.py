"""What scripts return: a packed map and byte strings. Pure.

A record has two parts (keys.py, RECORD and SPEC): what the gateway wrote when it submitted the task, and what the scripts wrote
since, which hides the former. A grant is both, and the data of its start event.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlane.queues.limits import SETTINGS, read_rate_limit_status
from fairlane.queues.tasks import (
    NO_PLACE,
    ClosedUpstreams,
    Entry,
    ExistingTask,
    Grant,
    LimitHit,
    Place,
    QuotaShortfall,
    Record,
    Rejection,
    RetryAt,
    State,
    Used,
)

MAX_TOKENS = 1 << 40
"""Larger counts of a worker cannot be stored; what is believed of them is for the scripts to say."""


class _Spec(msgspec.Struct, gc=False):
    """What a grant needs of the gateway's part of a record."""

    id: str
    model: str
    queue: str
    user: str
    type: str = ""
    key_id: str = ""
    stream: bool = False
    waiting: bool = False
    traceparent: str = ""
    request_id: str = ""
    model_omitted: bool = False
    max_tries: int = 0
    extras: bool = False


class _Run(msgspec.Struct, gc=False):
    """What a grant needs of the scripts' part of a record. None: as the gateway's part has it."""

    attempt: int
    epoch: int
    token: str
    granted_at: int
    enqueued_at: int
    top: int
    attempt_deadline: int = 0
    tries: int = 0
    readers: str = ""
    model: str | None = None
    requested_model: str | bool = ""
    last_lost: str = ""
    extras: bool = False


_decode_spec = msgspec.msgpack.Decoder(_Spec).decode
_decode_run = msgspec.msgpack.Decoder(_Run).decode
decode_map = msgspec.msgpack.Decoder(dict[str, Any]).decode
"""Reads the map that a script returns."""


def decode_values(packed: bytes | None) -> dict[str, Any]:
    """Return the settings in a map, which an empty table of a script is not; {} if there is none."""
    return (msgspec.msgpack.decode(packed) or {}) if packed else {}


def read_grant(packed_run: bytes, packed_spec: bytes, start: bytes) -> Grant:
    """Return a grant of the record's parts and its start event."""
    spec, run = _decode_spec(packed_spec), _decode_run(packed_run)
    model = run.model or spec.model
    deadline = run.attempt_deadline
    grant = Grant(
        spec.id,
        run.attempt,
        run.epoch,
        run.token,
        model,
        spec.queue,
        spec.type,
        spec.user,
        spec.key_id,
        spec.stream,
        max(deadline - run.granted_at, 1) if deadline else 0,
        run.tries,
        run.enqueued_at,
        run.top,
        spec.waiting,
        run.readers,
        run.granted_at,
        start.decode(),
        spec.traceparent,
        str(run.requested_model or model),
        spec.request_id,
        spec.model_omitted,
        spec.max_tries,
        run.last_lost,
    )
    if spec.extras or run.extras:
        grant.extras = fields = decode_map(packed_spec) | decode_map(packed_run)
        grant.queue, grant.task_type = fields["queue"], fields.get("type") or ""
        grant.stream, grant.model_omitted = bool(fields.get("stream")), bool(fields.get("model_omitted"))
    return grant


class Lane(NamedTuple):
    """A queue's lane in a model's state, as models.lua packs it."""

    tag: float
    v: float
    lifts: float
    charged: int
    waiting: int
    users: int
    running: int
    departures: float
    departures_ms: float
    departed_at: float
    skipped: bool


_LANE = struct.Struct("<11d")


class _State(msgspec.Struct):
    lanes: dict[str, msgspec.Raw] | list[None] = []
    mean_ms: float = -1


class ModelState(NamedTuple):
    """What the scripts know of a model."""

    lanes: dict[str, Lane]
    mean_ms: float
    """Mean duration of an attempt; -1: nothing has run."""


def read_state(packed: bytes | None) -> ModelState:
    """Return a model's state (models.lua)."""
    state = msgspec.msgpack.decode(packed, type=_State) if packed else _State()
    packed_lanes = state.lanes if isinstance(state.lanes, dict) else {}  # Lua packs an empty table as a list
    lanes = {queue: _lane(bytes(raw)[-_LANE.size :]) for queue, raw in packed_lanes.items()}
    return ModelState(lanes, state.mean_ms)


def _lane(packed: bytes) -> Lane:
    tag, v, lifts, charged, waiting, users, running, number, ms, last, skipped = _LANE.unpack(packed)
    counts = int(charged), int(waiting), int(users), int(running)
    return Lane(tag, v, lifts, *counts, number, ms, last, skipped == 1)


def read_grants(reply: Sequence[bytes]) -> list[Grant]:
    """Return the grants behind a reply's map: of each three byte strings."""
    grants = []
    for at in range(1, len(reply), 3):
        grants.append(read_grant(*reply[at : at + 3]))
    return grants


def read_rejection(said: Mapping[str, Any]) -> Rejection:
    """Return why a task was rejected."""
    reached = short = None
    if "name" in said:
        of_user = said["subject"].startswith("u:")
        reached = LimitHit(SETTINGS[said["name"]], said["limit"], said["used"], said["asked"], of_user)
    if "needed" in said:
        short = QuotaShortfall(said["needed"], said["available"])
    return Rejection(
        said["rejected"],
        said.get("waiting", 0),
        0 if reached else said.get("limit", 0),
        said.get("retry_ms", 0),
        said.get("others_offered", False),
        reached,
        read_rate_limit_status(said["rate_limits"]) if "rate_limits" in said else None,
        short,
        (said["subject"], said["window"]) if "window" in said else ("", ""),
    )


def read_existing(said: Mapping[str, Any]) -> ExistingTask:
    """Return the task that an idempotency key names."""
    state = State(said["state"]) if "state" in said else None
    place, at = Place(*said["place"]) if "place" in said else NO_PLACE, said.get("enqueued_at", 0)
    line, model, asked, template = (said.get(name, "") for name in ("model", "asked", "route", "template"))
    left = read_rate_limit_status(said["rate_limits"]) if "rate_limits" in said else None
    return ExistingTask(said["existing"], state, place, at, line, model, asked, template, left)


def used_of(used: Used) -> dict[str, int | bool]:
    """Return tokens for a script: only what is known."""
    known: dict[str, int | bool] = {
        name: min(value, MAX_TOKENS)
        for name, value in zip(Used._fields[:4], used[:4], strict=True)
        if value >= 0
    }
    return known | {"estimated": True} if used.estimated else known


def read_record(reply: Sequence[bytes]) -> Record | None:
    """Return what is known of a task; None if it is unknown."""
    said = decode_map(reply[0])
    if not said["known"]:
        return None
    fields = decode_map(reply[2]) | decode_map(reply[1]) | {"top": said["top"]}
    return Record(Place(*said["place"]) if "place" in said else NO_PLACE, said["now"], texts(fields))


def texts(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a record's fields as texts; what is taken away is not among them."""
    return {name: _text(value) for name, value in fields.items() if value is not False}


def _text(value: Any) -> str:
    if value is True:
        return "1"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def read_entries(blobs: Sequence[bytes]) -> Iterator[Entry]:
    """Return the events behind a reply's map: of each its id, type and data."""
    for at in range(0, len(blobs), 3):
        epoch, _, seq = blobs[at].partition(b"-")
        yield Entry(int(epoch), int(seq), blobs[at + 1].decode(), blobs[at + 2])


def read_retry_at(later: Sequence[Mapping[str, Any]]) -> tuple[RetryAt, ClosedUpstreams]:
    """Return when tasks of models may start, and which upstreams are closed, as a reply's `later` says."""
    times = tuple((one["model"], one["ms"]) for one in later)
    return times, tuple((one["model"], one["ms"]) for one in later if one.get("upstream"))
