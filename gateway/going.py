"""Whether this gateway is on its way down, and what callers are told then."""

import time

from fairlane.gateway.errors import SECOND_MS, ApiError, stopping


class Going:
    """Known from the start, and begun once (`Shutdown.run`)."""

    def __init__(self) -> None:
        self.begun = False
        self.others_stay = False
        """Whether another replica takes what this one refuses."""
        self._until = 0.0

    def begin(self, drain_ms: int) -> None:
        """From now on nothing new is taken; what runs may finish within `drain_ms`."""
        self.begun = True
        self._until = time.monotonic() + drain_ms / 1000

    @property
    def over(self) -> bool:
        """Whether the time to finish is over."""
        return time.monotonic() >= self._until

    @property
    def left_ms(self) -> int:
        """How long what runs may still take."""
        return max(int((self._until - time.monotonic()) * 1000), 0)

    def refusal(self, task_id: str | None = None) -> ApiError:
        """The answer of a gateway that goes: another one takes the call at once, or a successor when this one is gone."""
        return stopping(SECOND_MS if self.others_stay else self.left_ms, task_id)
