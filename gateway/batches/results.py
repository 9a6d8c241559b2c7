"""The results of lines, as the output and error files show them: one line of JSON each, in OpenAI's form. Pure."""

from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from fairlane.gateway.errors import ApiError, openai_answer
from fairlane.streaming.views.usage import Counts, normalise_usage


class NotRun(StrEnum):
    """Why a line was not run."""

    EXPIRED = "batch_expired"
    CANCELLED = "batch_cancelled"
    FAILED = "batch_failed"


_SENTENCES = {
    NotRun.EXPIRED: "This request could not be executed before the completion window expired.",
    NotRun.CANCELLED: "This request was not executed, as its batch was cancelled.",
    NotRun.FAILED: "This request was not executed, as its batch failed.",
}


class Outcome(NamedTuple):
    """The result of a line that was run or rejected."""

    line: int
    failed: bool
    record: bytes
    """Its line in the output or error file, with the newline."""
    used: Counts = Counts()
    """Tokens, by the usage in its answer."""
    task_id: str = ""


def answered(line: int, custom_id: str, task_id: str, body: bytes) -> Outcome:
    """Return the outcome of a line that was answered."""
    record = _record(custom_id, task_id, 200, body)
    return Outcome(line, False, record, normalise_usage(None, body), task_id)


def failed(line: int, custom_id: str, task_id: str, error: ApiError) -> Outcome:
    """Return the outcome of a line that failed or was rejected, as its call would have been answered."""
    answer = openai_answer(error)
    return Outcome(line, True, _record(custom_id, task_id, answer.status, answer.body), task_id=task_id)


def not_run(custom_id: str, task_id: str, why: NotRun) -> bytes:
    """Return the record of a line that was not run."""
    return _line(custom_id, task_id, None, {"code": why, "message": _SENTENCES[why]})


def _record(custom_id: str, task_id: str, status: int, body: bytes) -> bytes:
    # line breaks are white space between tokens: inside strings they are escaped
    one_line = msgspec.Raw(body.replace(b"\n", b" ").replace(b"\r", b" "))
    return _line(custom_id, task_id, {"status_code": status, "request_id": task_id, "body": one_line}, None)


def _line(custom_id: str, task_id: str, response: Any, error: Any) -> bytes:
    name = f"batch_req_{task_id.replace('-', '')}"
    record = {"id": name, "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(record) + b"\n"
