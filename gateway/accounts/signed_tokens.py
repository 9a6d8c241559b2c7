"""Tokens that a back end signs with its key for its users' pages: JSON Web Tokens (HS256). Pure.

A token is signed with a key that is derived from the secret: HMAC-SHA256(secret, "fairlane sign"). The gateway stores it for
keys with `signing`, next to the hash by which it finds a secret; the hash cannot sign. `kid` in the header is the key's id.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated

import jwt
import msgspec
from msgspec import Meta

from fairlane.gateway.errors import InvalidToken, Unauthorized
from fairlane.gateway.settings.parts import Mode
from fairlane.queues.keys import is_reserved

MAX_TOKEN_CHARS = 4096
LEEWAY_S = 60
"""The tolerated difference between the clocks of a back end and of a gateway."""
MAX_TTL_S = 86_400
"""From now to the expiry of a token."""
KEPT_MS = 300_000
"""How long the uses of a token are remembered after its expiry: the clocks of gateways differ, too."""

_PURPOSE = b"fairlane sign"
_JWS = jwt.PyJWS(algorithms=["HS256"])


def signing_key(secret: str) -> str:
    """Return the key that a secret signs tokens with, in hex. It reveals neither the secret nor its hash, nor the hash it."""
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), _PURPOSE, hashlib.sha256).hex()


Seconds = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[!-~]+\Z")]
ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
Output = Annotated[int, Meta(ge=1, le=10_000_000)]


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The claims of a token."""

    exp: Seconds
    nbf: Seconds | None = None
    iat: Seconds | None = None
    jti: Name | None = None
    user: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    tier: str | None = None
    priority: Annotated[int, Meta(ge=0, le=5)] | None = None
    mode: Mode | None = None
    models: Annotated[list[ModelName], Meta(min_length=1, max_length=100)] | None = None
    max_tokens: Output | None = None
    max_completion_tokens: Output | None = None
    timeout: Annotated[int, Meta(ge=1, le=31_622_400_000)] | None = None
    """Ms."""
    uses: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None

    @property
    def most_output(self) -> tuple[str, int] | None:
        """The member of a body that bounds its output, and its maximum."""
        if self.max_tokens is not None:
            return "max_tokens", self.max_tokens
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return None

    def counted(self, key_id: str, now_s: float) -> tuple[int, int, str] | None:
        """Return the counter that a task of this token uses, as the scheduler takes it; None: uses are unlimited."""
        if self.uses is None:
            return None
        left_ms = int(max(self.exp + LEEWAY_S - now_s, 0) * 1000)
        return self.uses, left_ms + KEPT_MS, f"{key_id}/{self.jti}"

    @property
    def only_model(self) -> str | None:
        """The default model: the only one of the token."""
        return self.models[0] if self.models and len(self.models) == 1 else None

    def allows(self, model: str) -> bool:
        """Return whether the token allows a model. An endpoint must be named: its calls have headers of the operator."""
        return not is_reserved(model) if self.models is None else model in self.models


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose signature was verified."""

    claims: Claims
    name: str
    """Names the token's user if no claim does. It cannot be computed without the token."""


def looks_like_token(secret: str) -> bool:
    """Return whether a presented secret may be a token."""
    return secret.count(".") == 2


def read_key_id(text: str) -> str:
    """Return the id of the key that a token says it was signed with; nothing is verified yet. Raise Unauthorized."""
    if len(text) > MAX_TOKEN_CHARS:
        raise Unauthorized(f"The token is longer than {MAX_TOKEN_CHARS} characters")
    try:
        header = _JWS.get_unverified_header(text)
    except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
        raise Unauthorized(f"The token is not a JSON Web Token: {error}") from None
    if header.get("alg") != "HS256":
        raise Unauthorized("The token must be signed with HS256 (its header's alg)")
    key_id = header.get("kid")
    if not isinstance(key_id, str) or not key_id:
        raise Unauthorized("The token's header must name the key that signed it: kid, the key's id")
    return key_id


def verify(text: str, key: bytes, now_s: float) -> Token | None:
    """Return the token, or None if `key` has not signed it. Raise Unauthorized, and InvalidToken for invalid claims."""
    try:
        decoded = _JWS.decode_complete(text, key, algorithms=["HS256"])
    except jwt.InvalidSignatureError:
        return None
    except jwt.InvalidTokenError as error:
        raise Unauthorized(f"The token is not valid: {error}") from None
    name = f"token:{hashlib.sha256(decoded['signature']).hexdigest()[:24]}"
    return Token(_claims(decoded["payload"], now_s), name)


def _claims(payload: bytes, now_s: float) -> Claims:
    try:
        claims = msgspec.json.decode(payload, type=Claims)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidToken(f"The token's claims are wrong: {error}"[:300]) from None
    _check_times(claims, now_s)
    if claims.uses is not None and claims.jti is None:
        raise InvalidToken("The token needs an id (jti), because its uses are counted")
    if claims.user is None and claims.jti is None:
        raise InvalidToken("The token needs a user or an id (jti)")
    if claims.max_tokens is not None and claims.max_completion_tokens is not None:
        raise InvalidToken(
            "The token has max_tokens and max_completion_tokens. Set the one that your models' servers support"
        )
    if any(name == "*" or not name.isprintable() for name in claims.models or ()):
        raise InvalidToken(
            "The token's models must be names. Leave models out to permit all models of its key"
        )
    return claims


def _check_times(claims: Claims, now_s: float) -> None:
    if claims.exp <= now_s - LEEWAY_S:
        raise InvalidToken("The token has expired. Get another one", "TOKEN_EXPIRED")
    if claims.exp > now_s + MAX_TTL_S + LEEWAY_S:
        raise InvalidToken("The token lasts longer than a day. exp can be at most 86400 seconds ahead")
    if max(claims.nbf or 0, claims.iat or 0) > now_s + LEEWAY_S:
        raise InvalidToken(
            "The token is not valid yet (nbf, iat). Compare the clocks of the signer and the gateway"
        )
