"""Failure codes: one row for each, which every surface, the metrics, the records and the worker's side read. Pure.

A code says in which phase a task failed, or because of what; its category says in one word what is to be done. A category is
a function of the code: it is returned together with codes and stored nowhere.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

CANCELLED: Final = "CANCELLED"
"""The code of every cancelled task, whether by its caller, an operator, a disconnect or the gateway."""


class Category(StrEnum):
    """What is to be done about a failure. A new code goes where its reader would do the same."""

    CAPACITY = "timeout_or_capacity"
    """No answer came in time: try again later; more capacity, or longer limits, help. Time-outs of every phase are of it."""
    BAD_OUTPUT = "bad_output"
    """An answer came, and is not what it must be: ask again, or fix the prompt or the schema."""
    UPSTREAM = "upstream"
    """The model's server failed, or will not serve this worker: look at the provider, its key and its account."""
    WORKER = "worker"
    """The worker failed: look at its log."""
    GATEWAY = "gateway"
    """The gateway or its Redis failed, or goes: send it again; look at the gateway's log."""
    REQUEST = "request"
    """The request cannot succeed as it is: fix it."""
    CANCELLED = "cancelled"
    """It was cancelled on purpose: there is nothing to do."""


class FailureRow(NamedTuple):
    """How a failure is reported."""

    openai: int
    """The HTTP status on /v1, which sets the class of the SDKs' exception."""
    code: str
    """OpenAI's error code: its own where it has one for that, else ours."""
    category: Category
    retry: bool = False
    """Whether the same request may do better, as a rule; a failure that says so itself knows better."""
    worker: bool = False
    """Whether a worker may report it; else the gateway alone does."""
    upstream: bool = False
    """Whether it counts against the upstream through which it came: enough of them open its breaker."""
    native: int = 500
    """The HTTP status on the native calls."""

    @property
    def proves_upstream_works(self) -> bool:
        """Whether only a model that works can fail so: the request, or the answer's shape, was not right."""
        return self.worker and self.category in (Category.REQUEST, Category.BAD_OUTPUT)

    @property
    def fallback_may_help(self) -> bool:
        """Whether another model may do better, although this one may not."""
        elsewhere = self.category in (Category.BAD_OUTPUT, Category.UPSTREAM, Category.WORKER)
        return self.retry or (elsewhere and self.code != "OUTPUT_TOO_LARGE")

    @property
    def kind(self) -> str:
        """OpenAI's error type."""
        return openai_kind(self.openai)


def openai_kind(status: int) -> str:
    """OpenAI's error type for an HTTP status: clients choose the exception by both, so they must agree."""
    known = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return known.get(status) or ("invalid_request_error" if status < 500 else "server_error")


_ANTHROPIC_KINDS: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
    504: "timeout_error",
}


def anthropic_kind(status: int) -> str:
    """Anthropic's error type for an HTTP status."""
    return _ANTHROPIC_KINDS.get(status) or ("invalid_request_error" if status < 499 else "api_error")


