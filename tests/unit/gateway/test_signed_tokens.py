"""Tokens that a back end signs, and what only looks like one."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.signing import derived, part, sealed, token

from fairlane.gateway.accounts.callers import Caller, Callers, StoredKeys
from fairlane.gateway.accounts.keystore import StoredSecret, read_key, stored_keys
from fairlane.gateway.accounts.signed_tokens import MAX_TOKEN_CHARS, signing_key
from fairlane.gateway.errors import KEY_NEEDED, ApiError, InvalidToken, TokenForbids, Unauthorized
from fairlane.gateway.settings import Settings

NOTHING = StoredKeys()
NOW = 1_800_000_000.0
SECRET = "fl_site_secret"


def sha(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def entry(key_id: str, **more: Any) -> dict[str, Any]:
    secret = f"fl_{key_id}_secret"
    signs = {"signing_key": signing_key(secret)} if more.get("signing") else {}
    return {"id": key_id, "sha256": sha(secret), **signs, **more}


KEYS = [
    entry("site", delegating=True, signing=True, tier="paid", models=["m", "n"], scopes=["admin"]),
    entry("plain"),
    entry("elsewhere", delegating=True, signing=True, user_from="X-Site-User"),
]


def callers(now: float = NOW, stored: StoredKeys = NOTHING, keys: list[Any] = KEYS) -> Callers:
    return Callers(Settings.model_validate({"keys": keys}), stored, lambda: now)


def come(text: str, known: Callers | None = None, **headers: str) -> Caller:
    """Whom the holder of a token is taken for."""
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return (known or callers()).authenticate({b"authorization": f"Bearer {text}", **named}.get)


def at(**claims: Any) -> str:
    return token(SECRET, **{"exp": int(NOW) + 600, "user": "ann", **claims})


def why(attempt: Callable[[], object], status: int = 401) -> str:
    """Return the reason of a rejection. A stranger's is in the log alone."""
    with pytest.raises(ApiError) as refused:
        attempt()
    error = refused.value
    assert error.status == status
    if isinstance(error, Unauthorized):
        assert (error.message, error.headers) == (KEY_NEEDED, ())
        return error.facts["reason"]
    return error.message


def test_the_holder_of_a_token_is_who_it_says_and_nothing_more() -> None:
    caller = come(at(tier="free", models=["m"], priority=2))
    assert (caller.user, caller.tier, caller.key_id, caller.weight) == ("site/ann", "free", "site", 1.0)
    assert not any((caller.admin, caller.delegating, caller.sees_all))
    assert not any(caller.holds(scope) for scope in ("admin", "viewer", "metrics"))
    assert caller.scopes == {"call"}
    assert (caller.may_use("m"), caller.may_use("n"), caller.may_use("o")) == (True, False, False)
    assert caller.may_see("site", "site/ann")
    assert not caller.may_see("site", "site/bob")
    assert not caller.may_see("plain", "site/ann")
    assert come(at()).tier == "paid", "the key's"
    assert come(at()).may_use("n")
    assert not come(at(models=["o"])).may_use("o"), "no token reaches further than its key"
    assert callers().is_current(caller)


def test_a_token_without_a_user_stands_for_itself() -> None:
    one, again, other = (
        come(token(SECRET, exp=int(NOW) + seconds, jti=name))
        for seconds, name in ((5, "a"), (5, "a"), (5, "b"))
    )
    assert one.user == again.user != other.user
    assert one.user.startswith("site/token:")
    assert "user" in why(lambda: come(token(SECRET, exp=int(NOW) + 5)))


def test_a_key_that_is_no_key_of_tokens_makes_none() -> None:
    of_plain = token("fl_plain_secret", "plain", exp=int(NOW) + 9, user="ann")
    assert "may not sign" in why(lambda: come(of_plain))
    assert "no valid key 'nobody'" in why(lambda: come(token(SECRET, "nobody", exp=int(NOW) + 9, user="ann")))


@pytest.mark.parametrize(
    "key", [b"", SECRET.encode(), sha(SECRET).encode(), bytes.fromhex(sha(SECRET)), derived("other")]
)
def test_neither_the_secret_nor_its_stored_hash_signs(key: bytes) -> None:
    said = {"exp": int(NOW) + 600, "user": "ann"}
    forged = sealed(b'{"alg":"HS256","kid":"site"}', json.dumps(said).encode(), key)
    assert why(lambda: come(forged)) == "The token's signature is not the one of the key 'site'"


