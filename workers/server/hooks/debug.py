"""Logs the payload that a worker gets, for readers who debug prompts."""

from fairlane.streaming.events import fragment_debug
from fairlane.workers.protocol import with_model
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.hook import AttemptHook

MAX_BYTES = 64 * 1024


class DebugHook(AttemptHook[Attempt]):
    """See the module. It comes before the hook of endpoints: what an operator adds to a request is not for its caller."""

    __slots__ = ("_fragment",)

    def __init__(self) -> None:
        self._fragment = b""

    def sends(self, attempt: Attempt, payload: bytes) -> bytes:
        shown = with_model(payload, attempt.grant.asked) if attempt.grant.model_omitted else payload
        self._fragment = fragment_debug(
            "the worker got this payload", shown if len(shown) <= MAX_BYTES else None
        )
        return payload

    def begun(self, attempt: Attempt) -> None:
        """Log it. Not before the worker has begun: until then the grant may move, and two would write at one place."""
        attempt.writer.event("debug", self._fragment)
