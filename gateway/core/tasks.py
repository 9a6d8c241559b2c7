"""What callers can do with tasks: all that the callers' surfaces are given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fairlane.gateway.accounts.in_flight import InFlightRequests
from fairlane.gateway.attached import Attached
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.bodies import Bodies
from fairlane.gateway.core.cancel import Cancel
from fairlane.gateway.core.links import StreamLinks
from fairlane.gateway.core.models import Models
from fairlane.gateway.core.poll import Poll
from fairlane.gateway.core.positions import PositionMonitor
from fairlane.gateway.core.submit import Submit
from fairlane.gateway.lifecycle import Lifecycle, OpenAnswers, Part
from fairlane.gateway.settings import Settings
from fairlane.streaming.hub import Hub
from fairlane.streaming.results import Results


@dataclass(frozen=True, slots=True)
class Tasks:
    """Use cases, and what streams are made of."""

    current: ActiveConfig
    calls: InFlightRequests
    bodies: Bodies
    models: Models
    submit: Submit
    poll: Poll
    cancel: Cancel
    cancel_soon: Callable[[str, Literal["client", "timeout"]], None]
    """Ends a task whose client is gone, in the background; retried until Redis answers."""
    links: StreamLinks
    hub: Hub
    results: Results
    positions: PositionMonitor
    open_answers: OpenAnswers
    lifecycle: Lifecycle
    attached: Sequence[Attached]
    part: Part
    """Returns a part of a feature, by its class."""

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self.current.settings
