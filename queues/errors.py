"""What can go wrong with the store, and what it means for the work in hand."""


class StoreError(Exception):
    """Redis did not do what was asked. `sent`: it may have done it all the same, which is unknown until it answers again."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class StoreUnavailable(StoreError):
    """No connection, no answer in time, or Redis is loading, full or read-only. Try again later."""


class StoreRefused(StoreError):
    """The server cannot be used as it is configured. The message says what to change; trying again is pointless."""

    def __init__(self, message: str) -> None:
        super().__init__(message, sent=False)
