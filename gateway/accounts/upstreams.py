"""The tokens of the workers that a gateway starts itself: made at its start, known to it and to these workers alone."""

import hmac
import secrets
from dataclasses import dataclass, field

OWN_WORKER = "(upstream)"
"""Stands for these tokens where workers are listed; no configured token can be named so."""


HTTP_WORKER = "(http)"
"""Stands for the worker of endpoints among those; no upstream can be named so."""


@dataclass(frozen=True, slots=True)
class UpstreamTokens:
    """One for each upstream, by its name, and one for the worker of endpoints. All are made of a secret that is never stored, so
    they end with the gateway."""

    _secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def token(self, upstream: str) -> str:
        """What the worker of this upstream presents, or HTTP_WORKER."""
        return "flw_upstream_" + hmac.digest(self._secret, upstream.encode(), "sha256").hex()
