"""The response object: its id, how it stands, and what it repeats. Pure."""

import msgspec
from msgspec import Struct

from fairlane.queues.failures import failure_row
from fairlane.streaming.events import Event, why_failed
from fairlane.streaming.jsontext import NULL, json_string
from fairlane.streaming.views.task import TaskInfo

COMPLETED, INCOMPLETE, IN_PROGRESS = b"completed", b"incomplete", b"in_progress"
RESPONSE = "resp_"
_REASONS = {b'"length"': b"max_output_tokens", b'"content_filter"': b"content_filter"}
"""Why a response is not complete, by its finish reason."""
_CODES = {429: b"rate_limit_exceeded", 400: b"invalid_prompt"}
"""OpenAI's words for failures, by their status; any other one is `server_error`."""


class _Timed(Struct, gc=False):
    ts: int = 0


_timed = msgspec.json.Decoder(_Timed).decode


def response_id(task_id: str) -> str:
    """The id of the response that a task makes."""
    return RESPONSE + task_id


def task_of_response(response_id: str) -> str | None:
    """The task of a response by its id; None for what is no such id."""
    return response_id.removeprefix(RESPONSE) if response_id.startswith(RESPONSE) else None


def task_of_item(item_id: str) -> str | None:
    """The task that made an output item by its id, `KIND_TASK_INDEX`; None for what is no such id."""
    parts = item_id.split("_")
    return parts[1] if len(parts) == 3 and parts[0].isalpha() and parts[2].isdigit() else None


class Ended(Struct, frozen=True, gc=False):
    """How a response ended, or that it has not: what its last event says."""

    status: bytes
    reason: bytes | None = None
    """Why it is incomplete."""
    error: bytes = NULL
    at: bytes = NULL
    """When it was completed, s."""

    @property
    def last(self) -> bytes:
        """The status of its last item."""
        return self.status if self.status in (COMPLETED, IN_PROGRESS) else INCOMPLETE

    @classmethod
    def by(cls, event: Event, finish: bytes | None) -> "Ended":
        """The end that a terminal event is. `finish`: the finish reason, a JSON string."""
        if event.type == "cancelled":
            return cls(b"cancelled", error=_error(*why_failed(event)))
        if event.type == "error":
            return cls(b"failed", error=_error(*why_failed(event)))
        if (reason := _REASONS.get(finish or b"")) is not None:
            return cls(INCOMPLETE, reason)
        return cls(COMPLETED, at=b"%d" % (_timed(event.data).ts // 1000))


def _error(sentence: str, code: str) -> bytes:
    """Why a response failed: OpenAI's word for it, and the code that all APIs return."""
    row = failure_row(code)
    return b'{"code":"%b","message":%b,"error_code":%b}' % (
        _CODES.get(row.openai, b"server_error"),
        json_string(sentence),
        json_string(row.code),
    )


def response(info: TaskInfo, echo: bytes, ended: Ended, output: list[bytes], usage: bytes | None) -> bytes:
    """The response object, one line of JSON."""
    why = NULL if ended.reason is None else b'{"reason":"%b"}' % ended.reason
    return (
        b'{"id":"resp_%b","object":"response","created_at":%d,"completed_at":%b,"status":"%b","error":%b,'
        b'"incomplete_details":%b,"model":%b,"output":[%b],"usage":%b,%b'
        % (
            info.task_id.encode(),
            info.created,
            ended.at,
            ended.status,
            ended.error,
            why,
            json_string(info.model),
            b",".join(output),
            NULL if usage is None else usage,
            echo[1:],
        )
    )
