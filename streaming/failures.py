"""What the end of a task without a result means to its caller: one row per failure code, which every surface reads. Pure.

The rows are here, and not in the gateway, because the views of OpenAI's streams need them as well as HTTP. Which codes a worker
may use, workers/protocol.py says.
"""

from typing import Final, NamedTuple

from fairlane.queues.tasks import Fragment
from fairlane.streaming.events import fragment_cancelled

CANCELLED: Final = "CANCELLED"
"""The code of every task that was cancelled, whoever did it: its caller, an operator, a departure, the gateway."""


class FailureRow(NamedTuple):
    """How a failure is told."""

    openai: int
    """The HTTP status on /v1, which tells the SDKs the class of their exception."""
    code: str
    """OpenAI's error code: its own where it has one for that, else ours."""
    retry: bool = False
    """Whether the same request may do better, as a rule; a failure that says so itself knows better."""
    native: int = 500
    """The HTTP status on the native calls."""

    @property
    def kind(self) -> str:
        """OpenAI's error type."""
        return openai_kind(self.openai)


def openai_kind(status: int) -> str:
    """OpenAI's error type for an HTTP status: clients choose the exception by both, so they must agree."""
    known = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return known.get(status) or ("invalid_request_error" if status < 500 else "server_error")


# fmt: off
FAILURES: dict[str, FailureRow] = {row.code: row for row in (
    # time
    FailureRow(504, "TIMEOUT"),
    FailureRow(504, "QUEUE_TIMEOUT"),
    FailureRow(504, "FIRST_OUTPUT_TIMEOUT", retry=True),
    FailureRow(504, "SILENCE_TIMEOUT", retry=True),
    FailureRow(504, "UPSTREAM_TIMEOUT", retry=True),
    # the upstream
    FailureRow(503, "MODEL_TOO_BUSY", retry=True),
    FailureRow(502, "UPSTREAM_ERROR", retry=True),
    FailureRow(502, "UPSTREAM_TRUNCATED", retry=True),
    FailureRow(502, "UPSTREAM_AUTH"),
    FailureRow(502, "UPSTREAM_QUOTA"),
    FailureRow(502, "JSON_PARSE_FAILED"),
    # the worker
    FailureRow(500, "WORKER_ERROR"),
    FailureRow(502, "WORKER_LOST", retry=True),
    FailureRow(503, "NO_WORKER", retry=True),
    FailureRow(502, "PROTOCOL_ERROR"),
    FailureRow(502, "OUTPUT_TOO_LARGE"),
    # the store
    FailureRow(502, "STORE_LOST", retry=True),
    FailureRow(502, "EVENTS_LOST", retry=True),
    # the gateway
    FailureRow(503, "GATEWAY_STOPPING", retry=True),
    # the request
    FailureRow(400, "BAD_REQUEST"),
)} | {
    "CONTEXT_LENGTH": FailureRow(400, "context_length_exceeded"),
    "CONTENT_FILTERED": FailureRow(400, "content_filter"),
    CANCELLED: FailureRow(499, "cancelled", native=499),
    "UNAUTHORIZED": FailureRow(401, "UNAUTHORIZED", native=401),  # its key was taken away meanwhile
    "MODEL_NOT_FOUND": FailureRow(404, "model_not_found", native=404),
}
# fmt: on


OTHERS_MAY = frozenset(
    {
        "UPSTREAM_AUTH",
        "UPSTREAM_QUOTA",
        "JSON_PARSE_FAILED",
        "WORKER_ERROR",
        "PROTOCOL_ERROR",
        "MODEL_NOT_FOUND",
    }
)
"""Failures that no retry mends, though another model may do better."""


def failure_row(code: str) -> FailureRow:
    """The row of a failure code. One that is not known is a server's error that a retry will not mend, by its own name."""
    known = FAILURES.get(code)
    return known or FAILURES["WORKER_ERROR"]._replace(code=code)


def cancelled_end(by: str) -> Fragment:
    """The end of a task that `by` cancelled: client, admin or gateway."""
    return Fragment(fragment_cancelled(by), CANCELLED)
