"""Errors of the SQL database."""


class DatabaseError(Exception):
    """Any of them; the sentence is for the operator."""


class DatabaseUnavailable(DatabaseError):
    """It does not answer, or not in time, or cannot write. `unchanged`: it is known that the asyncio task that got this error has
    changed nothing; otherwise it is unknown whether a write was made."""

    unchanged = False


class DatabaseSlow(DatabaseUnavailable):
    """A query took too long, and was stopped."""


class DatabaseRefused(DatabaseError):
    """It answers, but cannot be used: the gateway does not start."""
