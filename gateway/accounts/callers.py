"""Who is asking: callers by their keys, workers by their tokens.

Pure and immutable. When the configuration is read again, or a key of the database changed, a new `Callers` replaces the old one,
and the calls of keys that it does not know end (`OpenCalls`).
"""

import contextlib
import hashlib
import hmac
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from fairlane.gateway.accounts.openmode import FORWARDING_HEADERS, TAKE_FORMS, host_name, open_mode_refusal
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.accounts.tokens import (
    Claims,
    InvalidToken,
    Token,
    TokenForbids,
    looks_like_token,
    read_key_id,
    verify,
)
from fairlane.gateway.accounts.upstreams import HTTP_WORKER, OWN_WORKER, UpstreamTokens
from fairlane.gateway.credits.quota import Quota
from fairlane.gateway.errors import KEY_NEEDED, ApiError, model_not_found
from fairlane.gateway.hosts import is_loopback
from fairlane.gateway.settings import CallerKey, KeyQuota, Scope, Settings, WorkerKey
from fairlane.queues.keys import ANY_ENDPOINT
from fairlane.queues.limits import pack
from fairlane.streaming.jsontext import kind_of

Kind = Literal["caller", "worker"]

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
MAX_LET_IN = 100
"""Kinds of requests that are remembered as not to be refused; with one more, those before are forgotten."""
MAX_LET_IN_BYTES = 256
"""Of the headers of a kind that is remembered: nobody fills the memory with long ones."""
_TOKEN_SCOPES = frozenset({"call"})
"""What tokens are for, at most."""


class Unauthorized(ApiError):
    """No key, or one that is not valid. The same answer for both, so that it tells nothing."""

    def __init__(self) -> None:
        super().__init__(401, "UNAUTHORIZED", KEY_NEEDED)


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
    key_limits: str = ""
    """Of the key, over all its users: packed, as the scheduler takes them."""
    user_limits: str = ""
    """Of each user of a delegating key, likewise."""
    quota: Quota | None = None
    """Who pays for the key's tasks; None: nobody does."""
    claims: Claims | None = None
    """What the token says with which this caller came; None: it came with a key."""
    uses: str = ""
    """Of what each of its tasks is a use (`Claims.counted`)."""

    @property
    def owner(self) -> Owner:
        """Whose is what this caller makes."""
        return Owner(self.key_id, self.user)

    def holds(self, scope: Scope) -> bool:
        """Whether the key is for such calls; an admin's is for all."""
        return self.admin or scope in self.scopes

    @property
    def unnamed(self) -> bool:
        """Whether a body may still name the user (`named`)."""
        return self.user_from == BODY_USER and self.user == self.key_id

    def named(self, fields: Mapping[str, bytes]) -> "Caller":
        """The caller of a body with these members: its user, where the key says so. Raises ApiError(400)."""
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
        """The model of a request that names none, where the caller's token says so."""
        return None if self.claims is None else self.claims.only_model

    @property
    def sees_quota(self) -> bool:
        """Whether this caller may know what pays for its tasks: the holder of a token not what its key has."""
        return self.claims is None or (self.quota is not None and self.quota.of_user)

    def may_use(self, model: str) -> bool:
        """Whether the key, and the token, cover a model."""
        return ("*" in self.models or model in self.models) and (
            self.claims is None or self.claims.allows(model)
        )

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


_all_but_user_and_tier = operator.attrgetter(*(field.name for field in fields(Caller)[2:]))
"""What `replace` would copy, for a third of its time: each request of a delegating key has such a copy."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Whose token a worker presented, and the models that it may offer (`*`: any)."""

    id: str
    models: tuple[str, ...]
    sha256: str = ""
    """Of its secret; empty where none is asked for."""


Who = TypeVar("Who", Caller, WorkerIdentity)


@dataclass(frozen=True, slots=True)
class Proof(Generic[Who]):
    """A secret, whom it stands for, and until when: ms, None for as long as there is one."""

    sha256: str
    who: Who
    until_ms: int | None = None
    signing_key: bytes = b""
    """What it signs with; empty: it may not sign."""


@dataclass(frozen=True, slots=True)
class StoredKeys:
    """What the database says of keys and tokens: the secrets that stand for somebody, by their hash."""

    callers: Mapping[str, Proof[Caller]] = field(default_factory=dict)
    workers: Mapping[str, Proof[WorkerIdentity]] = field(default_factory=dict)
    secrets: frozenset[tuple[str, str]] = frozenset()
    """Ids of callers' keys and of their secrets, also of those that are not valid any more, but may end what they have begun."""
    by_id: Mapping[str, Sequence[Proof[Caller] | Proof[WorkerIdentity]]] = field(default_factory=dict)
    """The same by the ids of the keys and tokens."""
    exist: bool = False
    """Whether there is or ever was a key."""


