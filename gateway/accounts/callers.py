"""Authenticates callers by their keys and workers by their tokens.

Pure and immutable. When the configuration is read again, or a key in the database changes, a new `Callers` replaces the old one,
and calls of keys that are no longer valid end (`InFlightRequests`).
"""

import contextlib
import hashlib
import operator
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

import msgspec

from fairlane.gateway.accounts.no_auth import FORWARDING_HEADERS, TAKE_FORMS, host_name, no_auth_rejection
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.accounts.signed_tokens import Claims, Token, looks_like_token, read_key_id, verify
from fairlane.gateway.accounts.upstreams import HTTP_WORKER, OWN_WORKER, UpstreamTokens
from fairlane.gateway.errors import ApiError, InvalidToken, TokenForbids, Unauthorized, model_not_found
from fairlane.gateway.prices.quota import Quota
from fairlane.gateway.settings import CallerKey, KeyQuota, Scope, Settings, WorkerKey
from fairlane.queues.keys import ANY_ENDPOINT
from fairlane.queues.limits import pack
from fairlane.streaming.jsontext import kind_of
from fairlane.workers.hosts import is_loopback

Kind = Literal["caller", "worker"]

Headers = Callable[[bytes], str | None]
"""Looks a request's header up by its name in lower case."""

ANONYMOUS = "anonymous"
OPEN_TIER = "free"
OPEN_WORKER = "(open)"
"""The token id of workers that need no token; no configured token can have this id."""

BODY_USER = "body.user"
"""A key's `user_from`: the member `user` of OpenAI's bodies names the user."""
MAX_USER_CHARS = 128
_MAX_SECRET_CHARS = 512
SECRET_ID_CHARS = 16
MAX_KINDS = 100
"""Kinds of plain requests whose rejection is remembered: by host, content type, method, HTTP version and `takes_form`."""
_TOKEN_SCOPES = frozenset({"call"})
"""The scopes that a signed token can have."""


class BadTier(ApiError):
    """The tier that a trusted caller named is not configured."""

    def __init__(self, tiers: Sequence[str]) -> None:
        message = f"X-Fairlane-Tier must be one of {', '.join(tiers)}"
        super().__init__(400, "INVALID_REQUEST", message, param="X-Fairlane-Tier")


class BadUser(ApiError):
    """The user name that a trusted caller gave is invalid."""

    def __init__(self, where: str) -> None:
        message = f"{where} must be 1 to {MAX_USER_CHARS} printable characters"
        super().__init__(400, "INVALID_REQUEST", message, param=where)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client. Fairness is between users; user and key decide what a caller may see."""

    user: str
    """The user in every list, limit and measure: `<key id>`, or `<key id>/<name>` for a name that a delegating key gives. Ids of
    keys contain no slash, so a given name never equals another key's user. Without keys: as given."""
    tier: str
    key_id: str
    """Empty in no-auth mode."""
    admin: bool = False
    delegating: bool = False
    weight: float = 1.0
    open: bool = False
    models: tuple[str, ...] = ("*",)
    secret_id: str = ""
    """Distinguishes the secrets of a key; part of the secret's hash."""
    scopes: frozenset[str] = frozenset({"call"})
    user_from: str = ""
    """The key's setting `user_from`: a header, or BODY_USER, that names the user in addition to `X-Fairlane-User`."""
    key_limits: str = ""
    """The key's limits over all its users, packed as the scheduler takes them."""
    user_limits: str = ""
    """The limits of each user of a delegating key, packed."""
    quota: Quota | None = None
    """The payer of the key's tasks; None: no payment."""
    claims: Claims | None = None
    """The claims of the caller's signed token; None: the caller presented a key."""
    uses: tuple[int, int, str] | None = None
    """The token whose uses the caller's tasks count against (`Claims.counted`)."""

    @property
    def owner(self) -> Owner:
        """The owner of objects that this caller creates."""
        return Owner(self.key_id, self.user)

    def holds(self, scope: Scope) -> bool:
        """Return whether the key has a scope; an admin's key has all."""
        return self.admin or scope in self.scopes

    @property
    def unnamed(self) -> bool:
        """Whether a body may still name the user (`named`)."""
        return self.user_from == BODY_USER and self.user == self.key_id

    def named(self, fields: Mapping[str, bytes]) -> "Caller":
        """Return the caller, with the user that a body with these members names. Raise ApiError(400)."""
        raw = fields.get("user")
        if not self.unnamed or raw is None or not kind_of(raw):
            return self
        try:
            name = msgspec.json.decode(raw, type=str)
        except msgspec.MsgspecError:
            raise BadUser("user") from None
        return replace(self, user=f"{self.key_id}/{_checked(name, 'user')}")

    @property
    def only_model(self) -> str | None:
        """The default model: the only one of the caller's token."""
        return None if self.claims is None else self.claims.only_model

    @property
    def sees_quota(self) -> bool:
        """Whether this caller may see the balance that pays for its tasks: the holder of a token does not see the key's."""
        return self.claims is None or (self.quota is not None and self.quota.of_user)

    def may_use(self, model: str) -> bool:
        """Return whether the key and the token allow a model."""
        return ("*" in self.models or model in self.models) and (
            self.claims is None or self.claims.allows(model)
        )

    def owns(self, key_id: str, user: str) -> bool:
        """Return whether `user` of the key `key_id` is this caller."""
        return key_id == self.key_id and user == self.user

    def may_see(self, key_id: str, user: str) -> bool:
        """Return whether this caller may read and cancel the tasks of `user` of the key `key_id`: its own, and with an admin key
        any. In no-auth mode every caller is an admin, and still sees only its own tasks, so that users see no others' by mistake.
        """
        return self.sees_all or self.owns(key_id, user)

    @property
    def sees_all(self) -> bool:
        """True for admins, who may see every task; false in no-auth mode."""
        return self.admin and not self.open


