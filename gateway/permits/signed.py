"""Permits, and receipts for used ones. Both are signed, so a forged one is detected locally. Pure.

    task id . base64url( epoch of the grant (8 bytes) | first 16 bytes of HMAC-SHA256(secret, purpose | epoch | task | endpoint) )

A permit is for one attempt of one task of one endpoint; the store knows whether it may still be used. A receipt proves that its
holder admitted the call, and is good only for reporting the call's end. Clients never see it, so they cannot report an end early.
"""

import base64
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple

PERMIT = b"fairlane permit 1\0"
RECEIPT = b"fairlane permit receipt 1\0"
"""Purposes of a signature."""
_EPOCH_BYTES, _MAC_BYTES = 8, 16
_TEXT = re.compile(r"([0-9a-f-]{36})\.([A-Za-z0-9_-]{32})")


class Signed(NamedTuple):
    """The grant that a valid permit or receipt names."""

    task_id: str
    epoch: int


class Signer:
    """Signs and reads, with the secret that all replicas share. `mac`: `Tickets.mac`."""

    def __init__(self, mac: Callable[[bytes, bytes, int], bytes]) -> None:
        self._mac = mac

    def sign(self, purpose: bytes, task_id: str, epoch: int, endpoint: str = "") -> str:
        """Return the permit of a grant, or the receipt for its used permit, which names no endpoint."""
        head = epoch.to_bytes(_EPOCH_BYTES, "big")
        signed = head + self._mac(purpose, head + task_id.encode() + endpoint.encode(), _MAC_BYTES)
        return f"{task_id}.{base64.urlsafe_b64encode(signed).decode()}"

    def read(self, purpose: bytes, text: str, endpoint: str = "") -> Signed | None:
        """Return the grant of a permit or a receipt; None if it is forged, or for another endpoint."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        task_id, head = match[1], base64.urlsafe_b64decode(match[2])[:_EPOCH_BYTES]
        epoch = int.from_bytes(head, "big")
        genuine = hmac.compare_digest(text, self.sign(purpose, task_id, epoch, endpoint))
        return Signed(task_id, epoch) if genuine else None
