"""Whose something is. Pure."""

from typing import NamedTuple


class Owner(NamedTuple):
    """Whose a batch, a file, a response or a webhook is: as of a task."""

    key_id: str
    """'' in an open gateway."""
    user: str