_all_but_user_and_tier = operator.attrgetter(*(field.name for field in fields(Caller)[2:]))
"""The fields to copy for another user and tier: faster than `replace`, for each request of a delegating key."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The token that a worker presented, and the models that the worker may serve (`*`: any)."""

    id: str
    models: tuple[str, ...]
    sha256: str = ""
    """The hash of its secret; empty if none is required."""


Principal = TypeVar("Principal", Caller, WorkerIdentity)


@dataclass(frozen=True, slots=True)
class Credential(Generic[Principal]):
    """A secret's hash, the principal that it authenticates, and its expiry in ms (None: none)."""

    sha256: str
    principal: Principal
    until_ms: int | None = None
    signing_key: bytes = b""
    """The key that the secret signs tokens with; empty: it may not sign."""


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """The valid keys and worker tokens of the database, by the hashes of their secrets."""

    callers: Mapping[str, Credential[Caller]] = field(default_factory=dict)
    workers: Mapping[str, Credential[WorkerIdentity]] = field(default_factory=dict)
    secrets: frozenset[tuple[str, str]] = frozenset()
    """Ids of callers' keys and of their secrets, including invalid ones whose open calls may end normally."""
    exist: bool = False
    """Whether there is or was a key."""


def _why_unusable(credential: Credential[Caller], settings: Settings) -> str:
    """Return why a key of the database does not hold with these settings; '' if it does."""
    who = credential.principal
    for tier in (who.tier, (who.quota and who.quota.otherwise) or who.tier):
        if tier not in settings.tiers:
            return f"no queue has its tier {tier}"
    uses = {
        "limits": who.key_limits or who.user_limits,
        "credits": who.quota,
        "signed_tokens": credential.signing_key,
    }
    disabled = [feature for feature, used in uses.items() if used and not settings.has(feature)]
    return f"it needs the feature {disabled[0]}, which is disabled" if disabled else ""


