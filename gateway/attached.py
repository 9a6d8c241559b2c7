"""What features add to a running gateway: `gateway/NAME/feature.py` returns it."""

import enum
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.admin.settings_view import ReadLayer
from fairlane.gateway.core.bodies import RawObject
from fairlane.gateway.features import FEATURES
from fairlane.gateway.http.request import Request
from fairlane.gateway.lifecycle import Component
from fairlane.gateway.metrics.gauges import Gauge, Rows
from fairlane.queues.overrides import Actor
from fairlane.queues.tasks import Place, Record, Rejection, Submitted, TaskSpec


class AnswerMode(enum.Enum):
    """The way of the answer."""

    LATER = 1
    STREAM = 2
    WAIT = 3


class NativeCall(NamedTuple):
    """A call of `POST /api/tasks`."""

    request: Request
    caller: Caller
    fields: RawObject
    task_id: str
    subject: str
    """As `ActiveConfig.plan` takes it."""


class NativeTask(NamedTuple):
    """The task of a native call, and the form of its answer."""

    task: TaskSpec
    mode: AnswerMode
    accepted: Callable[[Submitted], Awaitable[dict[str, Any]]] | None = None
    """Returns more members of the answer to an accepted task that runs later."""
    failed: Callable[[str, str], Awaitable[dict[str, Any]]] | None = None
    """Returns more members of the answer to a task, by id and user, that failed while its client waited."""


class Polled(NamedTuple):
    """What a feature adds to the answer of a poll."""

    members: dict[str, Any]
    place: Place | None = None
    """The task's place, instead of its record's; also shown while it runs."""


class DatabaseGauges(NamedTuple):
    """Gauges that are read from the database."""

    gauges: Sequence[Gauge]
    read: Callable[[AsyncConnection], Awaitable[Rows]]
    every_s: float = 10.0
    """Minimum time between two reads."""


Recorded = Callable[[AsyncConnection, Sequence[bytes], Sequence[bytes]], Awaitable[None]]
"""Takes entries of the outbox, and the same without the names of erased users."""
EndUser = Callable[[str, int], Awaitable[tuple[int, int]]]
CancelOther = Callable[[str, Actor], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Attached:
    """What a feature adds to a running gateway."""

    parts: Sequence[object] = ()
    """What routes and other features use, by its class (`Gateway.part`)."""
    components: Sequence[Component] = ()
    """They start after the gateway's own, and close before."""
    first: Sequence[Component] = ()
    """They start before the connection to Redis."""
    settings: ReadLayer | None = None
    """Returns settings that operators changed at run time."""
    recorded: Recorded | None = None
    """Writes what the ends of tasks leave, in the transaction of their usage records."""
    gauges: DatabaseGauges | None = None
    """Reads its gauges from the database."""
    end_user: EndUser | None = None
    """Ends what a user has started until a time (ms). Returns how much this call ended, and how much has not ended yet."""
    cancel: CancelOther | None = None
    """Cancels a batch for an operator. Returns whether this call did."""
    prepare: Callable[[NativeCall], Awaitable[NativeTask] | None] | None = None
    """Makes the task of a native call; None: the call is not the feature's. Raises ApiError."""
    rejected: Callable[[Rejection, TaskSpec], Awaitable[bool]] | None = None
    """Removes the reason of a rejection. Returns whether to submit the task again."""
    polled: Callable[[str, Record], Awaitable[Polled] | None] | None = None
    """Adds to the answer of a poll; None: nothing. Raises ApiError and StoreError."""
    inspected: Callable[[str, Record], Awaitable[dict[str, Any]] | None] | None = None
    """Returns more members of a task as operators see it; None: there are none. Raises StoreError."""
    balance: Callable[[Caller], Awaitable[Any]] | None = None
    """Returns a caller's balance."""
    store_back: Callable[[], None] | None = None
    """Called when Redis is back, and may have lost something."""


def attached(gateway: Any, disabled: Collection[str]) -> Iterator[Attached]:
    """Attach the other features to a gateway, one after the other."""
    for feature in FEATURES:
        if feature.attaches and feature.name not in disabled:
            yield import_module(f"fairlane.gateway.{feature.name}.feature").attach(gateway)
