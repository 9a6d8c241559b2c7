"""What the end of a task without a result means to its caller: one row per failure code, which every surface reads. Pure.

The rows are here, and not in the gateway, because the views of OpenAI's streams need them as well as HTTP. Which codes a worker
may use, workers/protocol.py says.
"""

from typing import Final, NamedTuple

from fairlane.queues.tasks import Fragment
from fairlane.streaming.events import fragment_cancelled

SERVER: Final = "server_error"
INVALID: Final = "invalid_request_error"
CANCELLED: Final = "CANCELLED"
"""The code of every task that was cancelled, whoever did it: its caller, an operator, a departure, the gateway."""


class Told(NamedTuple):
    """How a failure is told."""

    openai: int
    """The HTTP status on /v1, which tells the SDKs the class of their exception."""
    kind: str
    """OpenAI's error type."""
    code: str
    """OpenAI's error code: its own where it has one for that, else ours."""
    retry: bool
    """Whether the same request may do better, as a rule; a failure that says so itself knows better."""
    native: int = 500
    """The HTTP status on the native calls."""


def _row(openai: int, code: str, *, retry: bool = False, kind: str = SERVER, native: int = 500) -> Told:
    return Told(openai, kind, code, retry, native)


# fmt: off
FAILURES: dict[str, Told] = {told.code: told for told in (
    # time
    _row(504, "TIMEOUT"),
    _row(504, "QUEUE_TIMEOUT"),
    _row(504, "FIRST_OUTPUT_TIMEOUT"),
    _row(504, "SILENCE_TIMEOUT"),
    # the upstream
    _row(503, "MODEL_TOO_BUSY", retry=True),
    _row(502, "UPSTREAM_ERROR", retry=True),
    _row(502, "UPSTREAM_TRUNCATED", retry=True),
    _row(502, "UPSTREAM_AUTH"),
    _row(502, "UPSTREAM_QUOTA"),
    _row(502, "JSON_PARSE_FAILED"),
    # the worker
    _row(500, "WORKER_ERROR"),
    _row(502, "WORKER_LOST", retry=True),
    _row(503, "NO_WORKER", retry=True),
    _row(502, "PROTOCOL_ERROR"),
    _row(502, "OUTPUT_TOO_LARGE"),
    # the store
    _row(502, "STORE_LOST", retry=True),
    _row(502, "EVENTS_LOST", retry=True),
    # the gateway
    _row(503, "GATEWAY_STOPPING", retry=True),
    # the request
    _row(400, "BAD_REQUEST", kind=INVALID),
)} | {
    "CONTEXT_LENGTH": _row(400, "context_length_exceeded", kind=INVALID),
    "CONTENT_FILTERED": _row(400, "content_filter", kind=INVALID),
    CANCELLED: _row(499, "cancelled", kind=INVALID, native=499),
    "UNAUTHORIZED": _row(401, "UNAUTHORIZED", kind="authentication_error", native=401),  # its key was taken away meanwhile
    "MODEL_NOT_FOUND": _row(404, "model_not_found", kind=INVALID, native=404),
}
# fmt: on


def told(code: str) -> Told:
    """The row of a failure code. One that is not known is a server's error that a retry will not mend, by its own name."""
    known = FAILURES.get(code)
    return known or FAILURES["WORKER_ERROR"]._replace(code=code)


def cancelled_end(by: str) -> Fragment:
    """The end of a task that `by` cancelled: client, admin or gateway."""
    return Fragment(fragment_cancelled(by), CANCELLED)