class Callers:
    """The keys of one configuration and of the database. Without any, the gateway is open on loopback and closed elsewhere.

    Workers need no token only while callers need no key: a worker reads what callers send. If both have a key of an id, the
    configuration's replaces the other (`replaced`), so that the author of the file is never locked out.
    """

    def __init__(
        self,
        settings: Settings,
        stored: StoredKeys = StoredKeys(),
        now: Callable[[], float] = time.time,
        own: UpstreamTokens | None = None,
    ) -> None:
        """`own`: the tokens of workers that this gateway starts; None: it starts none."""
        self.open = not settings.keys and not stored.exist and settings.loopback
        self.workers_open = self.open and not settings.workers
        self._now = now
        self._tiers = settings.tiers
        keys, tokens = {key.id for key in settings.keys}, {token.id for token in settings.workers}
        callers = {sha: known for sha, known in stored.callers.items() if known.principal.key_id not in keys}
        workers = {sha: known for sha, known in stored.workers.items() if known.principal.id not in tokens}
        self.replaced = keys & {known.principal.key_id for known in stored.callers.values()}
        """Ids of keys in the database that the configuration's replace."""
        self.replaced |= tokens & {known.principal.id for known in stored.workers.values()}
        self.unusable: dict[str, str] = {}
        """Keys of the database that do not hold, with the reason: no queue has a tier of theirs any more, or a feature that they
        need is disabled."""
        for sha256, credential in [*callers.items()]:
            if why := _why_unusable(credential, settings):
                del callers[sha256]
                self.unusable[credential.principal.key_id] = why
        for key in settings.keys:
            signs = bytes.fromhex(key.signing_key) if key.signing else b""
            callers[key.sha256] = Credential(key.sha256, caller_of(key, key.sha256), signing_key=signs)
        for token in settings.workers:
            workers[token.sha256] = Credential(token.sha256, worker_of(token, token.sha256))
        self._callers, self._workers = callers, workers
        self._own: dict[str, Credential[WorkerIdentity]] = {}
        if own is not None:
            offered = {name: tuple(upstream.models) for name, upstream in settings.upstreams.items()}
            if settings.http_worker_slots:
                offered[HTTP_WORKER] = (ANY_ENDPOINT,)
            for name, models in offered.items():
                sha256 = digest(own.token(name))
                self._own[sha256] = Credential(sha256, WorkerIdentity(OWN_WORKER, models, sha256))
        self._by_id = defaultdict[str, list[Credential[Caller]]](list)
        for known in callers.values():
            self._by_id[known.principal.key_id].append(known)
        self._current = {(key.id, key.sha256[:SECRET_ID_CHARS]) for key in settings.keys}
        """Ids of keys and of their secrets whose open calls may continue."""
        self._current |= {(key_id, secret) for key_id, secret in stored.secrets if key_id not in keys}
        self.hash = _hash([*settings.keys, *settings.workers])
        """A hash of all configured keys and tokens, to compare replicas. It reveals no secret."""
        open_tier = OPEN_TIER if OPEN_TIER in self._tiers else min(self._tiers)
        self.anybody = Caller(ANONYMOUS, open_tier, key_id="", admin=True, delegating=True, open=True)
        """The caller in no-auth mode if the request names no user."""
        self._reject_plain = lru_cache(MAX_KINDS)(self._reject)
        self._allowed_hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._allowed_origins = frozenset(settings.cors_origins)
        self._listens_on = settings.host.lower()

    def authenticate(self, header: Headers) -> Caller:
        """Return the caller of a request. Raise Unauthorized, with one message for all strangers; BadUser or BadTier for names
        that a trusted caller gives; InvalidToken and TokenForbids for the holder of a token that a key has signed.

        1 In no-auth mode the request names user and tier, and keys are ignored. 2 With a delegating key it names them, too; each
        key's users are its own. 3 Any other key is its own user, whatever the request says. 4 A signed token names them.
        """
        if self.open:  # 1
            return self._named(self.anybody, header)
        found = self._find(self._callers, header(b"authorization"))
        if found is None:
            return self._by_token(header)  # 4
        return self._named(found, header) if found.delegating else found  # 2, 3

    def _by_token(self, header: Headers) -> Caller:
        """Return the caller of a signed token. Raise Unauthorized if no key signed it; InvalidToken; TokenForbids."""
        scheme, _, text = (header(b"authorization") or "").partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not looks_like_token(text):
            raise Unauthorized
        key_id = read_key_id(text)
        signers = self._signers(key_id)
        now_s = self._now()
        try:
            for credential in signers:
                if (token := verify(text, credential.signing_key, now_s)) is not None:
                    return self._holder(token, credential.principal, header, now_s)
        except (InvalidToken, TokenForbids) as error:
            error.facts = {"key_id": key_id}
            raise
        raise Unauthorized(f"The token's signature is not the one of the key {key_id!r}")

    def _holder(self, token: Token, key: Caller, header: Headers, now_s: float) -> Caller:
        """Return the caller of a token that this key has signed. Raise InvalidToken and TokenForbids."""
        claims = token.claims
        if claims.tier is not None and claims.tier not in self._tiers:
            raise InvalidToken(f"The token's tier {claims.tier!r} is none: {', '.join(sorted(self._tiers))}")
        try:
            name = token.name if claims.user is None else _checked(claims.user, "user")
        except BadUser as error:
            raise InvalidToken(f"The token's claim {error.message}") from None
        tier = claims.tier or key.tier
        for where in ("X-Fairlane-User", "X-Fairlane-Tier"):
            named = header(where.lower().encode())
            if named is not None and named != (tier if where.endswith("Tier") else claims.user):
                raise TokenForbids(
                    f"The token sets the user and the tier of the request: leave {where} out", where
                )
        return replace(
            key,
            user=f"{key.key_id}/{name}",
            tier=tier,
            admin=False,
            delegating=False,
            scopes=_TOKEN_SCOPES if key.holds("call") else frozenset(),
            user_from="",
            claims=claims,
            uses=claims.counted(key.key_id, now_s),
        )

    def _signers(self, key_id: str) -> Sequence[Credential[Caller]]:
        """Return the credentials of a key that may sign now, at least one. Raise Unauthorized."""
        valid = [known for known in self._by_id.get(key_id, ()) if self._valid(known) is not None]
        if not valid:
            raise Unauthorized(f"There is no valid key {key_id[:64]!r}, by which this is signed")
        signers = [credential for credential in valid if credential.signing_key]
        if not signers:
            raise Unauthorized(f"The key {key_id!r} may not sign: it is no key with signing: true")
        return signers

    def _named(self, caller: Caller, header: Headers) -> Caller:
        """Return the caller, with the user and the tier that the request of a trusted caller names."""
        name = _user(header, caller.user_from)
        if name and not caller.open:
            name = f"{caller.key_id}/{name}"
        tier = self._tier(header)
        if not name and not tier:
            return caller
        return Caller(name or caller.user, tier or caller.tier, *_all_but_user_and_tier(caller))

    def of_key(self, key_id: str) -> Caller | None:
        """Return the caller of a key without a named user; None: the key is invalid."""
        return next((known.principal for known in self._by_id.get(key_id, ())), None)

    def reauthenticate(self, key_id: str, user: str, tier: str) -> Caller | None:
        """Return the caller of a key that was authenticated earlier as this user of this tier; None: it is no longer valid."""
        if self.open or not key_id:
            found = self.anybody if self.open and not key_id else None
        else:
            valid = map(self._valid, self._by_id.get(key_id, ()))
            found = next((who for who in valid if who is not None), None)
        return replace(found, user=user, tier=tier) if found is not None and tier in self._tiers else None

    def is_current(self, caller: Caller) -> bool:
        """Return whether a caller's open calls may continue: the key still exists with the same secret, or it is a key in the
        database that expired or was revoked, but was not cut off."""
        if self.open or not caller.key_id:
            return self.open and caller.open
        return (caller.key_id, caller.secret_id) in self._current

    def has_key(self, key_id: str) -> bool:
        """Return whether a key of this id is valid; in no-auth mode, whether the id is empty."""
        return not key_id if self.open else key_id in self._by_id

    def authenticate_worker(self, authorization: str | None) -> WorkerIdentity | None:
        """Return the identity of a worker; None: it may not connect. In no-auth mode any may, and the gateway's own workers are
        identified all the same."""
        if own := self._find(self._own, authorization):
            return own
        if self.workers_open:
            return WorkerIdentity(OPEN_WORKER, ("*", ANY_ENDPOINT))
        return self._find(self._workers, authorization)

    def renewed(self, sha256: str) -> WorkerIdentity | None:
        """Return the identity of a worker that connected with this secret (empty: without one); None: it is no longer valid."""
        if self.workers_open and not sha256:
            return WorkerIdentity(OPEN_WORKER, ("*", ANY_ENDPOINT))
        return self._valid(self._workers.get(sha256))

    def _find(
        self, credentials: Mapping[str, Credential[Principal]], authorization: str | None
    ) -> Principal | None:
        """Return the principal of a presented secret. Only a look-up of its hash can be timed, which reveals nothing."""
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not 0 < len(secret) <= _MAX_SECRET_CHARS:
            return None
        return self._valid(credentials.get(digest(secret)))

    def _valid(self, credential: Credential[Principal] | None) -> Principal | None:
        if credential is None or (
            credential.until_ms is not None and self._now() * 1000 >= credential.until_ms
        ):
            return None
        return credential.principal

    def reject_request(
        self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes], *, is_plain: bool
    ) -> str | None:
        """Return why a request is rejected (403) before its key is read, or None; see `no_auth_rejection`.

        `is_plain`: it has none of SPECIAL_HEADERS.
        """
        takes_form = scope["path"].rstrip("/") in TAKE_FORMS
        host, content_type = headers.get(b"host"), headers.get(b"content-type")
        kind = (host, content_type, scope["method"], scope["http_version"], takes_form)
        return self._reject_plain(*kind) if is_plain else self._reject(*kind, headers)

    def reject_worker(self, scope: Mapping[str, Any]) -> str | None:
        """Return the same for the handshake of a worker's WebSocket, from its ASGI scope."""
        headers = dict(scope["headers"])
        version = str(scope.get("http_version", ""))
        return self._reject(headers.get(b"host"), None, "GET", version, False, headers, websocket=True)

    def _reject(
        self,
        host: bytes | None,
        content_type: bytes | None,
        method: str,
        version: str,
        takes_form: bool,
        special: Mapping[bytes, bytes] = {},
        *,
        websocket: bool = False,
    ) -> str | None:
        """`special`: the headers, if some are SPECIAL_HEADERS."""

        def text(value: bytes | None) -> str | None:
            return None if value is None else value.decode("latin-1")

        if self.workers_open if websocket else self.open:
            return no_auth_rejection(
                text(host),
                text(special.get(b"origin")),
                not FORWARDING_HEADERS.isdisjoint(special),
                text(content_type),
                method,
                old_http=version == "1.0",
                websocket=websocket,
                allowed_hosts=self._allowed_hosts,
                allowed_origins=self._allowed_origins,
                takes_form=takes_form,
                site=text(special.get(b"sec-fetch-site")),
            )
        name = host_name(text(host))
        own = websocket and name == self._listens_on  # as the workers dial that this gateway starts
        if self._allowed_hosts and not (name in self._allowed_hosts or is_loopback(name or "") or own):
            return "This gateway does not answer to this host name; see allowed_hosts"
        return None

    def _tier(self, header: Headers) -> str | None:
        tier = header(b"x-fairlane-tier")
        if tier is not None and tier not in self._tiers:
            raise BadTier(sorted(self._tiers))
        return tier


