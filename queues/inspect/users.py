"""The users with tasks that wait or run: read when asked, some at a time, and of very many not all."""

from dataclasses import dataclass, field
from typing import NamedTuple

from fairlane.queues.inspect.inspector import MAX_TASKS, Lane, StoreInspector
from fairlane.queues.store.link import RedisLink

MAX_LOOKED = 10_000
"""Users that one reading looks at, about: those of the longest lines first."""
PAGE = 500
"""Users, and parked ones, that one call looks at, so that the store answers others between."""


@dataclass(slots=True)
class User:
    """A user's tasks over all models."""

    user: str
    waiting: int = 0
    running: int = 0
    by_model: dict[str, int] = field(default_factory=dict)
    """Those that wait."""


class Users(NamedTuple):
    """Each user who has a task that waits or runs, as far as they were looked at."""

    now_ms: int
    users: dict[str, User]
    complete: bool
    """No user was left out, and no running task."""


class UserReader:
    """Reads who has tasks."""

    def __init__(self, link: RedisLink, inspector: StoreInspector) -> None:
        self._link = link
        self._inspector = inspector

    async def read(self) -> Users:
        """As it is now. Raises StoreError."""
        snapshot = await self._inspector.recent()
        found = Users(snapshot.now_ms, {}, all(model.running <= MAX_TASKS for model in snapshot.models))
        left = MAX_LOOKED
        for lane in sorted(snapshot.lanes, key=lambda lane: -lane.waiting):
            if lane.waiting and left > 0:
                left -= await self._read_lane(lane, found.users, left)
        for model in snapshot.models:
            if model.running:
                reply = await self._link.run("list_users", model.model, "", 0, MAX_TASKS)
                for name, count in zip(reply[::2], reply[1::2], strict=True):
                    _user(found.users, name).running += count
        return found._replace(complete=found.complete and left > 0)

    async def _read_lane(self, lane: Lane, users: dict[str, User], most: int) -> int:
        """Add up a lane's users; how many of them were looked at, at most a page more than `most`."""
        looked = 0
        for at in range(0, max(lane.users, lane.parked), PAGE):
            reply = await self._link.run("list_users", lane.model, lane.queue, at, PAGE)
            for name, waiting in zip(reply[::2], reply[1::2], strict=True):
                user = _user(users, name)
                user.waiting += waiting
                user.by_model[lane.model] = user.by_model.get(lane.model, 0) + waiting
            looked += len(reply) // 2
            if looked >= most:
                break
        return looked


def _user(users: dict[str, User], name: bytes) -> User:
    text = name.decode("utf-8", "replace")
    return users.setdefault(text, User(text))