def head(text: str) -> str:
    return sealed(text.encode(), b'{"exp":%d,"user":"ann"}' % (NOW + 600), derived(SECRET))


def body(text: str) -> str:
    return sealed(
        b'{"alg":"HS256","kid":"site"}',
        text.replace("EXP", str(int(NOW) + 600)).encode("utf-8", "surrogatepass"),
        derived(SECRET),
    )


CLAIMS_WRONG = "The token's claims are wrong"
ATTACKS: dict[str, tuple[str, str]] = {
    "no algorithm": (head('{"alg":"none","kid":"site"}'), "must be signed with HS256"),
    "no signature": (at().rpartition(".")[0] + ".", "signature is not the one"),
    "another algorithm": (head('{"alg":"RS256","kid":"site"}'), "must be signed with HS256"),
    "no algorithm is said": (head('{"kid":"site"}'), "must be signed with HS256"),
    "no key": (head('{"alg":"HS256"}'), "kid, the key's id"),
    "a key that is a list": (head('{"alg":"HS256","kid":["site"]}'), "not a JSON Web Token"),
    "something critical": (head('{"alg":"HS256","kid":"site","crit":["exp"]}'), "not a JSON Web Token"),
    "a header that is a list": (head("[]"), "not a JSON Web Token"),
    "a header without an end": (head("[" * 2500), "not a JSON Web Token"),
    "claims without an end": (body('{"exp":EXP,"user":' + "[" * 2500), CLAIMS_WRONG),
    "no end": (body('{"user":"ann"}'), "required field `exp`"),
    "an end with a fraction": (body('{"exp":EXP.5,"user":"ann"}'), "$.exp"),
    "an end that is no number": (body('{"exp":NaN,"user":"ann"}'), CLAIMS_WRONG),
    "a day and more": (token(SECRET, exp=int(NOW) + 86_461, user="ann"), "lasts longer than a day"),
    "of tomorrow": (at(nbf=int(NOW) + 61), "not valid yet"),
    "made tomorrow": (at(iat=int(NOW) + 61), "not valid yet"),
    "a user of two lines": (at(user="a\nb"), "printable"),
    "a user of blanks": (at(user="  "), "printable"),
    "a user of many letters": (at(user="x" * 129), "$.user"),
    "an unknown tier": (at(tier="gold"), "tier 'gold' is none: free, paid"),
    "a claim that is none": (at(prioritty=1), "`prioritty`"),
    "a priority above all": (at(priority=6), "$.priority"),
    "all models by name": (at(models=["*"]), "must be names"),
    "no model": (at(models=[]), "$.models"),
    "an unknown mode": (at(mode="fast"), "$.mode"),
    "uses without a name": (at(uses=3), "needs an id (jti)"),
    "no uses": (at(uses=0, jti="a"), "$.uses"),
    "a name with a line's end": (at(jti="ab\n"), "$.jti"),
    "two bounds of output": (at(max_tokens=3, max_completion_tokens=4), "Set the one that"),
    "claims that are no text": (body("\ud800"), CLAIMS_WRONG),
    "too long": (at(user="x", models=["m" * 200] * 30), f"longer than {MAX_TOKEN_CHARS}"),
    "dots alone": ("..", "not a JSON Web Token"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_only_looks_like_a_token_is_refused_with_a_sentence(attack: str) -> None:
    text, sentence = ATTACKS[attack]
    assert sentence in why(lambda: come(text))


def test_no_part_of_a_token_can_be_exchanged() -> None:
    text = at(priority=0)
    head_, said, mac = text.split(".")
    better = part(json.dumps({"exp": int(NOW) + 600, "user": "ann", "priority": 5}).encode())
    for forged in (f"{head_}.{better}.{mac}", f"{head_}.{said}.{mac[:-4]}AAAA", f"{head_}.{said}.{mac[:20]}"):
        assert "signature" in why(lambda forged=forged: come(forged))  # type: ignore[misc]
    for text in ("a.b", "a.b.c.d", f"{head_}.{said}"):
        with pytest.raises(Unauthorized):
            come(text)


def test_a_token_ends_to_the_second_with_a_minute_for_clocks() -> None:
    text = token(SECRET, exp=int(NOW), user="ann")
    assert come(text, callers(NOW + 59.9)).user == "site/ann"
    with pytest.raises(InvalidToken) as refused:
        come(text, callers(NOW + 60))
    assert (refused.value.code, refused.value.message) == (
        "TOKEN_EXPIRED",
        "The token has expired. Get another one",
    )
    assert come(token(SECRET, exp=int(NOW) + 86_400, user="ann")).user == "site/ann"


def test_headers_name_nobody_else() -> None:
    assert come(at(), x_fairlane_user="ann", x_fairlane_tier="paid").user == "site/ann"
    for header in ({"x_fairlane_user": "bob"}, {"x_fairlane_tier": "free"}, {"x_fairlane_user": ""}):
        with pytest.raises(TokenForbids, match="leave X-Fairlane-"):
            come(at(), **header)
    of_elsewhere = token("fl_elsewhere_secret", "elsewhere", exp=int(NOW) + 9, user="ann")
    assert come(of_elsewhere, x_site_user="bob").user == "elsewhere/ann"


# ---- keys of the database ----------


def row(*secrets: StoredSecret, **more: Any) -> StoredKeys:
    known = {
        **dict.fromkeys(("expires", "revoked", "cut", "last_used")),
        "note": "",
        "created": 1,
        "version": 1,
    }
    settings = json.dumps({"delegating": True, "signing": more.pop("signing", True)})
    return stored_keys(
        [read_key({"id": "app", "kind": "caller", "settings": settings, **known, **more}, secrets)]
    )


def secret_of(name: str, until: int | None = None, signs: bool = True) -> StoredSecret:
    return StoredSecret(sha(name), 1, until, signing_key(name) if signs else None)


def test_both_secrets_of_a_rotated_key_sign_until_the_old_one_ends() -> None:
    until = int(NOW * 1000) + 5000
    stored = row(secret_of("old", until), secret_of("new"))
    for now, holds in ((NOW + 4.9, True), (NOW + 5, False)):
        known = callers(now, stored)
        assert come(token("new", "app", exp=int(NOW) + 9, user="a"), known).user == "app/a"
        old = token("old", "app", exp=int(NOW) + 9, user="a")
        if holds:
            assert come(old, known).user == "app/a"
        else:
            assert "signature is not the one" in why(lambda old=old, known=known: come(old, known))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        (row(secret_of("s"), revoked=1), "no valid key 'app'"),
        (row(secret_of("s"), expires=int(NOW * 1000)), "no valid key 'app'"),
        (row(secret_of("s"), signing=False), "may not sign"),
        (row(secret_of("s", signs=False)), "may not sign"),
    ],
)
def test_a_key_that_is_over_or_may_not_signs_nothing(stored: StoredKeys, sentence: str) -> None:
    text = token("s", "app", exp=int(NOW) + 9, user="a")
    assert sentence in why(lambda: come(text, callers(stored=stored)))


