"""A batch: its row, its forms in the API, and the ids that are derived from its own. Pure.

The task of a line has the same id on every replica, so Redis accepts it once.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.database.tables import BatchRow
from fairlane.gateway.errors import ApiError, openai_answer
from fairlane.gateway.settings.units import UNITS
from fairlane.queues.ids import new_task_id
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


class Status(StrEnum):
    """Statuses, as in OpenAI's API."""

    VALIDATING = "validating"
    """Its file is not validated yet, or other batches of its owner run first."""
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    """All lines have results; its files are being written."""
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


ENDED: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED})
UNENDED: Final = tuple(status.value for status in Status if status not in ENDED)
NOT_ITS_TURN: Final = "NOT_ITS_TURN"
"""Why a batch without a leader waits: it is new, other batches of its owner run first, or all replicas are at their limits."""

BlockedOn = Mapping[str, Sequence[str]]
"""Why lines are not submitted: error codes, each with the models that it blocks; without models: all."""


class Problem(NamedTuple):
    """An error of a file, or of one of its lines."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


_decode = msgspec.json.Decoder(list[Problem]).decode
_decode_blocked_on = msgspec.json.Decoder(dict[str, list[str]]).decode


class Batch(BatchRow):
    """A batch. Times are ms since 1970."""

    @property
    def owner(self) -> Owner:
        return Owner(self.key_id, self.user_name)

    @property
    def problems(self) -> Sequence[Problem]:
        return _decode(self.errors) if self.errors else ()

    @property
    def waits_for(self) -> BlockedOn:
        """Return why lines are not submitted."""
        if self.status in ENDED:
            return {}
        if not self.leader:
            return {NOT_ITS_TURN: ()}
        return _decode_blocked_on(self.blocked_on) if self.blocked_on else {}


def openai_object(batch: Batch) -> dict[str, Any]:
    """Return a batch as in OpenAI's API."""
    ended = {status: _seconds(batch.ended if batch.status == status else 0) for status in ENDED}
    problems = [problem._asdict() for problem in batch.problems]
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": problems} if problems else None,
        "input_file_id": batch.input_file,
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": batch.output_file or None,
        "error_file_id": batch.error_file or None,
        "created_at": _seconds(batch.created),
        "in_progress_at": _seconds(batch.began),
        "expires_at": _seconds(batch.expires),
        "finalizing_at": _seconds(batch.finalizing),
        "completed_at": ended[Status.COMPLETED],
        "failed_at": ended[Status.FAILED],
        "expired_at": ended[Status.EXPIRED],
        "cancelling_at": _seconds(batch.cancelling),
        "cancelled_at": ended[Status.CANCELLED],
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "usage": {
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
        "metadata": msgspec.Raw(batch.metadata.encode()) if batch.metadata else None,
        "fairlane": _status(batch),
    }


def _status(batch: Batch) -> dict[str, Any]:
    """Return the members that both forms share."""
    return {
        "linesWaiting": batch.waiting,
        "linesRunning": batch.running,
        "waitsFor": [{"code": code, "models": [*models]} for code, models in batch.waits_for.items()],
    }


def _seconds(ms: int) -> int | None:
    return ms // 1000 if ms else None


def admin_view(batch: Batch) -> dict[str, Any]:
    """Return a batch as operators see it."""
    first = next(iter(batch.problems), None)
    return {
        "id": batch.id,
        "key": batch.key_id or None,
        "user": batch.user_name,
        "tier": batch.tier,
        "status": batch.status,
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "createdAt": batch.created,
        "beganAt": batch.began or None,
        "expiresAt": batch.expires,
        "endedAt": batch.ended or None,
        "counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "replica": batch.leader or None,
        "error": first.message if first else None,
        "errorLine": first.line if first else None,
        "errorParam": first.param if first else None,
        **_status(batch),
    }


def codes_of(blocked_on: str) -> tuple[str, ...]:
    """Return the codes in the column `blocked_on`."""
    return tuple(_decode_blocked_on(blocked_on)) if blocked_on else ()


def blocked_on_json(blocked: BlockedOn) -> str:
    """Return the column `blocked_on`."""
    return msgspec.json.encode(blocked).decode() if blocked else ""


def read_window(text: str) -> int | None:
    """Return a completion window such as 24h in ms; None if it is invalid."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) <= 6 and unit in UNITS["ms"]):
        return None
    return int(number) * UNITS["ms"][unit] or None


PREFIX = "batch_"
_ID = re.compile(r"batch_[0-9a-f]{32}")


def new_batch_id(now_ms: int) -> str:
    """Return a new id. Ids sort by time and cannot be guessed."""
    return f"{PREFIX}{now_ms & 0xFFFF_FFFF_FFFF:012x}{os.urandom(10).hex()}"


def could_be(text: str) -> bool:
    """Return whether a text has the form of an id."""
    return _ID.fullmatch(text) is not None


def line_task(batch_id: str, created_ms: int, line: int) -> str:
    """Return the id of the task of a line, from 1."""
    digest = hashlib.sha256(f"{batch_id} {line}".encode()).digest()
    return new_task_id(created_ms, random_bytes=lambda count: digest[:count])


def output_file(batch_id: str, created_ms: int, kind: str, epoch: int) -> str:
    """Return the id of a file that the leader of this epoch writes."""
    digest = hashlib.sha256(f"{batch_id} {kind} {epoch}".encode()).hexdigest()
    return f"file-{created_ms & 0xFFFF_FFFF_FFFF:012x}{digest[:20]}"
