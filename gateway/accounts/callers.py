"""Who is asking: callers by their keys, workers by their tokens.

Pure and immutable. When the configuration is read again, a new `Callers` replaces the old one, and the calls of
keys that it does not know end (`OpenCalls`).
"""

import contextlib
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import msgspec

from fairlane.gateway.accounts.openmode import FORWARDING_HEADERS, host_name, open_mode_refusal
from fairlane.gateway.errors import ApiError, model_not_found
from fairlane.gateway.settings import CallerKey, Scope, Settings, WorkerKey, is_loopback
from fairlane.streaming.jsontext import kind_of

Key = TypeVar("Key", CallerKey, WorkerKey)

Headers = Callable[[bytes], str | None]
"""Looks a request's header up by its name in lower case."""

ANONYMOUS = "anonymous"
OPEN_TIER = "free"
OPEN_WORKER = "(open)"
"""Stands for the token of workers that need none; no configured token can be named so."""

BODY_USER = "body.user"
"""Says of a key that OpenAI's bodies name its users."""
MAX_USER_CHARS = 128
"""Of a name that a trusted caller gives."""
_MAX_SECRET_CHARS = 512
SECRET_ID_CHARS = 16


class Unauthorized(ApiError):
    """No key, or one that is not valid. The same answer for both, so that it tells nothing."""

    def __init__(self) -> None:
        super().__init__(401, "UNAUTHORIZED", "A valid key is needed: Authorization: Bearer <key>")


class BadTier(ApiError):
    """The tier that a trusted caller named is none of the configured ones."""

    def __init__(self, tiers: Sequence[str]) -> None:
        message = f"X-Fairlane-Tier must be one of {', '.join(tiers)}"
        super().__init__(400, "INVALID_REQUEST", message, param="X-Fairlane-Tier")


class BadUser(ApiError):
    """The user name that a trusted caller gave cannot be used."""

    def __init__(self, where: str) -> None:
        message = f"{where} must be 1 to {MAX_USER_CHARS} printable characters"
        super().__init__(400, "INVALID_REQUEST", message, param=where)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asked. Fairness is between users; what a caller may see depends on user and key."""

    user: str
    """The user in every list, limit and measure: `<key id>`, or `<key id>/<name>` for a name that a delegating key gives.
    No key's id holds a slash, so no name that somebody gives is ever another key's user. In an open gateway: as given."""
    tier: str
    key_id: str
    """Empty when the gateway is open."""
    admin: bool = False
    delegating: bool = False
    weight: float = 1.0
    open: bool = False
    models: tuple[str, ...] = ("*",)
    secret_id: str = ""
    """Tells one secret of a key from the next; part of its hash."""
    scopes: frozenset[str] = frozenset({"call"})
    user_from: str = ""
    """Where else than in our header a delegating key's requests name their user, as the settings say."""

    def holds(self, scope: Scope) -> bool:
        """Whether the key is for such calls; an admin's is for all."""
        return self.admin or scope in self.scopes

    def named(self, fields: Mapping[str, bytes]) -> "Caller":
        """The caller of a body with these members: its user, where the key says so. Raises ApiError(400)."""
        raw = fields.get("user")
        if self.user_from != BODY_USER or self.user != self.key_id or raw is None or not kind_of(raw):
            return self
        try:
            name = msgspec.json.decode(raw, type=str)
        except msgspec.MsgspecError:
            raise BadUser("user") from None
        return replace(self, user=f"{self.key_id}/{_checked(name, 'user')}")

    def may_use(self, model: str) -> bool:
        """Whether the key covers a model."""
        return "*" in self.models or model in self.models

    def owns(self, key_id: str, user: str) -> bool:
        """Whether a task that `user` submitted with the key `key_id` is this caller's own."""
        return key_id == self.key_id and user == self.user

    def may_see(self, key_id: str, user: str) -> bool:
        """Whether this caller may read and cancel such a task: their own, and with an admin key any.

        In an open gateway everybody may call what is for admins, and still users do not see each other's tasks by mistake.
        """
        return self.sees_all or self.owns(key_id, user)

    @property
    def sees_all(self) -> bool:
        """Whether there is no task that this caller may not see."""
        return self.admin and not self.open


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Whose token a worker presented, and the models that it may offer (`*`: any)."""

    id: str
    models: tuple[str, ...]
    sha256: str = ""
    """Of its secret; empty where none is asked for."""


class RequestHead(Protocol):
    """A request before its body is read."""

    @property
    def scope(self) -> Mapping[str, Any]: ...

    def header(self, name: bytes) -> str | None: ...


class Callers:
    """Knows the keys of one configuration. Without keys it is open on loopback, and closed anywhere else.

    Workers need no token only while callers need no key either: a worker reads what callers send.
    """

    def __init__(self, settings: Settings) -> None:
        self.open = not settings.keys and settings.loopback
        self.workers_open = self.open and not settings.workers
        self._keys = {key.sha256: key for key in settings.keys}
        self._callers = {key.sha256: _caller(key) for key in settings.keys}
        self._secrets = {(key.id, key.sha256[:SECRET_ID_CHARS]) for key in settings.keys}
        self._workers = {key.sha256: key for key in settings.workers}
        self._tiers = settings.tiers
        open_tier = OPEN_TIER if OPEN_TIER in self._tiers else min(self._tiers)
        self._anybody = Caller(ANONYMOUS, open_tier, key_id="", admin=True, delegating=True, open=True)
        self._allowed_hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._allowed_origins = frozenset(settings.cors_origins)

    def authenticate(self, header: Headers) -> Caller:
        """The caller of a request. Raises Unauthorized, and BadUser or BadTier for what a trusted caller
        names.

        1 An open gateway believes what it is told and ignores keys. 2 A delegating key is believed too; its
        users are its own, and it sees only what it has submitted itself. 3 Any other key is its own user,
        whatever the request says.
        """
        if self.open:  # 1
            caller, name = self._anybody, _user(header, "")
        else:
            key = _find(self._keys, header(b"authorization"))
            if key is None:
                raise Unauthorized
            caller = self._callers[key.sha256]
            if not caller.delegating:  # 3
                return caller
            name = _user(header, caller.user_from)  # 2
            name = f"{caller.key_id}/{name}" if name else None
        tier = self._tier(header)
        if not name and not tier:
            return caller
        return replace(caller, user=name or caller.user, tier=tier or caller.tier)

    def knows(self, caller: Caller) -> bool:
        """Whether the key that a caller showed is still one, with the same secret."""
        if self.open or not caller.key_id:
            return self.open and caller.open
        return (caller.key_id, caller.secret_id) in self._secrets

    def authenticate_worker(self, authorization: str | None) -> WorkerIdentity | None:
        """Whose worker it is, or None when it may not connect. An open gateway takes any."""
        if self.workers_open:
            return WorkerIdentity(OPEN_WORKER, ("*",))
        key = _find(self._workers, authorization)
        return _worker(key) if key else None

    def renewed(self, sha256: str) -> WorkerIdentity | None:
        """What these keys say of a worker that was let in with this secret; None when it is not valid any more.

        Without a secret (empty): whether workers still need none.
        """
        if self.workers_open and not sha256:
            return WorkerIdentity(OPEN_WORKER, ("*",))
        key = self._workers.get(sha256)
        return _worker(key) if key else None

    def refuse_request(self, request: RequestHead) -> str | None:
        """Why a request is not even asked for a key (403), or None; see `open_mode_refusal`."""
        return self._refuse(request.header, request.scope, guarded=self.open)

    def refuse_worker(self, scope: Mapping[str, Any]) -> str | None:
        """The same for the handshake of a worker's WebSocket, from its ASGI scope."""
        headers = dict(scope["headers"])

        def header(name: bytes) -> str | None:
            value = headers.get(name)
            return None if value is None else value.decode("latin-1")

        return self._refuse(header, scope, guarded=self.workers_open, websocket=True)

    def _refuse(
        self, header: Headers, scope: Mapping[str, Any], *, guarded: bool, websocket: bool = False
    ) -> str | None:
        host = header(b"host")
        if guarded:
            return open_mode_refusal(
                host,
                header(b"origin"),
                any(header(name) is not None for name in FORWARDING_HEADERS),
                header(b"content-type"),
                "GET" if websocket else str(scope.get("method", "")),
                old_http=scope.get("http_version") == "1.0",
                websocket=websocket,
                allowed_hosts=self._allowed_hosts,
                allowed_origins=self._allowed_origins,
            )
        name = host_name(host)
        if self._allowed_hosts and (name is None or not (name in self._allowed_hosts or is_loopback(name))):
            return "This gateway does not answer to this host name; see allowed_hosts"
        return None

    def _tier(self, header: Headers) -> str | None:
        tier = header(b"x-fairlane-tier")
        if tier is not None and tier not in self._tiers:
            raise BadTier(sorted(self._tiers))
        return tier


