"""What features add to a running gateway: `gateway/NAME/feature.py` returns it."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.admin.settings_view import ReadLayer
from fairlane.gateway.features import FEATURES
from fairlane.gateway.lifecycle import Component
from fairlane.queues.overrides import Actor

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
    end_user: EndUser | None = None
    """Ends what a user has started until a time (ms). Returns how much this call ended, and how much has not ended yet."""
    cancel: CancelOther | None = None
    """Cancels a batch for an operator. Returns whether this call did."""
    load_balance: Callable[[str, str], Awaitable[None]] | None = None
    """Loads a balance, with a window of its budget, into Redis."""
    balance: Callable[[Caller], Awaitable[Any]] | None = None
    """Returns a caller's balance."""
    store_back: Callable[[], None] | None = None
    """Called when Redis is back, and may have lost something."""


def attached(gateway: Any, disabled: Collection[str]) -> Iterator[Attached]:
    """Attach the other features to a gateway, one after the other."""
    for feature in FEATURES:
        if feature.attaches and feature.name not in disabled:
            yield import_module(f"fairlane.gateway.{feature.name}.feature").attach(gateway)
