"""What can go wrong on the worker's side.

    TaskError        a handler ends its task with a failure of its own choice
    GatewayRefusedError   the gateway will not have this worker; trying again would not help
    BadAddressError       the gateway's address cannot be used (a ValueError)

Anything else that a handler raises ends its task as `WORKER_ERROR` and leaves the worker running.
"""

from fairlane.workers import protocol

MAX_MESSAGE_CHARS = 2000
"""Longest sentence that is sent to the gateway; the rest is cut."""


class TaskError(Exception):
    """Raise it in a handler to fail the task with `code`, one of PROTOCOL.md's failure codes, and a sentence.

    `retryable` says whether another try may help; left out, the code's usual answer holds (final for an
    unknown code). The gateway tries again only while the caller has seen no output. `retry_after_ms` is how
    long to wait before that, at most 5 minutes: with `MODEL_TOO_BUSY` and an `http_status` of 429 or none, no task
    of the model begins anywhere until then (a provider's limit); with anything else this worker alone rests.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        http_status: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = shorten(message) or code
        self.retryable = (
            protocol.FAILURE_CODES[protocol.worker_code(code)] if retryable is None else retryable
        )
        self.retry_after_ms = (
            None if retry_after_ms is None else int(min(max(0, retry_after_ms), protocol.MAX_PAUSE_MS))
        )
        self.http_status = http_status if http_status is not None and 100 <= http_status <= 599 else None


class GatewayRefusedError(Exception):
    """The gateway rejected this worker permanently; the message explains why and what to do."""


class BadAddressError(ValueError):
    """The gateway's address is invalid; the message shows the right form."""


def shorten(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    """`text` cut to `limit` characters, with an ellipsis if cut; what UTF-8 cannot say becomes `?`."""
    text = text[: limit + 1].encode(errors="replace").decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