# fmt: off
FAILURES: dict[str, FailureRow] = {row.code: row for row in (
    # time, by phase: waiting for a turn, for a connection, for the first output, between two outputs, all of it
    FailureRow(504, "QUEUE_TIMEOUT", Category.CAPACITY),
    FailureRow(504, "CONNECT_TIMEOUT", Category.CAPACITY, retry=True, worker=True, upstream=True),
    FailureRow(504, "FIRST_TOKEN_TIMEOUT", Category.CAPACITY, retry=True, worker=True, upstream=True),
    FailureRow(504, "STREAM_STALLED", Category.CAPACITY, retry=True, worker=True, upstream=True),
    FailureRow(504, "TOTAL_TIMEOUT", Category.CAPACITY, worker=True),
    FailureRow(504, "UPSTREAM_TIMEOUT", Category.CAPACITY, retry=True, worker=True, upstream=True),  # its own, of any phase
    FailureRow(504, "PERMIT_EXPIRED", Category.CAPACITY, retry=True),
    # no worker
    FailureRow(503, "MODEL_TOO_BUSY", Category.CAPACITY, retry=True, worker=True),
    FailureRow(503, "NO_WORKER", Category.CAPACITY, retry=True),
    FailureRow(503, "MODEL_UNAVAILABLE", Category.CAPACITY, retry=True),
    # the answer
    FailureRow(502, "JSON_PARSE_FAILED", Category.BAD_OUTPUT, worker=True),
    FailureRow(502, "STAGE_INPUT_FAILED", Category.BAD_OUTPUT),  # what a chain's next stage is to be given cannot be made of it
    # the upstream
    FailureRow(502, "UPSTREAM_ERROR", Category.UPSTREAM, retry=True, worker=True, upstream=True),
    FailureRow(502, "UPSTREAM_TRUNCATED", Category.UPSTREAM, retry=True, worker=True, upstream=True),
    FailureRow(502, "UPSTREAM_AUTH", Category.UPSTREAM, worker=True, upstream=True),
    FailureRow(502, "UPSTREAM_QUOTA", Category.UPSTREAM, worker=True, upstream=True),
    # the endpoint: what it led to may not be, and its caller alone cannot change that
    FailureRow(502, "ADDRESS_REFUSED", Category.UPSTREAM, worker=True),
    FailureRow(502, "RESPONSE_TOO_LARGE", Category.UPSTREAM, worker=True),
    # the worker
    FailureRow(500, "WORKER_ERROR", Category.WORKER, worker=True),
    FailureRow(502, "WORKER_LOST", Category.WORKER, retry=True),
    FailureRow(502, "PROTOCOL_ERROR", Category.WORKER, worker=True),
    FailureRow(502, "OUTPUT_TOO_LARGE", Category.WORKER, worker=True),
    # the store
    FailureRow(502, "STORE_LOST", Category.GATEWAY, retry=True),
    FailureRow(502, "EVENTS_LOST", Category.GATEWAY, retry=True),
    FailureRow(503, "STORE_UNAVAILABLE", Category.GATEWAY, retry=True),  # a stored response cannot be read now
    # the gateway
    FailureRow(503, "GATEWAY_STOPPING", Category.GATEWAY, retry=True),
    FailureRow(503, "DATABASE_UNAVAILABLE", Category.GATEWAY, retry=True),  # a chain's next stage could not be paid
    FailureRow(503, "NOT_CHECKED", Category.GATEWAY, retry=True),  # an output could not be checked
    # the request
    FailureRow(400, "BAD_REQUEST", Category.REQUEST, worker=True),
)} | {
    "CONTEXT_LENGTH": FailureRow(400, "context_length_exceeded", Category.REQUEST, worker=True),
    "CONTENT_FILTERED": FailureRow(400, "content_filter", Category.REQUEST, worker=True),
    CANCELLED: FailureRow(499, "cancelled", Category.CANCELLED, native=499),
    "UNAUTHORIZED": FailureRow(401, "invalid_api_key", Category.REQUEST, native=401),  # its key was taken away meanwhile
    "INSUFFICIENT_QUOTA": FailureRow(429, "insufficient_quota", Category.REQUEST),  # of a chain's next stage
    "ENDPOINT_GONE": FailureRow(404, "ENDPOINT_GONE", Category.REQUEST),  # while its task waited
    "MODEL_NOT_FOUND": FailureRow(404, "model_not_found", Category.REQUEST, native=404),
    "TYPE_NOT_OFFERED": FailureRow(404, "TYPE_NOT_OFFERED", Category.REQUEST, worker=True),  # its workers do not do that
}
# fmt: on


def failure_row(code: str) -> FailureRow:
    """The row of a failure code. One that is not known is a worker's failure that a retry does not help, by its own name."""
    known = FAILURES.get(code)
    return known or FAILURES["WORKER_ERROR"]._replace(code=code)


def category_of(code: str) -> str:
    """The category of a failure code; '' of none."""
    return failure_row(code).category.value if code else ""


def codes_of(category: str) -> list[str]:
    """Return the codes of a category; none of what is no category."""
    return sorted(code for code, row in FAILURES.items() if row.category == category)


def failures_in_lua() -> str:
    """Codes that show how an upstream is, for the scripts: BLAMES_UPSTREAM, and PROVES_UPSTREAM_WORKS."""

    def table(name: str, codes: list[str]) -> str:
        return f"local {name} = {{ {', '.join(f'{code} = true' for code in sorted(codes))} }}\n"

    blamed = [code for code, row in FAILURES.items() if row.upstream]
    working = [code for code, row in FAILURES.items() if row.proves_upstream_works]
    return table("BLAMES_UPSTREAM", blamed) + table("PROVES_UPSTREAM_WORKS", working)
