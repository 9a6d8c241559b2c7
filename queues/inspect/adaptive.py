"""What an operator sees of a concurrency limit that follows the time to the first output (adaptive.lua). Pure."""

import msgspec


class AdaptedLimit(msgspec.Struct, frozen=True, rename="camel"):
    """The limit of one model now, its bounds, and its target."""

    limit: int
    min: int
    max: int
    target_ms: int
    """Time to the first output."""
    decreases: int
    """Since the limit is adapted."""
