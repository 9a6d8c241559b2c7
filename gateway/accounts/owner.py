"""The owner of a stored object. Pure."""

from typing import NamedTuple


class Owner(NamedTuple):
    """The key and user of a batch, a file, a response or a webhook, as of a task."""

    key_id: str
    """'' in an open gateway."""
    user: str
