"""What a gateway is configured to do now."""

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.settings import Settings

RELOADED = (
    "models",
    "queues",
    "keys",
    "workers",
    "max_queue_length",
    "max_queued_bytes",
    "max_retained_bytes",
    "max_queue_wait_ms",
    "max_calls_per_caller",
)
"""Settings that are taken over while running."""


class Current:
    """The settings and the keys that hold. Both are replaced as a whole when the configuration is read again."""

    def __init__(self, settings: Settings, callers: Callers) -> None:
        self.settings = settings
        self.callers = callers

    def replace(self, settings: Settings, callers: Callers) -> None:
        """Take over keys and limits (RELOADED) of new settings; what needs a restart stays as it is."""
        self.callers = callers
        self.settings = self.settings.model_copy(update={name: getattr(settings, name) for name in RELOADED})
        self.settings.came(settings.times)
