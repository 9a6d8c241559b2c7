"""Keys of the database beside those of the configuration: who is let in, until when, and what may go on."""

import hashlib
from typing import Any

import pytest

from fairlane.gateway.accounts.callers import Caller, Callers
from fairlane.gateway.accounts.keystore import StoredKey, StoredSecret, next_end, read_key, stored_keys
from fairlane.gateway.errors import Unauthorized
from fairlane.gateway.settings import Settings


def sha(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def stored(
    key_id: str, *secrets: str, kind: str = "caller", until: int | None = None, **row: Any
) -> StoredKey:
    columns = ("expires", "revoked", "cut", "last_used")
    known = {**dict.fromkeys(columns), "settings": "{}", "note": "", "created": 1, "version": 1, **row}
    ends = [until if secret != secrets[-1] else None for secret in secrets]
    kept = [
        StoredSecret(sha(secret), at, end) for at, (secret, end) in enumerate(zip(secrets, ends, strict=True))
    ]
    return read_key({"id": key_id, "kind": kind, **known}, kept)


def callers(*keys: StoredKey, now: float = 0, **settings: Any) -> Callers:
    return Callers(Settings.model_validate(settings), stored_keys(keys), lambda: now)


def let_in(known: Callers, secret: str) -> Caller | None:
    try:
        return known.authenticate({b"authorization": f"Bearer {secret}"}.get)
    except Unauthorized:
        return None


def test_a_key_of_the_database_is_one_like_the_configurations() -> None:
    known = callers(stored("app", "s", settings='{"tier": "paid", "weight": 2, "models": ["m"]}'))
    caller = let_in(known, "s")
    assert caller is not None
    assert (caller.user, caller.tier, caller.weight, caller.models) == ("app", "paid", 2.0, ("m",))
    assert known.is_current(caller)
    assert let_in(known, "other") is None


def test_a_gateway_is_open_only_while_there_never_was_a_key() -> None:
    assert callers().open
    assert callers().workers_open
    for key in (stored("a", "s"), stored("a", "s", revoked=1), stored("a", "s", settings='{"new": 1}')):
        known = callers(key)
        assert not known.open
        assert not known.workers_open


def test_both_secrets_hold_until_the_old_one_ends_to_the_millisecond() -> None:
    key = stored("app", "old", "new", until=5000)
    for now, old in ((4.999, True), (5.0, False)):
        known = callers(key, now=now)
        assert (let_in(known, "old") is not None) is old
        assert let_in(known, "new") is not None
    assert next_end(stored_keys([key]), 0) == 5000
    assert next_end(stored_keys([key]), 5000) == float("inf")
    expiring = stored("app", "old", "new", until=5000, expires=3000)
    assert let_in(callers(expiring, now=2.999), "old") is not None
    assert let_in(callers(expiring, now=3.0), "new") is None


def test_what_a_key_has_begun_goes_on_when_it_is_revoked_but_not_when_it_is_cut() -> None:
    caller = let_in(callers(stored("app", "s")), "s")
    assert caller is not None
    assert callers(stored("app", "s", expires=1), now=9).is_current(caller)
    revoked = callers(stored("app", "s", revoked=1))
    assert let_in(revoked, "s") is None
    assert revoked.is_current(caller)
    assert not callers(stored("app", "s", revoked=1, cut=1)).is_current(caller)


def test_where_both_have_an_id_the_configurations_holds_alone() -> None:
    mine = [{"id": "app", "sha256": sha("mine")}]
    known = callers(stored("app", "theirs"), keys=mine)
    theirs = let_in(callers(stored("app", "theirs")), "theirs")
    assert theirs is not None
    assert let_in(known, "theirs") is None
    assert let_in(known, "mine") is not None
    assert not known.is_current(theirs)
    assert known.replaced == {"app"}
    worker = callers(stored("app", "token", kind="worker"), keys=mine)
    assert worker.replaced == set()
    assert worker.authenticate_worker("Bearer token") is not None
    assert let_in(worker, "token") is None, "a token is no key"


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        ("{}", "valid"),
        ('{"newer": 1}', "unusable"),
        ('{"tier": "gold"}', "unusable"),
        ('{"weight": -1}', "unusable"),
    ],
)
def test_what_this_release_cannot_decide_lets_nobody_in(settings: str, state: str) -> None:
    key = stored("app", "s", settings=settings)
    assert key.state(0, Settings()) == state
    assert (let_in(callers(key), "s") is not None) is (state == "valid")


def test_a_token_holds_for_its_models_until_it_ends() -> None:
    key = stored("gpu", "s", kind="worker", settings='{"models": ["m"]}', expires=2000)
    identity = callers(key, now=1).authenticate_worker("Bearer s")
    assert identity is not None
    assert (identity.id, identity.models) == ("gpu", ("m",))
    assert callers(key, now=1).renewed(identity.sha256) == identity
    assert callers(key, now=2).renewed(identity.sha256) is None
