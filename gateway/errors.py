"""Errors that callers receive: one class tree, and its form in each API.

Two questions shape it. Was the task accepted? Then it has an id, its event log ends with its failure, and the failure's code has
a row in fairlane.queues.failures. Is a retry sensible? Then there is a Retry-After header; otherwise `x-should-retry: false`
stops the retries of OpenAI's clients.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlane.gateway.error_codes import BUSY, ERROR_CODES, OVERLOADED
from fairlane.gateway.prices.prices import credits_of, plain_credits
from fairlane.queues.failures import CANCELLED, category_of, failure_row, openai_kind
from fairlane.queues.keys import is_reserved
from fairlane.queues.limits import RateLimitStatus
from fairlane.streaming.events import Failure
from fairlane.streaming.views.messages import error_body as anthropic_error


class ApiError(Exception):
    """A response other than success. `code` names the cause for programs; the message is a sentence for people.

    `retry_after_ms`: delay before a retry; None: a retry is useless. `param`: the invalid field, if there is one. `headers`:
    additional response headers that the status requires. `why`: a reason that only operators see. `facts`: additional fields of
    the log line. `fields`: the problem of each of several invalid fields. `rate_limits`: the rest of the caller's limits.
    `longest_ms`: the longest `retry_after_ms` that a header shows. `unchanged`: of an error of the server, that the request has
    changed nothing.
    """

    why = ""
    facts: Mapping[str, str] = {}
    fields: Mapping[str, str] = {}
    rate_limits: RateLimitStatus | None = None
    longest_ms = 3_600_000
    unchanged = False

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
    """The caller closed the connection, so no response can be sent."""


class AnswerCut(Exception):
    """A failure after the start of a response whose format cannot carry errors, such as audio or a file. The server cuts the
    connection, so that the client notices."""


def bad_request(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, "INVALID_REQUEST", message, param=param)


def too_large(limit: int) -> ApiError:
    return ApiError(413, "BODY_TOO_LARGE", f"The body exceeds the limit of {limit} bytes")


def too_large_encoded(limit: int, size: int) -> ApiError:
    """Return the error of a form whose payload would be too large."""
    sentence = f"The form takes {size} bytes as JSON with base64 files; the limit is {limit} bytes"
    return ApiError(413, "BODY_TOO_LARGE", sentence)


_OPENAI_CALL = re.compile(
    r"/(?:chat/completions|completions|embeddings|models|responses|moderations|audio/(?:transcriptions|translations|speech)"
    r"|images/(?:generations|edits|variations))(?=/*$)"
)
_ANTHROPIC_CALL = re.compile(r"/v1/messages(?:/count_tokens)?(?=/*$)")
_ANTHROPIC_PATH = re.compile(r"/v1/messages(?=/|$)")


_FEATURES = {
    "chat": "kept chat completions (`store`)",
    "responses": "this part of the Responses API",
    "messages": "message batches",
    "assistants": "the Assistants API",
    "threads": "the Assistants API",
    "realtime": "the Realtime API",
    "audio": "other calls for audio",
    "images": "other calls for images",
    "videos": "videos",
    "fine_tuning": "fine-tuning",
    "vector_stores": "vector stores",
    "rerank": "reranking",
    "uploads": "uploads in parts",
    "conversations": "the Conversations API",
    "containers": "containers",
    "evals": "evals",
    "skills": "skills",
}
"""Features of OpenAI's API that this gateway lacks, by the first part of the path behind /v1."""

ABSENT = {"/v1/responses/compact", "/v1/responses/input_tokens"}
"""Calls of OpenAI's API that this gateway lacks although their paths look like that of one response."""


def wrong_method(method: str, path: str, methods: Sequence[str]) -> ApiError:
    """Return the error of a path that exists, but only for other methods."""
    sentence = f"Use {' or '.join(methods)} for this path"
    if (method, path) == ("GET", "/v1/chat/completions"):
        sentence += (
            ": chat completions are not kept here, whatever their `store`, so there is no list of them"
        )
    return ApiError(405, "METHOD_NOT_ALLOWED", sentence, headers=[(b"allow", ", ".join(methods).encode())])


