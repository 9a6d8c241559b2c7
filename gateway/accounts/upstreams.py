"""The tokens of the workers that a gateway starts: created at its start, known to it and to these workers alone."""

import hmac
import secrets
from dataclasses import dataclass, field

OWN_WORKER = "(upstream)"
"""The id of these tokens in lists of workers; no configured token can have it."""


HTTP_WORKER = "(http)"
"""The worker of endpoints among those; no upstream can have this name."""


@dataclass(frozen=True, slots=True)
class UpstreamTokens:
    """The token of each upstream, by name, and of the worker of endpoints. All derive from a secret that is never stored, so they
    end with the gateway."""

    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def token(self, upstream: str) -> str:
        """Return the token of the worker of this upstream, or of HTTP_WORKER."""
        return "flw_upstream_" + hmac.digest(self._secret, upstream.encode(), "sha256").hex()
