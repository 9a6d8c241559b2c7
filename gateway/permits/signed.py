"""Permits, and receipts for used ones. Both are signed, so a forged one is detected locally. Pure.

    task id . base64url( head | the first bytes of HMAC-SHA256(secret, purpose | head | task | endpoint) )

A permit is for one call to one endpoint (its head is empty); the store knows whether it may be used. A receipt proves that its
holder admitted the call (its head is the epoch of the grant, 8 bytes), and is good only for reporting the call's end. Clients
never see it, so they cannot report an end early.
"""

import base64
import hmac
import re
from collections.abc import Callable
from typing import NamedTuple

_PERMIT = b"fairlane permit 2\0"
_RECEIPT = b"fairlane permit receipt 1\0"
_EPOCH_BYTES, _SIGNED_BYTES = 8, 24
_TEXT = re.compile(r"([0-9a-f-]{36})\.([A-Za-z0-9_-]{32})")


class Receipt(NamedTuple):
    """The grant whose permit was used."""

    task_id: str
    epoch: int


class Signer:
    """Signs and reads, with the secret that all replicas share. `mac`: `Tickets.mac`."""

    def __init__(self, mac: Callable[[bytes, bytes, int], bytes]) -> None:
        self._mac = mac

    def permit(self, task_id: str, endpoint: str) -> str:
        """Return the permit of a task."""
        return self._sign(_PERMIT, b"", task_id, endpoint)

    def read_permit(self, text: str, endpoint: str) -> str | None:
        """Return the task of a permit; None if it is forged, or for another endpoint."""
        match = _TEXT.fullmatch(text)
        genuine = match is not None and hmac.compare_digest(text, self.permit(match[1], endpoint))
        return match[1] if match is not None and genuine else None

    def receipt(self, task_id: str, epoch: int) -> str:
        """Return the receipt for the used permit of a grant."""
        return self._sign(_RECEIPT, epoch.to_bytes(_EPOCH_BYTES, "big"), task_id)

    def read_receipt(self, text: str) -> Receipt | None:
        """Return the grant of a receipt; None if it is forged."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        epoch = int.from_bytes(base64.urlsafe_b64decode(match[2])[:_EPOCH_BYTES], "big")
        return Receipt(match[1], epoch) if hmac.compare_digest(text, self.receipt(match[1], epoch)) else None

    def _sign(self, purpose: bytes, head: bytes, task_id: str, endpoint: str = "") -> str:
        mac = self._mac(purpose, head + task_id.encode() + endpoint.encode(), _SIGNED_BYTES - len(head))
        return f"{task_id}.{base64.urlsafe_b64encode(head + mac).decode()}"
