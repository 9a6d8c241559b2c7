"""Settings of the workers' side of a gateway. Durations in ms."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields

from fairlane.queues.keys import is_reserved
from fairlane.queues.tasks import Grant


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """How long a model's worker may stay silent, ms; None: no limit."""

    first_output_ms: int | None = None
    silence_ms: int | None = None
    adaptive: bool = False
    """Whether the limits follow the model's queue (`hooks/congestion.py`)."""


@dataclass(slots=True)
class DispatchSettings:
    """For the parts of the dispatcher and their attempts. They share one object: a change in it applies to all of them."""

    flush_interval_ms: float = 40
    flush_chunks: int = 8
    flush_chars: int = 1024
    ack_ms: int = 5000
    cancel_grace_ms: int = 5000
    no_worker_grace_ms: int = 0
    lost_grace_ms: int = 10_000
    """How long a task whose worker is lost waits for a worker, if none of its model is left and a client waits for the task."""
    expected: Set[str] = frozenset()
    """Models whose workers are waited for from the start on, as if they had left then."""
    dead_after_ms: int = 30_000
    payload_cache_bytes: int = 64 << 20
    max_output_bytes: int = 16 << 20
    """What the events of one task may take in its log."""
    debug_events: bool = False
    """Log the payload that each worker gets, for readers who debug prompts."""
    output_limits: Mapping[str, OutputLimits] = field(default_factory=dict)
    """By model."""
    endpoints: tuple[str, ...] = ()
    """The models of all endpoints: what a worker offers that registers `http:*`."""
    complete: Callable[[str, bytes], bytes | None] | None = None
    """What a worker receives of a request to an endpoint, by its model and the payload as it is stored. None: there is no such
    endpoint, or not for this request."""

    def payload_of(self, grant: Grant, payload: bytes) -> bytes | None:
        """Return what the worker of a task receives; None: the task cannot be carried out any more."""
        if self.complete is None or not is_reserved(grant.asked):
            return payload
        return self.complete(grant.asked, payload)

    def take_over(self, other: "DispatchSettings") -> None:
        """Become like another one."""
        for known in fields(self):
            setattr(self, known.name, getattr(other, known.name))