def no_such_path(method: str, path: str) -> ApiError:
    """Return the error of an unknown path. If it ends like a path of a provider's API, the client's base URL is wrong and the
    message says so; otherwise the message lists what exists."""
    sentence = f"There is no {method} {path[:200]}"
    if (found := _ANTHROPIC_CALL.search(path)) and not path.startswith(("/api/", found[0])):
        sentence += f". The call is {found[0]}: the client's base URL must be the gateway's address alone"
    elif speaks_openai(path) and (call := _OPENAI_CALL.search(path)):
        sentence += f". The call is /v1{call[0]}: the client's base URL must be the gateway's address and /v1"
    elif f"{path}/".startswith("/v1/"):
        feature = _FEATURES.get(f"{path}/".split("/")[2])
        sentence += f": this gateway does not offer {feature}" if feature else ""
        sentence += ". Of OpenAI's calls there are /v1/chat/completions, /v1/responses, /v1/completions, /v1/embeddings"
        sentence += ", /v1/files, /v1/batches, /v1/models, /v1/moderations and those for audio and images"
        sentence += ", of Anthropic's /v1/messages and /v1/messages/count_tokens"
    else:
        sentence += ". All calls are listed at /docs, and in /openapi.json"
    return ApiError(404, "NOT_FOUND", sentence)


def speaks_openai(path: str) -> bool:
    """Return whether errors at this path have OpenAI's format: at its calls, and at paths that its clients use with a wrong base
    URL."""
    return f"{path}/".startswith("/v1/") or (
        not path.startswith("/api/") and _OPENAI_CALL.search(path) is not None
    )


def speaks_anthropic(path: str, version: str | None) -> bool:
    """Return whether errors at this path have Anthropic's format: at its calls, and at any path below /v1 when the client sent
    the header `anthropic-version`."""
    if path.startswith("/api/"):
        return False
    return _ANTHROPIC_PATH.search(path) is not None or (version is not None and f"{path}/".startswith("/v1/"))


KEY_NEEDED = "A valid key is needed: Authorization: Bearer <key>"


class Unauthorized(ApiError):
    """The key is missing or invalid, or no key signed the token. The answer is the same for all, so that it reveals nothing.
    `reason`: for the log."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(401, "UNAUTHORIZED", KEY_NEEDED)
        self.facts = {"reason": reason} if reason else {}


class InvalidToken(ApiError):
    """A token that a key has signed, and that is not valid; the message says why."""

    def __init__(self, message: str, code: str = "UNAUTHORIZED") -> None:
        super().__init__(401, code, message)


class TokenForbids(ApiError):
    """The token does not allow the request."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(403, "FORBIDDEN", message, param=param)


def invalid_link() -> ApiError:
    """Return the error of a link whose token is forged or expired."""
    sentence = "This link is invalid or has expired. Poll the task with your API key to get a new one."
    return ApiError(401, "LINK_INVALID", sentence)


def stopping(retry_ms: int, task_id: str | None = None) -> ApiError:
    """Return the error of a gateway that shuts down. After `retry_ms`, another replica or the successor accepts the call."""
    return ApiError(
        503,
        "GATEWAY_STOPPING",
        "This gateway is shutting down",
        task_id=task_id,
        retry_after_ms=at_most_a_minute(retry_ms),
    )


def store_unavailable(down_ms: int) -> ApiError:
    """Return the error of a store that has not answered for `down_ms`. A longer outage gets a longer delay."""
    return ApiError(503, "STORE_UNAVAILABLE", "Store unavailable", retry_after_ms=at_most_a_minute(down_ms))