def test_where_the_configuration_has_a_key_of_the_id_the_databases_signs_nothing() -> None:
    text = token("s", "app", exp=int(NOW) + 9, user="a")
    known = callers(stored=row(secret_of("s")), keys=[entry("app", delegating=True, signing=True)])
    assert "signature is not the one" in why(lambda: come(text, known))
    assert come(token("fl_app_secret", "app", exp=int(NOW) + 9, user="a"), known).user == "app/a"


@given(st.data())
def test_whatever_is_changed_in_a_token_it_says_the_same_or_nothing(data: st.DataObject) -> None:
    text = at(tier="free", models=["m"], priority=0, jti="a", uses=1)
    place = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 3))
    put = data.draw(st.text("AZaz09-_.= \n\u0660{}", max_size=3))
    changed = text[:place] + put + text[place + cut :]
    try:
        told = 401 if come(changed) == come(text) else 200
    except ApiError as error:
        told = error.status
    assert told == 401


@given(
    st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_any_claims_and_any_header_get_a_caller_or_a_sentence(said: bytes) -> None:
    for text in (
        sealed(said, b'{"exp":1,"user":"a"}', derived(SECRET)),
        sealed(b'{"alg":"HS256","kid":"site"}', said, derived(SECRET)),
        said.decode("latin-1"),
    ):
        with pytest.raises(ApiError) as refused:
            come(text)
        assert refused.value.status == 401
        json.dumps(refused.value.message).encode()
