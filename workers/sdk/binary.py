"""Bytes that a handler yields, as the text in which they travel. Pure."""

import base64
from collections.abc import Iterator

MAX_PIECE = 36 * 1024
"""Bytes in one delta, which is then 48 KiB of text: an event of 64 KiB would be brought to other replicas in two steps."""


class Base64Pieces:
    """Encodes pieces so that their texts together are the base64 of all bytes: each but the last has whole groups of three."""

    def __init__(self) -> None:
        self._left = b""

    def add(self, data: bytes) -> Iterator[str]:
        """The texts that these bytes bring, often one."""
        data = self._left + data
        whole = len(data) - len(data) % 3
        self._left = data[whole:]
        for at in range(0, whole, MAX_PIECE):
            yield base64.b64encode(data[at : min(at + MAX_PIECE, whole)]).decode()

    def rest(self) -> str:
        """Return the text of the remaining bytes, or ''."""
        data, self._left = self._left, b""
        return base64.b64encode(data).decode()
