"""Where the gateway listens for workers."""

from urllib.parse import urlsplit, urlunsplit

from fairlane.workers.sdk.errors import BadAddressError

DEFAULT_GATEWAY = "http://127.0.0.1:8080"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def websocket_url(gateway: str) -> str:
    """The WebSocket URL for what a user writes: `ws://host:port/ws`, or `http(s)://host:port` (adds `/ws`).

    Raise `BadAddressError` with a sentence that shows the right form.
    """
    try:
        parts = urlsplit(gateway.strip())
        parts.port  # noqa: B018 (raises when it is not a number)
    except ValueError as error:
        raise BadAddressError(f"{gateway!r} is not a gateway address: {error}.") from None
    if parts.username or parts.password:
        raise BadAddressError(
            "A gateway address must not contain a user or password. Put the token into FAIRLANE_WORKER_TOKEN."
        )
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise BadAddressError(f"{gateway!r} is not a gateway address; write for example {DEFAULT_GATEWAY}.")
    path = parts.path.rstrip("/")
    if not path or (parts.scheme.startswith("http") and not path.endswith("/ws")):
        path += "/ws"
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, parts.query, ""))


def without_query(url: str) -> str:
    """Return a URL as the log shows it: the query can hold a secret."""
    return url.partition("?")[0]
