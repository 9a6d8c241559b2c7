"""Failure codes: one row for each, which every surface, the metrics, the records and the worker's side read. Pure.

A code says in which phase a task failed, or because of what; its family says in one word what is to be done. A family is
a function of the code: it is told beside codes and stored nowhere.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

CANCELLED: Final = "CANCELLED"
"""The code of every task that was cancelled, whoever did it: its caller, an operator, a departure, the gateway."""


class Family(StrEnum):
    """What is to be done about a failure. A new code goes where its reader would do the same."""

    BUSY = "MODEL_TOO_BUSY"
    """Nobody answered in time: come again later; more capacity, or longer limits, help. Time-outs of every phase are of it."""
    UNREADABLE = "JSON_PARSE_FAILED"
    """An answer came, and is not what it must be: ask anew, or mend the prompt or the schema."""
    UPSTREAM = "UPSTREAM_ERROR"
    """The model's server failed, or will not serve this worker: look at the provider, its key and its account."""
    WORKER = "WORKER_ERROR"
    """The worker failed: look at its log."""
    GATEWAY = "GATEWAY_ERROR"
    """The gateway or its Redis failed, or goes: send it again; look at the gateway's log."""
    REQUEST = "BAD_REQUEST"
    """The request cannot succeed as it is: mend it."""
    CANCELLED = CANCELLED
    """Somebody wanted it so: there is nothing to do."""


