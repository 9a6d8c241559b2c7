"""The events of a task's log: their ids, builders of their bytes, readers of the parts that views need.

An event's data is one line of JSON, an object that begins with `{"taskId":"…","ts":…,`. Scripts in Redis
write some events themselves; they are handed a *fragment*: the other fields without braces, which `compose`
completes in the same way. The fields of each type are in `gateway/api/events.py`. A task id is a UUID and needs no
escaping; every `bytes` argument is valid JSON.
"""

import re
from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct, field

from fairlane.queues.failures import CANCELLED, category_of
from fairlane.queues.tasks import Ended, Fragment, Place
from fairlane.streaming.jsontext import NULL, json_string, kind_of, one_line, string_or_none

TERMINAL = frozenset({"done", "error", "cancelled"})
LOGGED = frozenset({"start", "chunk", "stage", "usage", "debug", "permit"}) | TERMINAL
UNLOGGED = frozenset({"queued", "progress", "gap", "restart", "bye"})

TEXT_KINDS = frozenset({"text", "reasoning", "refusal"})
CHUNK_KINDS = TEXT_KINDS | {"tool", "finish", "extra"}

MAX_EPOCH = 2**53 - 1
"""The largest number that every client reads exactly; as a time in us, the year 2255."""
MAX_SEQ = 10**12

_EVENT_ID = re.compile(r"([0-9]{1,16})-([0-9]{1,13})")


