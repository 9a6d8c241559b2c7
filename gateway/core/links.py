"""Links to one task's events that need no key: signed, and good for a while after they were used last."""

from contextlib import AbstractContextManager

from fairlane.gateway.accounts.tickets import Tickets, in_use
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.errors import invalid_link
from fairlane.queues.clock import now_ms
from fairlane.queues.scheduler import Scheduler


class StreamLinks:
    """Makes links, and checks the tickets of clients that follow them."""

    def __init__(self, tickets: Tickets, scheduler: Scheduler, current: ActiveConfig) -> None:
        self.tickets = tickets
        self._scheduler = scheduler
        self._current = current

    def url(self, task_id: str) -> str:
        """Return the URL for reading a task's events without a key."""
        until = now_ms() + self._current.settings.tuning.stream_token_ms
        return f"/api/task/{task_id}/events?token={self.tickets.issue(task_id, until)}"

    async def use(self, token: str, task_id: str) -> AbstractContextManager[None]:
        """Return the use of a ticket: good within its own time, and while it is used. Raise ApiError (401) and StoreError."""
        until = self.tickets.expiry(token, task_id)
        if until is None or (until <= now_ms() and not await self._scheduler.is_ticket_used(task_id, until)):
            raise invalid_link()
        return in_use(self._scheduler, task_id, until, self._current.settings.tuning.stream_token_ms)