class FailureRow(NamedTuple):
    """How a failure is told."""

    openai: int
    """The HTTP status on /v1, which tells the SDKs the class of their exception."""
    code: str
    """OpenAI's error code: its own where it has one for that, else ours."""
    family: Family
    retry: bool = False
    """Whether the same request may do better, as a rule; a failure that says so itself knows better."""
    worker: bool = False
    """Whether a worker may tell it; else the gateway alone does."""
    upstream: bool = False
    """Whether it counts against the upstream through which it came: enough of them open its breaker."""
    native: int = 500
    """The HTTP status on the native calls."""

    @property
    def tells_that_it_works(self) -> bool:
        """Whether only a model that works can fail so: the request, or the answer's shape, was not right."""
        return self.worker and self.family in (Family.REQUEST, Family.UNREADABLE)

    @property
    def another_may(self) -> bool:
        """Whether another model may do better, although this one may not."""
        elsewhere = self.family in (Family.UNREADABLE, Family.UPSTREAM, Family.WORKER)
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
    FailureRow(504, "QUEUE_TIMEOUT", Family.BUSY),
    FailureRow(504, "CONNECT_TIMEOUT", Family.BUSY, retry=True, worker=True, upstream=True),
    FailureRow(504, "FIRST_TOKEN_TIMEOUT", Family.BUSY, retry=True, worker=True, upstream=True),
    FailureRow(504, "STREAM_STALLED", Family.BUSY, retry=True, worker=True, upstream=True),
    FailureRow(504, "TOTAL_TIMEOUT", Family.BUSY, worker=True),
    FailureRow(504, "UPSTREAM_TIMEOUT", Family.BUSY, retry=True, worker=True, upstream=True),  # its own, of any phase
    FailureRow(504, "PERMIT_EXPIRED", Family.BUSY, retry=True),
    # nobody to do it
    FailureRow(503, "MODEL_TOO_BUSY", Family.BUSY, retry=True, worker=True),
    FailureRow(503, "NO_WORKER", Family.BUSY, retry=True),
    FailureRow(503, "MODEL_UNAVAILABLE", Family.BUSY, retry=True),
    # the answer
    FailureRow(502, "JSON_PARSE_FAILED", Family.UNREADABLE, worker=True),
    FailureRow(502, "STAGE_INPUT_FAILED", Family.UNREADABLE),  # what a chain's next stage is to be given cannot be made of it
    # the upstream
    FailureRow(502, "UPSTREAM_ERROR", Family.UPSTREAM, retry=True, worker=True, upstream=True),
    FailureRow(502, "UPSTREAM_TRUNCATED", Family.UPSTREAM, retry=True, worker=True, upstream=True),
    FailureRow(502, "UPSTREAM_AUTH", Family.UPSTREAM, worker=True, upstream=True),
    FailureRow(502, "UPSTREAM_QUOTA", Family.UPSTREAM, worker=True, upstream=True),
    # the endpoint: what it led to may not be, and its caller alone cannot change that
    FailureRow(502, "ADDRESS_REFUSED", Family.UPSTREAM, worker=True),
    FailureRow(502, "REDIRECT_REFUSED", Family.UPSTREAM, worker=True),
    FailureRow(502, "RESPONSE_TOO_LARGE", Family.UPSTREAM, worker=True),
    # the worker
    FailureRow(500, "WORKER_ERROR", Family.WORKER, worker=True),
    FailureRow(502, "WORKER_LOST", Family.WORKER, retry=True),
    FailureRow(502, "PROTOCOL_ERROR", Family.WORKER, worker=True),
    FailureRow(502, "OUTPUT_TOO_LARGE", Family.WORKER, worker=True),
    # the store
    FailureRow(502, "STORE_LOST", Family.GATEWAY, retry=True),
    FailureRow(502, "EVENTS_LOST", Family.GATEWAY, retry=True),
    # the gateway
    FailureRow(503, "GATEWAY_STOPPING", Family.GATEWAY, retry=True),
    FailureRow(503, "DATABASE_UNAVAILABLE", Family.GATEWAY, retry=True),  # nobody knew what a chain's next stage can be paid with
    FailureRow(503, "NOT_CHECKED", Family.GATEWAY, retry=True),  # a finished answer, of which nobody could tell whether it is one
    # the request
    FailureRow(400, "BAD_REQUEST", Family.REQUEST, worker=True),
    FailureRow(429, "INSUFFICIENT_QUOTA", Family.REQUEST),  # of a chain's next stage
)} | {
    "CONTEXT_LENGTH": FailureRow(400, "context_length_exceeded", Family.REQUEST, worker=True),
    "CONTENT_FILTERED": FailureRow(400, "content_filter", Family.REQUEST, worker=True),
    CANCELLED: FailureRow(499, "cancelled", Family.CANCELLED, native=499),
    "UNAUTHORIZED": FailureRow(401, "invalid_api_key", Family.REQUEST, native=401),  # its key was taken away meanwhile
    "ENDPOINT_GONE": FailureRow(404, "ENDPOINT_GONE", Family.REQUEST),  # while its task waited
    "MODEL_NOT_FOUND": FailureRow(404, "model_not_found", Family.REQUEST, native=404),
    "TYPE_NOT_OFFERED": FailureRow(404, "TYPE_NOT_OFFERED", Family.REQUEST, worker=True),  # its workers do not do that
}
# fmt: on


def failure_row(code: str) -> FailureRow:
    """The row of a failure code. One that is not known is a worker's failure that a retry will not mend, by its own name."""
    known = FAILURES.get(code)
    return known or FAILURES["WORKER_ERROR"]._replace(code=code)


def family_of(code: str) -> str:
    """The family of a failure code; '' of none."""
    return failure_row(code).family.value if code else ""


def codes_of(family: str) -> list[str]:
    """Return the codes of a family; none of what is no family."""
    return sorted(code for code, row in FAILURES.items() if row.family == family)


def failures_in_lua() -> str:
    """Which codes tell how an upstream is, for the scripts: OF_UPSTREAM is to blame, TELLS_THAT_IT_WORKS is not."""

    def table(name: str, codes: list[str]) -> str:
        return f"local {name} = {{ {', '.join(f'{code} = true' for code in sorted(codes))} }}\n"

    blamed = [code for code, row in FAILURES.items() if row.upstream]
    working = [code for code, row in FAILURES.items() if row.tells_that_it_works]
    return table("OF_UPSTREAM", blamed) + table("TELLS_THAT_IT_WORKS", working)