def database_unavailable(*, submits: bool, changes: bool, unchanged: bool) -> ApiError:
    """Return the error of an SQL database that does not answer. `submits`: the request would have submitted a task; none was.
    `changes`: the request writes to the database; unless it is known that it is `unchanged`, the write may have succeeded."""
    sentence = "Database unavailable"
    if submits:
        sentence += ": the request was rejected; retry later"
    elif changes and unchanged:
        sentence += ": nothing was changed; retry later"
    elif changes:
        sentence += ": whether the change was made is unknown; check, then retry"
    error = ApiError(503, "DATABASE_UNAVAILABLE", sentence, retry_after_ms=SECOND_MS)
    error.unchanged = changes and unchanged
    return error


DEFAULT_MODEL = "default"
"""The model of a native call that names none."""


class NoWorker(ApiError):
    """No worker serves the model now. `unknown`: no worker or configuration names it, although workers are connected."""

    def __init__(self, model: str, retry_after_ms: int, *, unknown: bool) -> None:
        super().__init__(
            503,
            "NO_WORKER",
            "No worker available"
            + (": no HTTP worker calls this endpoint now" if is_reserved(model) else ""),
            retry_after_ms=min(max(retry_after_ms, SECOND_MS), NO_WORKER_MS),
            param="model",
        )
        self.model = model
        self.unknown = unknown


class RateLimited(ApiError):
    """A limit of the caller's key or user is reached. `counts`: `requests` or `tokens`, as OpenAI's error type.

    A limit per day has a known end, so the Retry-After header shows the whole delay, however long.
    """

    longest_ms = 366 * 24 * 3_600_000

    def __init__(self, message: str, counts: str, retry_after_ms: int, facts: Mapping[str, str]) -> None:
        super().__init__(429, "RATE_LIMITED", message, retry_after_ms=retry_after_ms)
        self.counts = counts
        self.facts = facts


class InsufficientQuota(ApiError):
    """The balance does not cover the task; a retry is useless until it does.

    `needed`, `available`: micro-credits. `visible`: whether the caller may see them.
    """

    def __init__(self, needed: int, available: int, *, visible: bool = True) -> None:
        message = "You exceeded your current quota"
        if visible:
            message += (
                f": this task may cost {credits_of(needed):f} credits, and {credits_of(available):f} are left"
            )
        super().__init__(429, "INSUFFICIENT_QUOTA", message)
        amounts = {"needed": plain_credits(needed), "available": plain_credits(available)}
        self.amounts = amounts if visible else {}

    def without_amounts(self) -> "InsufficientQuota":
        """Return the same error for a caller that may not see its key's amounts."""
        error = InsufficientQuota(0, 0, visible=False)
        error.rate_limits = self.rate_limits
        return error


def model_not_found(model: str) -> ApiError:
    """Return the error of an unknown model. A model that the caller's key does not cover gets the same, so that its existence
    stays hidden."""
    return ApiError(
        failure_row("MODEL_NOT_FOUND").native,
        "MODEL_NOT_FOUND",
        f"The model `{model}` does not exist or you do not have access to it",
        param="model",
    )


def type_not_offered(model: str, makes: str, task_type: str) -> ApiError:
    """Return the error of a task type that no worker of the model supports. `makes`: the outputs of that type."""
    sentence = (
        f"Model `{model}` doesn't support {makes}: none of its workers offers the task type `{task_type}`."
    )
    return ApiError(404, "TYPE_NOT_OFFERED", sentence, param="model")