def forbidden(caller: Caller, model: str) -> ApiError:
    """Return the error for a model that a caller may not use. For a key, the model looks as if it did not exist."""
    claims = caller.claims
    if claims is not None and not claims.allows(model):
        covered = ", ".join(claims.models)[:200] if claims.models else "the models of its key"
        return TokenForbids(f"The token is for {covered}, not for {model}", "model")
    return model_not_found(model)


def caller_of(key: CallerKey, sha256: str) -> Caller:
    """Return the caller of a key's secret, without a named user."""
    return Caller(
        key.id,
        key.tier,
        key.id,
        key.admin,
        key.delegating,
        key.weight,
        models=tuple(key.models),
        secret_id=sha256[:SECRET_ID_CHARS],
        scopes=frozenset(key.scopes),
        user_from=key.user_from,
        key_limits=pack(key.limits.model_dump()),
        user_limits=pack(key.user_limits.model_dump()),
        quota=quota_of(key.quota) if key.quota else None,
    )


def quota_of(quota: KeyQuota) -> Quota:
    """Return the quota of a key's settings."""
    return Quota(quota.of == "user", quota.budget or 0, quota.per or "month", quota.otherwise or "")


def worker_of(key: WorkerKey, sha256: str) -> WorkerIdentity:
    """Return the identity of workers that present this secret of a token."""
    return WorkerIdentity(key.id, tuple(key.models), sha256)


def _hash(keys: Sequence[CallerKey | WorkerKey]) -> str:
    """Return a hash of a configuration's keys and tokens that does not depend on their order."""
    entries = sorted(f"{type(key).__name__} {key.model_dump_json()}" for key in keys)
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()[:12]


def digest(secret: str) -> str:
    """Return what is stored of a secret: its SHA-256 in hex, which is enough, because secrets are random and long."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _user(header: Headers, other: str) -> str | None:
    """Return the user that the request's headers name, or None; `other`: a second header. Raise BadUser."""
    for where in ("X-Fairlane-User", other):
        name = None if where in ("", BODY_USER) else header(where.lower().encode())
        if name is not None:
            with contextlib.suppress(UnicodeError):
                # headers are read as Latin-1; other scripts come as UTF-8
                name = name.encode("latin-1").decode("utf-8")
            return _checked(name, where)
    return None


def _checked(name: str, where: str) -> str:
    name = name.strip()
    if not 0 < len(name) <= MAX_USER_CHARS or not name.isprintable():
        raise BadUser(where)
    return name