def check_model(caller: Caller, model: str) -> None:
    """Raise ApiError when a caller's key does not cover a model; it looks like a model that does not exist."""
    if not caller.may_use(model):
        raise model_not_found(model)


def _caller(key: CallerKey) -> Caller:
    """Whom a key stands for, where it names no user of its own."""
    return Caller(
        key.id,
        key.tier,
        key.id,
        key.admin or "admin" in key.scopes,
        key.delegating,
        key.weight,
        models=tuple(key.models),
        secret_id=key.sha256[:SECRET_ID_CHARS],
        scopes=frozenset(key.scopes),
        user_from=key.user_from,
    )


def _worker(key: WorkerKey) -> WorkerIdentity:
    return WorkerIdentity(key.id, tuple(key.models), key.sha256)


def digest(secret: str) -> str:
    """What is stored of a secret: its SHA-256 in hex. Enough, because secrets are random and long."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _find(keys: Mapping[str, Key], authorization: str | None) -> Key | None:
    """The key whose secret is presented. Only a look-up of its hash can be timed, which tells nothing."""
    scheme, _, secret = (authorization or "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not 0 < len(secret) <= _MAX_SECRET_CHARS:
        return None
    presented = digest(secret)
    key = keys.get(presented)
    return key if key is not None and hmac.compare_digest(key.sha256, presented) else None


def _user(header: Headers, other: str) -> str | None:
    """The user that the request's headers name, or None; `other`: a header beside ours. Raises BadUser."""
    for where in ("X-Fairlane-User", other):
        name = None if where in ("", BODY_USER) else header(where.lower().encode())
        if name is not None:
            with contextlib.suppress(
                UnicodeError
            ):  # headers are read as Latin-1; other scripts come as UTF-8
                name = name.encode("latin-1").decode("utf-8")
            return _checked(name, where)
    return None


def _checked(name: str, where: str) -> str:
    name = name.strip()
    if not 0 < len(name) <= MAX_USER_CHARS or not name.isprintable():
        raise BadUser(where)
    return name
