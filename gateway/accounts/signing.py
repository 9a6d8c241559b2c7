"""What a back end signs with its key: tokens for its users' pages, and whole requests. Pure.

Both are signed with HMAC-SHA256 by a key of their own, which is derived of the secret: HMAC-SHA256(secret, "fairlane sign"). A
gateway holds it for keys that sign, beside the hash by which it finds a secret; the hash cannot sign.

A token is a JSON Web Token: algorithm HS256 and no other, `kid` the id of the key. What is signed of a request is `signed_text`;
no token is such a text, as it has no line breaks.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from fairlane.gateway.errors import ApiError
from fairlane.gateway.settings import suggestion
from fairlane.gateway.settings.parts import Mode

MAX_TOKEN_CHARS = 4096
LEEWAY_S = 60
"""By how much the clocks of a back end and of a gateway may differ."""
LONGEST_S = 86_400
"""From now to the end of a token."""
KEPT_MS = 300_000
"""How long the uses of a token are remembered behind its end: the clocks of gateways differ, too."""
SCHEME = "fairlane-hmac-sha256"
REQUEST_S = 300
"""How old, or how far ahead, the time of a signed request may be."""
NONCE_MS = 900_000
"""How long a request's nonce is remembered: for as long as its time is good, and more, as the clocks of replicas differ."""

_PURPOSE = b"fairlane sign"
_ALGORITHM = "HS256"
_PART = re.compile(r"[A-Za-z0-9_-]+")
_FIELDS = ("keyid", "ts", "nonce", "body", "signature")
_NONCE = re.compile(r"[A-Za-z0-9_-]{16,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def signing_key(secret: str) -> str:
    """What a secret signs with, in hex. Neither the secret nor its hash can be made of it, nor it of the hash."""
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), _PURPOSE, hashlib.sha256).hex()


class BadSignature(ApiError):
    """A token or a signature that is not valid; the sentence says why."""

    def __init__(self, message: str, code: str = "UNAUTHORIZED") -> None:
        super().__init__(401, code, message)


class TokenForbids(ApiError):
    """A request asks for something else than its token is for."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(403, "FORBIDDEN", message, param=param)


# ---- tokens ----------

Seconds = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[!-~]+\Z")]
ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
Output = Annotated[int, Meta(ge=1, le=10_000_000)]


class Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a token says. None: nothing of that."""

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
        """The member of a body that bounds its output, and by how much at most."""
        if self.max_tokens is not None:
            return "max_tokens", self.max_tokens
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return None

    def counted(self, key_id: str, now_s: float) -> str:
        """Of what a task is a use, as the scheduler takes it; '' where uses are not limited."""
        if self.uses is None:
            return ""
        left_ms = int(max(self.exp + LEEWAY_S - now_s, 0) * 1000)
        return f"{self.uses} {left_ms + KEPT_MS} {key_id}/{self.jti}"

    @property
    def only_model(self) -> str | None:
        """The model that a request means which names none."""
        return self.models[0] if self.models and len(self.models) == 1 else None

    def allows(self, model: str) -> bool:
        """Whether it is for a model."""
        return self.models is None or model in self.models


CLAIMS = Claims.__struct_fields__


@dataclass(frozen=True, slots=True)
class Token:
    """A token as it came: nothing of it is known to be true but for `key_id`, which says by whose key to look."""

    key_id: str
    _signed: bytes
    _payload: bytes
    _signature: bytes

    def is_signed_by(self, key: bytes) -> bool:
        """Whether it was signed with this key."""
        return hmac.compare_digest(self._signature, hmac.digest(key, self._signed, hashlib.sha256))

    @property
    def name(self) -> str:
        """Stands for the token where it names no user. Nobody who has not seen it can know this."""
        return f"token:{hashlib.sha256(self._signature).hexdigest()[:24]}"

    def claims(self, now_s: float) -> Claims:
        """What it says, once its signature is known to be right. Raises BadSignature."""
        said = _read_json(self._payload, "claims")
        try:
            claims = msgspec.convert(said, Claims)
        except msgspec.ValidationError as error:
            raise BadSignature(_explained(error, said)) from None
        except UnicodeError:
            raise BadSignature("The token's claims are no text") from None
        _check_times(claims, now_s)
        if claims.uses is not None and claims.jti is None:
            raise BadSignature("The token needs a name of its own (jti), as its uses are counted")
        if claims.user is None and claims.jti is None:
            raise BadSignature("The token must name its user (user), or itself (jti)")
        if claims.max_tokens is not None and claims.max_completion_tokens is not None:
            raise BadSignature(
                "The token names max_tokens and max_completion_tokens: give the one that your models' servers know"
            )
        if any(name == "*" or not name.isprintable() for name in claims.models or ()):
            raise BadSignature("The token's models must be names; without models it is for all of its key")
        return claims


def looks_like_token(secret: str) -> bool:
    """Whether what was presented as a secret may be a token."""
    return secret.count(".") == 2