class TaskFailed(ApiError):
    """A task that was accepted and has failed. `category`: of its code. `retryable`: the same request may succeed later; False
    also when its attempts are used up. `took_ms`: its duration, waiting included; also the delay before a retry, if the status
    requires one."""

    chain: Mapping[str, Any] = {}
    """Additional fields of native responses for a chain: the stage that failed and the results so far."""

    def __init__(
        self, failure: Failure, task_id: str, *, took_ms: int = 0, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        super().__init__(
            failure_row(failure.code).native,
            failure.code,
            failure.error,
            retry_after_ms=failure.retry_after_ms,
            task_id=task_id,
            headers=headers,
        )
        self.category = category_of(failure.code)
        self.retryable = failure.retryable
        self.waited_for = failure.waited_for
        self.took_ms = took_ms


def task_failed(
    failure: Failure | None, task_id: str, *, took_ms: int = 0, headers: Sequence[tuple[bytes, bytes]] = ()
) -> TaskFailed:
    """Return the error of a task that did not complete; without a failure it was cancelled."""
    failure = failure or Failure("Task cancelled", CANCELLED, failure_row(CANCELLED).retry)
    return TaskFailed(failure, task_id, took_ms=took_ms, headers=headers)


def gateway_failed(code: str, message: str, task_id: str) -> TaskFailed:
    """Return the error of a task whose log has no end for this reader: the gateway cannot read it, or the wait timed out."""
    return TaskFailed(Failure(message, code, failure_row(code).retry), task_id)


Headers = list[tuple[bytes, bytes]]


SECOND_MS = 1000
PATIENCE_MS = 60_000
"""The longest Retry-After that OpenAI's clients obey. They ignore a longer one and retry after half a second."""
NO_WORKER_MS = 10_000
"""The longest Retry-After of a call that finds no worker: the caller gets no response while its SDK waits twice this time."""


def at_most_a_minute(retry_after_ms: int) -> int:
    """Return the delay before a retry when the end of the problem is unknown: the time already spent, between 1 and 60 s."""
    return min(max(retry_after_ms, SECOND_MS), PATIENCE_MS)


def retry_headers(retry_after_ms: int, longest_ms: int = ApiError.longest_ms) -> Headers:
    """Return Retry-After in whole seconds, at least 1, and the exact value as `retry-after-ms`. Above a minute (PATIENCE_MS),
    `x-should-retry: false` stops clients that would not wait that long from retrying."""
    exact = min(max(retry_after_ms, 1), longest_ms)
    headers = [(b"retry-after", b"%d" % math.ceil(exact / 1000)), (b"retry-after-ms", b"%d" % exact)]
    if exact > PATIENCE_MS:
        headers.append((b"x-should-retry", b"false"))
    return headers


class Answer(NamedTuple):
    """An error as an HTTP response of one API; `headers` lacks the body's type."""

    status: int
    headers: Headers
    body: bytes


BARE = frozenset({"QUEUE_FULL", "NO_WORKER", "TASK_NOT_FOUND", "TOTAL_TIMEOUT", "INTERNAL"})
"""Codes whose bodies the task dispatcher's requirements give whole: they have no address of an explanation."""


def native_answer(error: ApiError) -> Answer:
    """Return an error in the format of the Fairlane API."""
    if isinstance(error, NoWorker) and error.unknown and error.model == DEFAULT_MODEL:
        sentence = "`model` is required: no worker serves `default`. See GET /v1/models."
        error = bad_request(sentence, "model")
    body: dict[str, object] = {"error": error.message, "code": error.code}
    if isinstance(error, TaskFailed):
        body["category"] = error.category
        if error.waited_for:
            body["waitedFor"] = error.waited_for
        body |= error.chain
    if isinstance(error, NoWorker):
        body["model"] = error.model
    if error.why:
        body["reason"] = error.why
    if error.fields:
        body["fields"] = error.fields
    if error.unchanged:
        body["unchanged"] = True
    if error.task_id:
        body["taskId"] = error.task_id
    if error.retry_after_ms is not None:
        body["retryAfterMs"] = error.retry_after_ms
    if isinstance(error, RateLimited):
        body["rateLimited"] = True
        if error.retry_after_ms is not None:
            body["retryAfter"] = math.ceil(error.retry_after_ms / 1000)
    if isinstance(error, InsufficientQuota):
        body |= error.amounts
    if error.code in ERROR_CODES and error.code not in BARE:
        body["docsUrl"] = ERROR_CODES[error.code].docs_url
    headers = _headers(error, error.status, error.retry_after_ms)
    return Answer(error.status, headers, msgspec.json.encode(body))


def openai_answer(error: ApiError) -> Answer:
    """Return an error in the format of OpenAI's API: its four keys, and the address of the explanation of a known code."""
    error, status, retry_after_ms = _as_on_v1(error)
    row = ERROR_CODES.get(error.code)
    kind, code = openai_kind(status), row.v1_code if row else error.code
    if isinstance(error, RateLimited):
        kind = error.counts
    elif isinstance(error, InsufficientQuota):
        kind = code
    body = {"message": error.message, "type": kind, "param": error.param, "code": code}
    if row:
        body["docs_url"] = row.docs_url
    return Answer(status, _headers(error, status, retry_after_ms), msgspec.json.encode({"error": body}))


NO_THREADS = "thread_unsupported_request"
"""On this code, Anthropic's SDKs continue without a thread."""


def anthropic_answer(error: ApiError, request_id: str) -> Answer:
    """Return an error in the format of Anthropic's API: its status and its type, with our code in `details`. The name of an
    invalid field precedes the message."""
    error, status, retry_after_ms = _as_on_v1(error)
    message = error.message
    if error.param is not None and status == 400 and error.param not in message:
        message = f"{error.param}: {message}"
    if message == KEY_NEEDED:
        message += ", or x-api-key: <key>"
    headers = _headers(error, status, retry_after_ms)
    if status == 503 and error.code in BUSY:
        status = OVERLOADED
    unsupported = (error.param,) if error.code == NO_THREADS else ()
    return Answer(status, headers, anthropic_error(message, error.code, request_id, status, unsupported))


def _as_on_v1(error: ApiError) -> tuple[ApiError, int, int | None]:
    """Return the error, status and retry delay for a client of a provider's API: an unknown model is a 404 there, a failed task
    has its own status, and a 503 has a delay."""
    if isinstance(error, NoWorker) and error.unknown:
        error = model_not_found(error.model)
    if not isinstance(error, TaskFailed):
        return error, error.status, error.retry_after_ms
    status = failure_row(error.code).openai
    delay_ms = error.retry_after_ms or at_most_a_minute(error.took_ms)
    return error, status, delay_ms if status == 503 else None


def _headers(error: ApiError, status: int, retry_after_ms: int | None) -> Headers:
    """Return the headers of an error: the task's id, and either the delay before a retry or that a retry is useless."""
    headers: Headers = list(error.headers)
    if error.task_id:
        headers.append((b"x-task-id", error.task_id.encode()))
    if retry_after_ms is not None:
        headers += retry_headers(retry_after_ms, error.longest_ms)
    hopeless = retry_after_ms is None and (status >= 500 or status in (429, 499))
    final = not error.retryable if isinstance(error, TaskFailed) else hopeless
    if final and (b"x-should-retry", b"false") not in headers:
        headers.append((b"x-should-retry", b"false"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def key_reused() -> ApiError:
    return ApiError(
        422,
        "IDEMPOTENCY_KEY_REUSED",
        "This Idempotency-Key was used for another request. Use a new key, or repeat the same body",
        param="Idempotency-Key",
    )


def result_gone(task_id: str) -> ApiError:
    """Return the error; not 409, which official clients repeat: the answer would be the same until the key expires."""
    return ApiError(
        410,
        "IDEMPOTENCY_RESULT_GONE",
        "The request with this Idempotency-Key has run, but its result has expired. Use a new key to run it again",
        task_id=task_id,
    )


def duration(ms: int) -> str:
    """Return a duration in the notation of Go and OpenAI: 12ms, 1.5s, 6m0s, 24h0m0s."""
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    seconds = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds
