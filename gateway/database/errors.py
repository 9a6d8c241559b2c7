"""What can go wrong with the SQL database."""


class DatabaseError(Exception):
    """Something with the database; the sentence is for the operator."""


class DatabaseUnavailable(DatabaseError):
    """It does not answer, or not in time: whether what was asked for is done is not known."""


class DatabaseSlow(DatabaseUnavailable):
    """What was asked for takes longer than it may; it is stopped, and others are answered."""


class DatabaseRefused(DatabaseError):
    """It answers, and cannot be used as it is: the gateway does not start."""