class RequestHead(Protocol):
    """A request before its body is read."""

    @property
    def scope(self) -> Mapping[str, Any]: ...

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """By their names in lower case."""
        ...

    @property
    def plain(self) -> bool:
        """Whether it has none of SPECIAL_HEADERS."""
        ...

    def header(self, name: bytes) -> str | None: ...


class Callers:
    """Knows the keys of one configuration and of the database. Without any it is open on loopback, and closed anywhere else.

    Workers need no token only while callers need no key either: a worker reads what callers send. Where both have a key of an id,
    the configuration's holds alone (`replaced`): whoever writes the file is never locked out.
    """

    def __init__(
        self,
        settings: Settings,
        stored: StoredKeys = StoredKeys(),
        now: Callable[[], float] = time.time,
        own: UpstreamTokens | None = None,
    ) -> None:
        """`own`: of the workers that this gateway starts itself; None: it starts none."""
        self.open = not settings.keys and not stored.exist and settings.loopback
        self.workers_open = self.open and not settings.workers
        self._now = now
        self._tiers = settings.tiers
        callers, workers = dict(stored.callers), dict(stored.workers)
        self.replaced: set[str] = set()
        """Keys of the database that do not hold, because the configuration has others of these ids."""
        theirs: dict[str, Any]
        for entries, theirs in ((settings.keys, callers), (settings.workers, workers)):
            for entry in entries:
                for proof in stored.by_id.get(entry.id, ()):
                    if theirs.pop(proof.sha256, None) is not None:
                        self.replaced.add(entry.id)
        self.without_tier: dict[str, str] = {}
        """Keys of the database that do not hold, because no queue has a tier of theirs any more."""
        for sha256, proof in [*callers.items()]:
            who = proof.who
            for tier in (who.tier, (who.quota and who.quota.otherwise) or who.tier):
                if tier not in self._tiers:
                    callers.pop(sha256, None)
                    self.without_tier[who.key_id] = tier
        self._configured: dict[str, Proof[Caller]] = {}
        """By the keys' ids."""
        for key in settings.keys:
            signs = bytes.fromhex(key.signing_key) if key.signing else b""
            proof = Proof(key.sha256, caller_of(key, key.sha256), signing_key=signs)
            callers[key.sha256] = self._configured[key.id] = proof
        for token in settings.workers:
            workers[token.sha256] = Proof(token.sha256, worker_of(token, token.sha256))
        self._callers, self._workers = callers, workers
        self._own: dict[str, Proof[WorkerIdentity]] = {}
        if own is not None:
            offered = {name: tuple(upstream.models) for name, upstream in settings.upstreams.items()}
            if settings.http_worker_slots:
                offered[HTTP_WORKER] = (ANY_ENDPOINT,)
            for name, models in offered.items():
                sha256 = digest(own.token(name))
                self._own[sha256] = Proof(sha256, WorkerIdentity(OWN_WORKER, models, sha256))
        self._by_id = {proof.who.key_id: proof.who for proof in callers.values()}
        self._secrets = {(key.id, key.sha256[:SECRET_ID_CHARS]) for key in settings.keys}
        self._stored = stored.secrets
        self._stored_by_id = stored.by_id
        self.hash = _hash([*settings.keys, *settings.workers])
        """Of all configured keys and tokens, to compare replicas by. It tells nothing of a secret."""
        open_tier = OPEN_TIER if OPEN_TIER in self._tiers else min(self._tiers)
        self.anybody = Caller(ANONYMOUS, open_tier, key_id="", admin=True, delegating=True, open=True)
        """Who makes the calls of an open gateway that name no user."""
        self._let_in: set[tuple[bytes | str | bool | None, ...]] = set()
        """What `refuse_request` looks at of plain requests that it did not refuse."""
        self._allowed_hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._allowed_origins = frozenset(settings.cors_origins)
        self._listens_on = settings.host.lower()

    def authenticate(self, header: Headers) -> Caller:
        """The caller of a request. Raises Unauthorized, and BadUser or BadTier for what a trusted caller names; InvalidToken and
        TokenForbids for the holder of a token.

        1 An open gateway believes what it is told and ignores keys. 2 A delegating key is believed too; its
        users are its own, and it sees only what it has submitted itself. 3 Any other key is its own user,
        whatever the request says. 4 Whoever comes with a token is who it says.
        """
        if self.open:  # 1
            return self._named(self.anybody, header)
        found = self._find(self._callers, header(b"authorization"))
        if found is None:
            return self._by_token(header)  # 4
        return self._named(found, header) if found.delegating else found  # 2, 3

    def _by_token(self, header: Headers) -> Caller:
        """The caller who presents a token. Raises Unauthorized where it is none."""
        scheme, _, text = (header(b"authorization") or "").partition(" ")
        text = text.strip()
        if scheme.lower() != "bearer" or not looks_like_token(text):
            raise Unauthorized
        key_id = read_key_id(text)
        signers = self._signers(key_id)
        now_s = self._now()
        try:
            for proof in signers:
                if (token := verify(text, proof.signing_key, now_s)) is not None:
                    return self._holder(token, proof.who, header, now_s)
        except (InvalidToken, TokenForbids) as error:
            error.facts = {"key_id": key_id}
            raise
        raise InvalidToken(f"The token's signature is not the one of the key {key_id!r}")

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
            said = header(where.lower().encode())
            if said is not None and said != (tier if where.endswith("Tier") else claims.user):
                raise TokenForbids(
                    f"The token says whose the request is, and of which tier: leave {where} out", where
                )
        return replace(
            key,
            user=f"{key.key_id}/{name}",
            tier=tier,
            admin=False,
            delegating=False,
            scopes=key.scopes & _TOKEN_SCOPES,
            user_from="",
            claims=claims,
            uses=claims.counted(key.key_id, now_s),
        )

    def _signers(self, key_id: str) -> Sequence[Proof[Caller]]:
        """What a key may sign with now, at least one. Raises InvalidToken."""
        configured = self._configured.get(key_id)
        known = [configured] if configured else self._stored_by_id.get(key_id, ())
        held = [(proof, self._callers.get(proof.sha256)) for proof in known]
        valid = [mine for proof, mine in held if mine is proof and self._valid(mine) is not None]
        if not valid:
            raise InvalidToken(f"There is no valid key {key_id[:64]!r}, by which this is signed")
        signers = [proof for proof in valid if proof.signing_key]
        if not signers:
            raise InvalidToken(f"The key {key_id!r} may not sign: it is no key with signing: true")
        return signers

    def _named(self, caller: Caller, header: Headers) -> Caller:
        """The caller with the user and the tier that the request names: who may name them is known."""
        name = _user(header, caller.user_from)
        if name and not caller.open:
            name = f"{caller.key_id}/{name}"
        tier = self._tier(header)
        if not name and not tier:
            return caller
        return Caller(name or caller.user, tier or caller.tier, *_all_but_user_and_tier(caller))

    def of_key(self, key_id: str) -> Caller | None:
        """Whom the secrets of a key stand for, where they name no user; None: it does not hold."""
        return self._by_id.get(key_id)

    def again(self, key_id: str, user: str, tier: str) -> Caller | None:
        """Whom a key stands for now who was let in before as this user, of this tier; None: it is not valid any more."""
        if self.open or not key_id:
            found = self.anybody if self.open and not key_id else None
        else:
            valid = (self._valid(proof) for proof in self._callers.values() if proof.who.key_id == key_id)
            found = next((who for who in valid if who is not None), None)
        return replace(found, user=user, tier=tier) if found is not None and tier in self._tiers else None

    def knows(self, caller: Caller) -> bool:
        """Whether what a caller has begun may go on: the key that it showed is still one, with the same secret; or it is one of
        the database that has expired or was revoked, but not cut off."""
        if self.open or not caller.key_id:
            return self.open and caller.open
        secrets = self._secrets if caller.key_id in self._configured else self._stored
        return (caller.key_id, caller.secret_id) in secrets

    def has_key(self, key_id: str) -> bool:
        """Whether a caller's key of this id is valid; of an open gateway, where there is none, that none is named."""
        return not key_id if self.open else key_id in self._by_id

    def authenticate_worker(self, authorization: str | None) -> WorkerIdentity | None:
        """Whose worker it is, or None when it may not connect. An open gateway takes any, and knows its own all the same."""
        if own := self._find(self._own, authorization):
            return own
        if self.workers_open:
            return WorkerIdentity(OPEN_WORKER, ("*", ANY_ENDPOINT))
        return self._find(self._workers, authorization)

    def renewed(self, sha256: str) -> WorkerIdentity | None:
        """What these keys say of a worker that was let in with this secret; None when it is not valid any more.

        Without a secret (empty): whether workers still need none.
        """
        if self.workers_open and not sha256:
            return WorkerIdentity(OPEN_WORKER, ("*", ANY_ENDPOINT))
        return self._valid(self._workers.get(sha256))

    def _find(self, proofs: Mapping[str, Proof[Who]], authorization: str | None) -> Who | None:
        """Whose secret is presented. Only a look-up of its hash can be timed, which tells nothing."""
        scheme, _, secret = (authorization or "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not 0 < len(secret) <= _MAX_SECRET_CHARS:
            return None
        presented = digest(secret)
        proof = proofs.get(presented)
        if proof is None or not hmac.compare_digest(proof.sha256, presented):
            return None
        return self._valid(proof)

    def _valid(self, proof: Proof[Who] | None) -> Who | None:
        if proof is None or (proof.until_ms is not None and self._now() * 1000 >= proof.until_ms):
            return None
        return proof.who

    def refuse_request(self, request: RequestHead) -> str | None:
        """Why a request is not even asked for a key (403), or None; see `open_mode_refusal`."""
        headers, scope = request.headers, request.scope
        if not request.plain:
            return self._refuse(headers, scope, guarded=self.open)
        alike = (
            headers.get(b"host"),
            headers.get(b"content-type"),
            scope["method"],
            scope["http_version"],
            scope["path"].rstrip("/") in TAKE_FORMS,
        )
        if alike in self._let_in:
            return None
        refused = self._refuse(headers, scope, guarded=self.open)
        if refused is None and len(alike[0] or b"") + len(alike[1] or b"") <= MAX_LET_IN_BYTES:
            if len(self._let_in) >= MAX_LET_IN:
                self._let_in.clear()
            self._let_in.add(alike)
        return refused

    def refuse_worker(self, scope: Mapping[str, Any]) -> str | None:
        """The same for the handshake of a worker's WebSocket, from its ASGI scope."""
        return self._refuse(dict(scope["headers"]), scope, guarded=self.workers_open, websocket=True)

    def _refuse(
        self,
        headers: Mapping[bytes, bytes],
        scope: Mapping[str, Any],
        *,
        guarded: bool,
        websocket: bool = False,
    ) -> str | None:
        def header(name: bytes) -> str | None:
            value = headers.get(name)
            return None if value is None else value.decode("latin-1")

        host = header(b"host")
        if guarded:
            return open_mode_refusal(
                host,
                header(b"origin"),
                not FORWARDING_HEADERS.isdisjoint(headers),
                header(b"content-type"),
                "GET" if websocket else str(scope.get("method", "")),
                old_http=scope.get("http_version") == "1.0",
                websocket=websocket,
                allowed_hosts=self._allowed_hosts,
                allowed_origins=self._allowed_origins,
                path=str(scope.get("path", "")),
                site=header(b"sec-fetch-site"),
            )
        name = host_name(host)
        own = websocket and name == self._listens_on  # as the workers dial that this gateway starts
        if self._allowed_hosts and not (name in self._allowed_hosts or is_loopback(name or "") or own):
            return "This gateway does not answer to this host name; see allowed_hosts"
        return None

    def _tier(self, header: Headers) -> str | None:
        tier = header(b"x-fairlane-tier")
        if tier is not None and tier not in self._tiers:
            raise BadTier(sorted(self._tiers))
        return tier


def check_model(caller: Caller, model: str) -> None:
    """Raise ApiError when a caller's key does not cover a model, which looks like a model that does not exist; or its token."""
    claims = caller.claims
    if claims is not None and not claims.allows(model):
        raise TokenForbids(
            f"The token is for {', '.join(claims.models or ())[:200]}, not for {model}", "model"
        )
    if not caller.may_use(model):
        raise model_not_found(model)


def caller_of(key: CallerKey, sha256: str) -> Caller:
    """Whom a secret of a key stands for, where it names no user of its own."""
    return Caller(
        key.id,
        key.tier,
        key.id,
        key.admin or "admin" in key.scopes,
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


def quota_of(said: KeyQuota) -> Quota:
    """What a key says of its quota."""
    return Quota(said.of == "user", said.budget or 0, said.per or "month", said.otherwise or "")


def worker_of(key: WorkerKey, sha256: str) -> WorkerIdentity:
    """Whose workers present this secret of a token."""
    return WorkerIdentity(key.id, tuple(key.models), sha256)


def _hash(keys: Sequence[CallerKey | WorkerKey]) -> str:
    """Names what a configuration says of keys and tokens, in any order."""
    said = sorted(f"{type(key).__name__} {key.model_dump_json()}" for key in keys)
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]


def digest(secret: str) -> str:
    """What is stored of a secret: its SHA-256 in hex. Enough, because secrets are random and long."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


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
