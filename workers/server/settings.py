"""What the workers' side of a gateway is told by its settings. Durations in ms."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from fairlane.queues.tasks import Grant


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """How long a model's worker may stay silent, ms; None = as long as it likes."""

    first_output_ms: int | None = None
    silence_ms: int | None = None


@dataclass(slots=True)
class DispatchSettings:
    """For the parts of the dispatcher and their attempts. They share one object: what changes in it holds for all at once."""

    flush_interval_ms: float = 40
    flush_chunks: int = 8
    flush_chars: int = 1024
    ack_ms: int = 5000
    cancel_grace_ms: int = 5000
    no_worker_grace_ms: int = 0
    dead_after_ms: int = 30_000
    payload_cache_bytes: int = 64 << 20
    max_output_bytes: int = 16 << 20
    """What the events of one task may take in its log."""
    debug_events: bool = False
    """Log the payload that each worker gets, for readers who debug prompts."""
    output_limits: Mapping[str, OutputLimits] = field(default_factory=dict)
    """By model."""
    changed_limits: Mapping[tuple[str, str], OutputLimits] = field(default_factory=dict)
    """By model, and the side of a change of settings that a task is on (`Grant.change`)."""

    def limits_of(self, grant: Grant) -> OutputLimits | None:
        """How long the worker of a task may stay silent."""
        changed = self.changed_limits.get((grant.model, grant.change)) if grant.change else None
        return changed or self.output_limits.get(grant.model)

    def take_over(self, other: "DispatchSettings") -> None:
        """Become like another one."""
        for known in fields(self):
            setattr(self, known.name, getattr(other, known.name))
