"""Requests to endpoints: the worker gets what the configuration says of the endpoint now, in addition to the request."""

from fairlane.workers.server.settings import DispatchSettings
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.hook import AttemptHook


class EndpointHook(AttemptHook[Attempt]):
    """See the module."""

    __slots__ = ("_settings",)

    def __init__(self, settings: DispatchSettings) -> None:
        self._settings = settings

    def sends(self, attempt: Attempt, payload: bytes) -> bytes | None:
        if self._settings.complete is None:
            return payload
        received = self._settings.complete(attempt.grant.asked, payload)
        if received is None:
            why = "The endpoint is configured no more for this request"
            attempt.fail("ENDPOINT_GONE", why, retryable=False)
        return received
