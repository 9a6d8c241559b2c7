"""Reports to the store when the requests of throttled models have left: one call for all of a tick of the event loop."""

import asyncio
import contextlib
from typing import Any

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.tasks import Grant
from fairlane.workers.server.slots import Slots
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.hook import AttemptHook

CALL_ATTEMPTS = 500
"""The most that one call reports; other calls wait for as long as it takes."""


class SentReports:
    """See the module. A report that is lost, as the store is unavailable, is made up for by the end of the attempt: until then it
    counts."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._scheduler = slots.scheduler
        self._ready: list[Grant] = []

    def add(self, grant: Grant) -> None:
        """The request of this attempt has left."""
        if not self._ready:
            self._scheduler.before_writing(self._send)
        self._ready.append(grant)

    def _send(self) -> None:
        ready, self._ready = self._ready, []
        for grants in self._scheduler.grouped(ready, lambda grant: grant.task_id):
            with contextlib.suppress(StoreUnavailable):
                for at in range(0, len(grants), CALL_ATTEMPTS):
                    reply = self._scheduler.sent(grants[at : at + CALL_ATTEMPTS])
                    reply.add_done_callback(self._on_reply)

    def _on_reply(self, reply: asyncio.Future[Any]) -> None:
        if not reply.cancelled() and reply.exception() is None:
            self._slots.ask_later(self._scheduler.parse_sent(reply.result()))


class SentHook(AttemptHook[Attempt]):
    """Reports one attempt, once."""

    __slots__ = ("_reported", "_reports")

    def __init__(self, reports: SentReports) -> None:
        self._reports = reports
        self._reported = False

    def request_left(self, attempt: Attempt) -> None:
        if not self._reported:
            self._reported = True
            self._reports.add(attempt.grant)
