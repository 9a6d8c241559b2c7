"""Random bytes of the system, fetched many at a time: a name for each request and task shall not cost a system call."""

import os

FETCHED = 4096


class RandomBytes:
    """The system's randomness in small pieces. Each byte is given out once."""

    def __init__(self) -> None:
        self._bytes = b""
        self._at = 0
        os.register_at_fork(after_in_child=self.forget)

    def take(self, count: int) -> bytes:
        """So many bytes, at most FETCHED."""
        end = self._at + count
        if end > len(self._bytes):
            self._bytes, end = os.urandom(FETCHED), count
        piece = self._bytes[end - count : end]
        self._at = end
        return piece

    def forget(self) -> None:
        """Fetch anew: a forked process must not give out what its parent does."""
        self._bytes, self._at = b"", 0


random_bytes = RandomBytes().take
