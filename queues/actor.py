"""Who does something to a gateway, as the audit record names them. Pure."""

from typing import NamedTuple


class Actor(NamedTuple):
    """Who, and from where."""

    name: str
    """The id of a key."""
    address: str
    """Of the client that connected; '' where there is none, as on a Unix socket."""
