"""What a caller is told when something does not work: one tree, one table to HTTP.

Two questions shape it: was the task accepted (then it has an id and its end is in its log), and is a retry sensible (then there
is a Retry-After, or `x-should-retry: false` tells OpenAI's clients that it is not).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class ApiError(Exception):
    """An answer other than success. `code` names the cause for programs; the message is a sentence for people.

    `retry_after_ms`: when to come again; None = do not. `param`: the field that is wrong, if it is one. `headers`: what
    the status asks for beside.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_ms: int | None = None,
        task_id: str | None = None,
        param: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.task_id = task_id
        self.param = param
        self.headers = headers


class ClientGone(Exception):
    """The caller closed the connection; nobody reads the answer."""


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, "INVALID_REQUEST", message, param=param)


def unauthorized() -> ApiError:
    return ApiError(401, "UNAUTHORIZED", "A valid key is needed: Authorization: Bearer <key>")


def stopping(left_ms: int, task_id: str | None = None) -> ApiError:
    """This gateway is going, in `left_ms`; another one takes the call now, or its successor then."""
    return ApiError(
        503,
        "GATEWAY_STOPPING",
        "This gateway is shutting down",
        task_id=task_id,
        retry_after_ms=at_most_a_minute(left_ms),
    )


def store_unavailable(down_ms: int) -> ApiError:
    """The store has been away for `down_ms`: the longer it has been, the longer it is likely to stay."""
    return ApiError(503, "STORE_UNAVAILABLE", "Store unavailable", retry_after_ms=at_most_a_minute(down_ms))


class Mapped(NamedTuple):
    """How a failed task is told on OpenAI's surfaces."""

    status: int
    kind: str
    code: str
    retry: bool | None = None


_SERVER = "server_error"
_INVALID = "invalid_request_error"

_FAILURES: dict[str, Mapped] = {
    "TIMEOUT": Mapped(504, _SERVER, "TIMEOUT", retry=False),
    "QUEUE_TIMEOUT": Mapped(504, _SERVER, "QUEUE_TIMEOUT", retry=False),
    "FIRST_OUTPUT_TIMEOUT": Mapped(504, _SERVER, "FIRST_OUTPUT_TIMEOUT", retry=False),
    "SILENCE_TIMEOUT": Mapped(504, _SERVER, "SILENCE_TIMEOUT", retry=False),
    "MODEL_TOO_BUSY": Mapped(503, _SERVER, "MODEL_TOO_BUSY"),
    "WORKER_LOST": Mapped(502, _SERVER, "WORKER_LOST"),
    "NO_WORKER": Mapped(503, _SERVER, "NO_WORKER"),
    "PROTOCOL_ERROR": Mapped(502, _SERVER, "PROTOCOL_ERROR", retry=False),
    "UPSTREAM_ERROR": Mapped(502, _SERVER, "UPSTREAM_ERROR"),
    "UPSTREAM_TRUNCATED": Mapped(502, _SERVER, "UPSTREAM_TRUNCATED"),
    "UPSTREAM_AUTH": Mapped(502, _SERVER, "UPSTREAM_AUTH", retry=False),
    "UPSTREAM_QUOTA": Mapped(502, _SERVER, "UPSTREAM_QUOTA", retry=False),
    "BAD_REQUEST": Mapped(400, _INVALID, "BAD_REQUEST"),
    "CONTEXT_LENGTH": Mapped(400, _INVALID, "context_length_exceeded"),
    "CONTENT_FILTERED": Mapped(400, _INVALID, "content_filter"),
    "JSON_PARSE_FAILED": Mapped(502, _SERVER, "JSON_PARSE_FAILED", retry=False),
    "OUTPUT_TOO_LARGE": Mapped(502, _SERVER, "OUTPUT_TOO_LARGE", retry=False),
    "STORE_LOST": Mapped(502, _SERVER, "STORE_LOST"),
}
_OTHER = Mapped(500, _SERVER, "WORKER_ERROR", retry=False)
CANCELLED = Mapped(499, _INVALID, "cancelled", retry=False)


def openai_failure(code: str) -> Mapped:
    """Status, type and code for a failure code; unknown ones are server errors that a retry will not mend."""
    mapped = _FAILURES.get(code)
    return mapped or _OTHER._replace(code=code)


Headers = list[tuple[bytes, bytes]]


SECOND_MS = 1000
PATIENCE_MS = 60_000
"""The longest Retry-After that OpenAI's clients obey. Told a longer one they would come again after half a second."""
LONGEST_MS = 3_600_000


def at_most_a_minute(retry_after_ms: int) -> int:
    """When to come again where nobody knows: a time already spent, within 1 and 60 s."""
    return min(max(retry_after_ms, SECOND_MS), PATIENCE_MS)


def retry_headers(retry_after_ms: int) -> Headers:
    """Retry-After in whole seconds, at least 1, and the exact value beside it. Beyond a minute (PATIENCE_MS) a client that
    would not wait so long is told not to try again by itself."""
    exact = min(max(retry_after_ms, 1), LONGEST_MS)
    headers = [(b"retry-after", b"%d" % math.ceil(exact / 1000)), (b"retry-after-ms", b"%d" % exact)]
    if exact > PATIENCE_MS:
        headers.append((b"x-should-retry", b"false"))
    return headers


def native_error(error: ApiError) -> bytes:
    """The body of an error on the native calls."""
    body: dict[str, object] = {"error": error.message, "code": error.code}
    if error.task_id:
        body["taskId"] = error.task_id
    if error.retry_after_ms is not None:
        body["retryAfterMs"] = error.retry_after_ms
    return msgspec.json.encode(body)


def openai_error(message: str, kind: str, code: str | None, param: str | None = None) -> bytes:
    """The body of an error on OpenAI's surfaces: always the same four keys."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def openai_kind(status: int) -> str:
    """OpenAI's error type for a status: clients choose the exception by both, so they must agree."""
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return _INVALID if status < 500 else _SERVER
