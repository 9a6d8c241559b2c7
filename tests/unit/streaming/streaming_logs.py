"""Helpers of these tests: a task's log written in one line per event, and SSE read back."""

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from fairlane.streaming import events as ev
from fairlane.streaming.events import Event
from fairlane.streaming.tool_calls import CallDeltas
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo

TASK = "0191f0aa-1111-8222-8333-444455556666"
INFO = TaskInfo(TASK, "small-model", 1_763_690_000, "openaiLike")
TS = 1_763_690_000_123


def start_data(attempt: int, model: str, queue: str) -> bytes:
    """The data of a `start`, as the granting script puts it together."""
    return ev.compose(TASK, TS, b'"attempt":%d,%b' % (attempt, ev.fragment_start(model, queue)))


class Log:
    """A log whose events get contiguous ids; each method adds one event and returns the log.

    Tool calls are logged as an attempt logs them.
    """

    def __init__(self) -> None:
        self.calls: defaultdict[int, CallDeltas] = defaultdict(lambda: CallDeltas(TASK, 0))
        self.events: list[Event] = []
        self.attempt = 1

    def _add(self, kind: str, data: bytes) -> "Log":
        self.events.append(Event(self.attempt, len(self.events), kind, data))
        return self

    def start(self, attempt: int = 1) -> "Log":
        self.attempt = attempt
        return self._add("start", start_data(attempt, "small-model", "free_stream"))

    def chunk(self, kind: str, delta: Any, index: int = 0, n: int = 1) -> "Log":
        raw = json.dumps(delta, ensure_ascii=False).encode()
        if kind == "tool" and (raw := self.calls[index].normal(raw) or b"") == b"":
            return self
        return self._add("chunk", ev.chunk_data(TASK, TS, index, kind, raw, n))

    def text(self, *deltas: str, index: int = 0) -> "Log":
        for delta in deltas:
            self.chunk("text", delta, index)
        return self

    def usage(self, usage: Any) -> "Log":
        return self._add("usage", ev.compose(TASK, TS, ev.fragment_usage(json.dumps(usage).encode())))

    def stage(self) -> "Log":
        return self._add("stage", ev.compose(TASK, TS, ev.fragment_stage("ocr", 1, 2, "running")))

    def done(self, result: Any = None, usage: Any = None, finish: str | None = None) -> "Log":
        fragment = ev.fragment_done(json.dumps(result).encode(), json.dumps(usage).encode(), finish)
        return self._add("done", ev.compose(TASK, TS, fragment))

    def error(self, error: str = "Upstream failed", code: str = "UPSTREAM_ERROR") -> "Log":
        return self._add("error", ev.compose(TASK, TS, ev.fragment_error(error, code, False)))

    def cancelled(self, by: str = "client") -> "Log":
        return self._add("cancelled", ev.compose(TASK, TS, ev.fragment_cancelled(by)))


@dataclass(frozen=True)
class Frame:
    event: str | None
    id: str | None
    retry: str | None
    data: str

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def frames(stream: bytes) -> list[Frame]:
    """The frames of a stream that consists of whole frames with LF line ends."""
    assert b"\r" not in stream
    assert not stream or stream.endswith(b"\n\n")
    found = []
    for block in stream.decode().split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        assert fields.keys() <= {"event", "id", "retry", "data"}
        found.append(Frame(fields.get("event"), fields.get("id"), fields.get("retry"), fields["data"]))
    return found


def read(view: Any, events: list[Event], before: list[Event] | None = None) -> bytes:
    """All that a stream view makes of the events. An end that is pending is made of these and those `before`."""
    shown = b"".join(view.feed(event) for event in events)
    if view.pending is not None:
        whole = fold(ResultView(view.info), [*(before or []), *events])
        shown += b"".join(view.finish(whole.result_json()))
    return shown


def fold(made: Any, events: list[Event]) -> Any:
    """The fold, fed."""
    for event in events:
        made.feed(event)
    return made


def call(index: int, arguments: str = "", **head: Any) -> dict[str, Any]:
    name = {"name": head.pop("name")} if "name" in head else {}
    return {"index": index, **head, "function": {**name, "arguments": arguments}}


def thoughts(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"delta": {"thinking_blocks": list(blocks)}}


def text_and_calls() -> Log:
    """A text, and two calls in pieces, one after the other."""
    return (
        Log()
        .start()
        .text("Hello")
        .chunk("tool", [call(0, id="call_a", name="weather")])
        .chunk("tool", [call(0, '{"city": "')])
        .chunk("tool", [call(0, 'Oslo"}'), call(1, id="call_b", name="clock")])
        .chunk("tool", [call(1, "{}")])
        .chunk("finish", "tool_calls")
        .done()
    )


def calls_in_turns() -> Log:
    """The same two calls, whose pieces take turns."""
    return (
        Log()
        .start()
        .chunk("tool", [call(0, id="call_a", name="weather"), call(1, id="call_b", name="clock")])
        .chunk("tool", [call(0, '{"city'), call(1, "{")])
        .chunk("tool", [call(0, '": "Oslo"'), call(1, "}")])
        .chunk("tool", [call(0, "}")])
        .done()
    )
