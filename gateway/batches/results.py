"""The results of lines, as the output and error files show them: one line of JSON each, in OpenAI's form. Pure."""

from enum import StrEnum
from typing import NamedTuple

from fairlane.gateway.errors import ApiError, openai_answer
from fairlane.streaming.jsontext import json_string
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


def answered(line: int, custom_id: str, task_id: str, body: bytes) -> Outcome:
    """Return the outcome of a line that was answered."""
    return Outcome(line, False, _record(custom_id, task_id, 200, body), normalise_usage(None, body))


def failed(line: int, custom_id: str, task_id: str, error: ApiError) -> Outcome:
    """Return the outcome of a line that failed or was rejected, as its call would have been answered."""
    answer = openai_answer(error)
    return Outcome(line, True, _record(custom_id, task_id, answer.status, answer.body))


def not_run(custom_id: str, task_id: str, why: NotRun) -> bytes:
    """Return the record of a line that was not run."""
    error = b'{"code":"%b","message":%b}' % (why.encode(), json_string(_SENTENCES[why]))
    return b'{"id":"%b","custom_id":%b,"response":null,"error":%b}\n' % (
        _id(task_id),
        json_string(custom_id),
        error,
    )


def _id(task_id: str) -> bytes:
    return b"batch_req_" + task_id.replace("-", "").encode()


def _record(custom_id: str, task_id: str, status: int, body: bytes) -> bytes:
    if b"\n" in body or b"\r" in body:  # white space between tokens: inside strings it is escaped
        body = body.replace(b"\n", b" ").replace(b"\r", b" ")
    return (
        b'{"id":"%b","custom_id":%b,"response":{"status_code":%d,"request_id":"%b","body":%b},"error":null}\n'
        % (_id(task_id), json_string(custom_id), status, task_id.encode(), body)
    )