def read_token(text: str) -> Token:
    """Split a token, and see that it is one of ours. Raises BadSignature."""
    if len(text) > MAX_TOKEN_CHARS:
        raise BadSignature(f"The token is longer than {MAX_TOKEN_CHARS} characters")
    signed, _, mac = text.rpartition(".")
    head, _, payload = signed.partition(".")
    header = _read_json(_decoded(head, "header"), "header")
    if header.get("alg") != _ALGORITHM:
        raise BadSignature(f"The token must be signed with {_ALGORITHM} (its header's alg)")
    if strange := [name for name in header if name not in ("alg", "typ", "kid")]:
        raise BadSignature(f"The token's header may hold alg, typ and kid, and no {str(strange[0])[:40]!r}")
    key_id = header.get("kid")
    if not isinstance(key_id, str) or not key_id:
        raise BadSignature("The token's header must name the key that signed it: kid, the key's id")
    return Token(key_id, signed.encode(), _decoded(payload, "claims"), _decoded(mac, "signature"))


def _decoded(part: str, what: str) -> bytes:
    """A part of a token. Raises BadSignature."""
    if _PART.fullmatch(part):
        try:
            return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        except binascii.Error:
            pass
    raise BadSignature(f"The token's {what} is not base64url, as of a JSON Web Token")


def _read_json(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object that says nothing twice. Raises BadSignature."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadSignature(f"The token's {what} must be a JSON object, each of its members once")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("twice")
    return found


def _no_number(text: str) -> None:
    raise ValueError(text)


def _explained(error: msgspec.ValidationError, said: dict[str, Any]) -> str:
    """What is wrong with claims."""
    if "exp" not in said:
        return "The token must say when it ends: exp, seconds since 1970"
    for name in said:
        if name not in CLAIMS:
            return f"The token has a claim {name[:40]!r}, which is none{suggestion(name[:40], CLAIMS)}: {', '.join(CLAIMS)}"
    what, _, where = str(error).partition(" - at `$.")
    return f"The token's claim {where.rstrip('`')[:40]} is wrong: {what[:1].lower()}{what[1:200]}"


def _check_times(claims: Claims, now_s: float) -> None:
    if claims.exp <= now_s - LEEWAY_S:
        raise BadSignature("The token has expired: ask for another one", "TOKEN_EXPIRED")
    if claims.exp > now_s + LONGEST_S + LEEWAY_S:
        raise BadSignature("The token lasts longer than a day: exp may be 86400 seconds ahead, at most")
    if max(claims.nbf or 0, claims.iat or 0) > now_s + LEEWAY_S:
        raise BadSignature(
            "The token is not valid yet (nbf, iat): compare the clocks of its maker and of the gateway"
        )


# ---- whole requests ----------


@dataclass(frozen=True, slots=True)
class Signature:
    """What the header of a signed request says; true of it is what `is_of` says."""

    key_id: str
    time_s: int
    nonce: str
    body: str
    """SHA-256 of the body, in hex."""
    _mac: str

    def check_time(self, now_s: float) -> None:
        """Raises BadSignature for a request that is too old, or of a time to come."""
        if abs(now_s - self.time_s) > REQUEST_S:
            raise BadSignature(
                f"The request's time (ts) differs from the gateway's by more than {REQUEST_S} seconds: sign each try anew, "
                "and compare the clocks"
            )

    def is_of(self, key: bytes, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether a request was signed with this key."""
        text = signed_text(method, target, self.time_s, self.nonce, self.body, headers)
        return hmac.compare_digest(self._mac, hmac.digest(key, text, hashlib.sha256).hex())


def is_signature(authorization: str | None) -> bool:
    """Whether a request says that it is signed."""
    return authorization is not None and authorization[: len(SCHEME) + 1].lower() == SCHEME + " "


def read_signature(authorization: str) -> Signature:
    """What the header `Authorization` of a signed request says. Raises BadSignature."""
    fields: dict[str, str] = {}
    for part in authorization[len(SCHEME) + 1 :].split(","):
        name, _, value = part.strip().partition("=")
        if name not in _FIELDS or name in fields:
            raise _unreadable()
        fields[name] = value
    if len(fields) != len(_FIELDS):
        raise _unreadable()
    time_s = fields["ts"]
    if not (time_s.isascii() and time_s.isdigit() and len(time_s) <= 12):
        raise BadSignature("ts must be the time of the request, in whole seconds since 1970")
    if not _NONCE.fullmatch(fields["nonce"]):
        raise BadSignature(
            "nonce must be 16 to 64 letters, digits, dashes or underscores, other ones in each request"
        )
    for name in ("body", "signature"):
        if not _DIGEST.fullmatch(fields[name]):
            raise BadSignature(f"{name} must be 64 hex digits in small letters")
    return Signature(fields["keyid"], int(time_s), fields["nonce"], fields["body"], fields["signature"])


def signed_text(
    method: str, target: bytes, time_s: int, nonce: str, body: str, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """What is signed of a request: a line each for the method, the path with its query as they were sent, the time, the nonce,
    the body's SHA-256, and the headers, by name."""
    lines = [method.encode(), target, b"%d" % time_s, nonce.encode(), body.encode()]
    lines += [b"%b:%b" % header for header in sorted(headers, key=lambda header: header[0])]
    return b"\n".join(lines)


def _unreadable() -> BadSignature:
    fields = ",".join(f"{name}=…" for name in _FIELDS)
    return BadSignature(f"A signed request has the header Authorization: Fairlane-HMAC-SHA256 {fields}")
