"""What a handler receives (`Task`) and what it may yield (`Delta`, `Usage`, `Result`, or plain text)."""

import functools
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairlane.workers.protocol import Delta

__all__ = ["Delta", "Result", "Task", "Usage", "as_json"]

Key = tuple[str, int]
"""Task id and attempt (opaque): what every message about a task repeats."""


@dataclass(kw_only=True, eq=False)
class Task:
    """One piece of work.

    `payload_bytes` is the caller's JSON as it came; `payload` parses it on first use and keeps it. `stream`
    says whether the caller wants output as it is made; what a handler yields is sent either way. `traceparent`
    is the header to send with calls that belong to the task (W3C Trace Context); None when it is not traced. `tell_sent`: the
    gateway wants to know when the task's request has left (`Context.sent`). `user`: whose task it is, for a worker that
    `wants_user`.
    """

    task_id: str
    type: str
    model: str
    payload_bytes: bytes = field(repr=False)
    attempt: int = 1
    stream: bool = True
    traceparent: str | None = field(default=None, repr=False)
    tell_sent: bool = field(default=False, repr=False)
    user: str = field(default="", repr=False)

    @functools.cached_property
    def payload(self) -> Any:
        """The payload as Python values, the same object each time. Raises `msgspec.DecodeError`."""
        return msgspec.json.decode(self.payload_bytes)


def attempt_mark(attempt: int) -> str:
    """An attempt as log lines show it: its number is long and means nothing, so its last four digits in base 36 do."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    return "".join(digits[attempt // 36**place % 36] for place in (3, 2, 1, 0))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that the task has used. `details` holds further members, passed on as they are."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> msgspec.Raw:
        """The `usage` member of a `taskResult`."""
        members = dict(self.details)
        if self.input_tokens is not None:
            members["inputTokens"] = self.input_tokens
        if self.output_tokens is not None:
            members["outputTokens"] = self.output_tokens
        return msgspec.Raw(msgspec.json.encode(members))


@dataclass(frozen=True, slots=True)
class Result:
    """The task's result, for a generator that has one in addition to its chunks: yield it last."""

    value: Any


def as_json(value: Any) -> msgspec.Raw:
    """`value` as JSON that is ready to send; a `msgspec.Raw` is checked and passes through unparsed.

    Raise `TypeError` or `ValueError` when it is not JSON.
    """
    if not isinstance(value, msgspec.Raw):
        return msgspec.Raw(msgspec.json.encode(value))
    text = bytes(value)
    text.decode()  # the parser below does not look into strings, and a text frame must be UTF-8
    msgspec.json.decode(text, type=msgspec.Raw)
    return msgspec.Raw(text)