class Event(Struct, frozen=True, gc=False):
    """One entry of a task's log, or one made for a reader (type in `UNLOGGED`; epoch and seq are 0).

    `seq` counts the log's events from 1 without a gap. `epoch` distinguishes what was written at the same place: the events of
    one attempt share one, and none ever comes again. For clients an id is opaque.
    """

    epoch: int
    seq: int
    type: str
    data: bytes

    @property
    def id(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @property
    def terminal(self) -> bool:
        """Nothing follows in the log."""
        return self.type in TERMINAL


def parse_event_id(text: str) -> tuple[int, int]:
    """Epoch and seq of a cursor that a client sent.

    Anything but two plain decimal numbers raises ValueError.
    """
    match = _EVENT_ID.fullmatch(text) if len(text) <= 30 else None
    if match is None:
        raise ValueError("an event id looks like 1790000000000000-7")
    epoch, seq = int(match[1]), int(match[2])
    if epoch > MAX_EPOCH or seq > MAX_SEQ:
        raise ValueError("event id out of range")
    return epoch, seq


# ---- builders: logged events -------------------------------------------------------------------------------


def compose(task_id: str, ts: int, fragment: bytes) -> bytes:
    """An event's data from its fragment; `ts` is in ms."""
    return b'{"taskId":"%b","ts":%d,%b}' % (task_id.encode(), ts, fragment)


def chunk_data(task_id: str, ts: int, index: int, kind: str, delta_json: bytes, n: int) -> bytes:
    """A chunk of choice `index`; `delta_json` as a coalescer's piece has it: one line."""
    return b'{"taskId":"%b","ts":%d,"index":%d,"kind":"%b","delta":%b,"n":%d}' % (
        task_id.encode(),
        ts,
        index,
        kind.encode(),
        delta_json,
        n,
    )


def fragment_start(model: str, queue: str) -> bytes:
    """The fields of `start` but `attempt`: the granting script knows it, and puts `"attempt":N,` first."""
    return b'"model":%b,"queue":%b' % (json_string(model), json_string(queue))


def fragment_stage(name: str, index: int, of: int, status: str, usage: bytes | None = None) -> bytes:
    """Step `index` of `of`, from 1. `usage`: what it used, of a chain's stage that is done."""
    stage = b'"name":%b,"index":%d,"of":%d,"status":%b' % (json_string(name), index, of, json_string(status))
    return stage + _member(b"usage", usage)


def fragment_usage(usage: bytes) -> bytes:
    """Usage so far, as the worker reports it."""
    return b'"usage":%b' % one_line(usage)


def fragment_permit(permit: str, endpoint: str, url: str) -> bytes:
    """The fields of `permit` but `expiresAt`: the script that gives it out knows it, and puts it behind."""
    return b'"permit":%b,"endpoint":%b,"url":%b' % tuple(map(json_string, (permit, endpoint, url)))


def fragment_debug(note: str, data: bytes | None = None) -> bytes:
    return b'"note":%b' % json_string(note) + _member(b"data", data)


def fragment_done(
    result: bytes | None, usage: bytes | None, finish_reason: str | None, stages: bytes | None = None
) -> bytes:
    """The end in success. A null result counts as none: readers fill in what the chunks make up. `stages`: those of a chain, and
    what became of each."""
    fragment = b'"finishReason":%b' % (NULL if finish_reason is None else json_string(finish_reason))
    for name, raw in ((b"result", result), (b"usage", usage), (b"stages", stages)):
        if raw is not None:
            fragment += _member(name, raw)
    return fragment


def fragment_error(
    error: str, code: str, retryable: bool, usage: bytes | None = None, retry_after_ms: int = 0
) -> bytes:
    """The end in failure: a sentence, a failure code, and whether the same request may do better later, and when."""
    fragment = b'"error":%b,"code":%b,"retryable":%b' % (
        json_string(error),
        json_string(code),
        b"true" if retryable else b"false",
    )
    if retry_after_ms:
        fragment += b',"retryAfterMs":%d' % retry_after_ms
    return fragment + _member(b"usage", usage)


def with_failed_stage(fragment: bytes, stage: str, stages: bytes | None = None) -> bytes:
    """The end in failure of a chain, which failed in this stage. `stages`: as `fragment_done` has them."""
    return b'%b,"failedStage":%b%b' % (fragment, json_string(stage), _member(b"stages", stages))


def fragment_cancelled(by: str) -> bytes:
    return b'"by":%b' % json_string(by)


def cancelled_end(by: str) -> Fragment:
    """The end of a task that `by` cancelled: client, admin or gateway."""
    return Fragment(fragment_cancelled(by), CANCELLED)


def _member(name: bytes, raw: bytes | None) -> bytes:
    """`,"name":value`, or nothing for None and null."""
    if raw is None or not kind_of(raw):
        return b""
    return b',"%b":%b' % (name, one_line(raw))


# ---- builders: events made for one reader ------------------------------------------------------------------


def queued_event(task_id: str, ts: int, place: Place) -> Event:
    """The task waits."""
    return _unlogged("queued", task_id, ts, b'"position":%d,%b' % (place.position, wait_members(place)))


def wait_members(place: Place) -> bytes:
    """The members `estimatedWaitMs`, `…LowMs` and `…HighMs`, as JSON: null, and `estimating`, while nothing is known."""
    if place.estimating:
        return (
            b'"estimatedWaitMs":null,"estimatedWaitLowMs":null,"estimatedWaitHighMs":null,"estimating":true'
        )
    return b'"estimatedWaitMs":%d,"estimatedWaitLowMs":%d,"estimatedWaitHighMs":%d' % place[1:]


def progress_event(task_id: str, ts: int, pct: float | None = None, note: str | None = None) -> Event:
    fields = []
    if pct is not None:
        fields.append(b'"pct":%b' % msgspec.json.encode(pct))
    if note is not None:
        fields.append(b'"note":%b' % json_string(note))
    if not fields:
        fields.append(b'"note":""')
    return _unlogged("progress", task_id, ts, b",".join(fields))


def terminal_event(ended: Ended) -> Event:
    """The terminal event that a script wrote."""
    return Event(*parse_event_id(ended.event_id), ended.kind, ended.data)


def gap_event(task_id: str, ts: int, requested: str, reason: str) -> Event:
    """Events after `requested` cannot be had; `reason` is `expired`, `ahead` or `lost`."""
    fragment = b'"requested":%b,"earliest":null,"reason":%b' % (json_string(requested), json_string(reason))
    return _unlogged("gap", task_id, ts, fragment)


def restart_event(task_id: str, ts: int, reason: str) -> Event:
    """Discard what you have, the last id too (its frame has an empty one): the log follows from its beginning, here or later."""
    return _unlogged("restart", task_id, ts, b'"reason":%b' % json_string(reason))


def bye_event(task_id: str, ts: int, reason: str, reconnect_ms: int) -> Event:
    """This connection ends, the task does not: come back after `reconnect_ms` with the last id."""
    fragment = b'"reason":%b,"reconnectMs":%d' % (json_string(reason), reconnect_ms)
    return _unlogged("bye", task_id, ts, fragment)


def overdue_event(task_id: str, ts: int) -> Event:
    """The deadline has passed, and the log does not show the end: Redis does not answer."""
    fragment = fragment_error("Task timeout", "TOTAL_TIMEOUT", False)
    return _unlogged("error", task_id, ts, fragment)


def _unlogged(event_type: str, task_id: str, ts: int, fragment: bytes) -> Event:
    return Event(0, 0, event_type, compose(task_id, ts, fragment))


# ---- readers -----------------------------------------------------------------------------------------------


class Chunk(Struct, frozen=True, gc=False):
    index: int
    kind: str
    delta: Raw


WAITED_FOR = {
    "queue": "the task waited in its queue until its time was over",
    "worker": "the task waited for a worker of its model, and none is connected",
    "model": "the task ran, and its model did not finish in time",
}
"""What a task waited for whose time is over, in words. Where that is a `cooldown`, the failure's sentence contains it."""


class Failure(NamedTuple):
    """Why a task failed: a sentence, a failure code, and whether the same request may do better later; when, if that is known.
    `waited_for`: of a task whose time is over, `queue`, `worker`, `cooldown`, or `model`: a worker had it."""

    error: str
    code: str
    retryable: bool
    retry_after_ms: int | None = None
    waited_for: str = ""

    def in_words(self) -> "Failure":
        """Return the failure with a sentence that includes what the task waited for."""
        words = WAITED_FOR.get(self.waited_for)
        return self._replace(error=f"{self.error}: {words}") if words else self


class Done(NamedTuple):
    """A `done` event. `finish_reason` is a JSON string; None where the event has none or null."""

    result: bytes | None
    usage: bytes | None
    finish_reason: bytes | None


class _Done(Struct, rename="camel", gc=False):
    result: Raw = Raw(b"null")
    usage: Raw = Raw(b"null")
    finish_reason: Raw = Raw(b"null")


class _Queued(Struct, rename="camel", gc=False):
    position: int
    estimated_wait_ms: int | None
    estimated_wait_low_ms: int | None
    estimated_wait_high_ms: int | None


class _Error(Struct, gc=False):
    error: str
    code: str = "INTERNAL"
    retryable: bool = False
    retry_after_ms: int | None = field(default=None, name="retryAfterMs")
    waited_for: str = field(default="", name="waitedFor")
    usage: Raw = Raw(b"null")


class _Usage(Struct, gc=False):
    usage: Raw = Raw(b"null")


class _Start(Struct, gc=False):
    model: str


class _Cancelled(Struct, gc=False):
    by: str = ""


read_chunk = msgspec.json.Decoder(Chunk).decode
_read_done = msgspec.json.Decoder(_Done).decode
_read_error = msgspec.json.Decoder(_Error).decode
_read_queued = msgspec.json.Decoder(_Queued).decode
_read_usage = msgspec.json.Decoder(_Usage).decode
_read_start = msgspec.json.Decoder(_Start).decode
_read_cancelled = msgspec.json.Decoder(_Cancelled).decode


def read_done(data: bytes) -> Done:
    done = _read_done(data)
    return Done(_present(done.result), _present(done.usage), string_or_none(done.finish_reason))


def read_queued(data: bytes) -> Place:
    queued = _read_queued(data)
    waits = (queued.estimated_wait_ms, queued.estimated_wait_low_ms, queued.estimated_wait_high_ms)
    return Place(queued.position, *(-1 if wait is None else wait for wait in waits))


def read_error(data: bytes) -> Failure:
    error = _read_error(data)
    return Failure(error.error, error.code, error.retryable, error.retry_after_ms, error.waited_for)


def why_failed(event: Event) -> tuple[str, str]:
    """The sentence and the code of an end that is not `done`: a failure, a cancellation, or events that are lost."""
    if event.type == "error":
        failure = read_error(event.data).in_words()
        return failure.error, failure.code
    if event.type == "cancelled":
        by = read_cancelled(event.data)
        return f"Task cancelled by {by}" if by else "Task cancelled", CANCELLED
    return "A part of the output was lost", "EVENTS_LOST"


def told_error(data: bytes) -> bytes:
    """The data of an `error` event as readers get it: with the category of its code."""
    return b'%b,"category":"%b"}' % (data[:-1], category_of(_read_error(data).code).encode())


def read_usage(data: bytes) -> bytes | None:
    """The `usage` member of any event that has one."""
    return _present(_read_usage(data).usage)


def read_model(data: bytes) -> str:
    """The model that a `start` names."""
    return _read_start(data).model


def read_cancelled(data: bytes) -> str:
    """Who cancelled."""
    return _read_cancelled(data).by


def _present(raw: Raw) -> bytes | None:
    return bytes(raw) if kind_of(raw) else None
