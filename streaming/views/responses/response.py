"""The response object: how it stands, and what it repeats. Pure."""

import msgspec
from msgspec import Struct

from fairlane.queues.failures import failure_row
from fairlane.streaming.events import Event, why_failed
from fairlane.streaming.jsontext import NULL, json_string, members, string_or_none
from fairlane.streaming.views.responses.items import COMPLETED, IN_PROGRESS, INCOMPLETE
from fairlane.streaming.views.task import TaskInfo

_REASONS = {b'"length"': b"max_output_tokens", b'"content_filter"': b"content_filter"}
"""Why a response is not complete, by its finish reason."""
_CODES = {429: b"rate_limit_exceeded", 400: b"invalid_prompt"}
"""OpenAI's words for failures, by their status; any other one is `server_error`."""


class _Timed(Struct, gc=False):
    ts: int = 0


_timed = msgspec.json.Decoder(_Timed).decode


class Ended:
    """How a response ended, or that it has not: what its last event says."""

    __slots__ = ("at", "error", "reason", "status")

    def __init__(self, status: bytes) -> None:
        self.status = status
        self.reason: bytes | None = None
        """Why it is incomplete."""
        self.error: bytes = NULL
        self.at: bytes = NULL
        """When it was completed, s."""

    @property
    def last(self) -> bytes:
        """The status of its last item."""
        return {b"completed": COMPLETED, b"queued": IN_PROGRESS, IN_PROGRESS: IN_PROGRESS}.get(
            self.status, INCOMPLETE
        )

    @classmethod
    def by(cls, event: Event, finish: bytes | None) -> "Ended":
        """The end that a terminal event is. `finish`: the finish reason, a JSON string."""
        if event.type != "done":
            ended = cls(b"cancelled" if event.type == "cancelled" else b"failed")
            sentence, code = why_failed(event)
            ended.error = _error(sentence, code)
            return ended
        ended = cls(COMPLETED)
        ended.reason = _REASONS.get(finish or b"")
        if ended.reason is not None:
            ended.status = INCOMPLETE
        else:
            ended.at = b"%d" % (_timed(event.data).ts // 1000)
        return ended


def _error(sentence: str, code: str) -> bytes:
    """Why a response failed: OpenAI's word for it, and the code that all APIs return."""
    row = failure_row(code)
    return b'{"code":"%b","message":%b,"error_code":%b}' % (
        _CODES.get(row.openai, b"server_error"),
        json_string(sentence),
        json_string(row.code),
    )


def is_summarised(echo: bytes) -> bool:
    """Whether thoughts are shown as their summary."""
    thinking = members((members(echo) or {}).get("reasoning")) or {}
    return string_or_none(thinking.get("summary")) is not None


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
