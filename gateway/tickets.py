"""Stream tickets: signed tokens that let their holder read one task's events until a given time.

They travel in the query string of `streamUrl`, because a browser's EventSource cannot send a header. A ticket
needs no look-up: any replica with the same secret verifies it. It cannot be revoked before it expires; a new
secret revokes all.

    base64url( expiry, ms (6 bytes) | first 18 bytes of HMAC-SHA256(secret, purpose | expiry | task id) )
"""

import base64
import binascii
import hashlib
import hmac

MIN_SECRET_BYTES = 16
TICKET_CHARS = 32

_PURPOSE = b"fairlane stream ticket 1\0"
_EXPIRY_BYTES = 6
_MAC_BYTES = 18


class Tickets:
    """Issues and verifies stream tickets with one secret. Safe to share between tasks and threads."""

    def __init__(self, secret: bytes) -> None:
        """Raises ValueError when the secret is shorter than 16 bytes."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret for stream tickets needs at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret

    def issue(self, task_id: str, expires_at_ms: int) -> str:
        """A ticket for reading `task_id` before `expires_at_ms` (ms since 1970): 32 URL-safe characters."""
        expiry = expires_at_ms.to_bytes(_EXPIRY_BYTES, "big")
        return base64.urlsafe_b64encode(expiry + self._mac(task_id, expiry)).decode("ascii")

    def verify(self, token: str, task_id: str, now_ms: int) -> bool:
        """Whether `token` was issued for `task_id` and has not expired. Never raises, whatever the text."""
        if len(token) != TICKET_CHARS:
            return False
        try:
            raw = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            return False
        if len(raw) != _EXPIRY_BYTES + _MAC_BYTES:
            return False
        expiry, mac = raw[:_EXPIRY_BYTES], raw[_EXPIRY_BYTES:]
        genuine = hmac.compare_digest(mac, self._mac(task_id, expiry))
        return genuine and now_ms < int.from_bytes(expiry, "big")

    def _mac(self, task_id: str, expiry: bytes) -> bytes:
        message = _PURPOSE + expiry + task_id.encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, message, hashlib.sha256)[:_MAC_BYTES]
