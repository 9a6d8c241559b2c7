"""What is signed, and what only looks so: tokens and whole requests, against those who would like to be somebody else."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.signing import derived, part, sealed, signature, token

from fairlane.gateway.accounts.callers import Caller, Callers, SignedAsWhole, StoredKeys, Unauthorized
from fairlane.gateway.accounts.signing import CLAIMS, MAX_TOKEN_CHARS, BadSignature, TokenForbids, signing_key
from fairlane.gateway.accounts.stored import StoredSecret, read_key, stored_keys
from fairlane.gateway.calls.http import Request
from fairlane.gateway.errors import ApiError
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
    entry("site", delegating=True, signing=True, tier="paid", models=["m", "n"], admin=True),
    entry("plain"),
    entry("service", signing=True),
    entry("strict", signing=True, signed_only=True),
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
    with pytest.raises(ApiError) as refused:
        attempt()
    assert refused.value.status == status
    return refused.value.message


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
    assert callers().knows(caller)


def test_a_token_without_a_user_stands_for_itself() -> None:
    one, again, other = (
        come(token(SECRET, exp=int(NOW) + seconds, jti=name))
        for seconds, name in ((5, "a"), (5, "a"), (5, "b"))
    )
    assert one.user == again.user != other.user
    assert one.user.startswith("site/token:")
    assert "user" in why(lambda: come(token(SECRET, exp=int(NOW) + 5)))


def test_a_key_that_is_no_key_of_tokens_makes_none() -> None:
    of_service = token("fl_service_secret", "service", exp=int(NOW) + 9, user="ann")
    assert "would have to be delegating" in why(lambda: come(of_service))
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
        b'{"alg":"HS256","kid":"site"}', text.replace("EXP", str(int(NOW) + 600)).encode(), derived(SECRET)
    )


ATTACKS: dict[str, tuple[str, str]] = {
    "no algorithm": (head('{"alg":"none","kid":"site"}'), "must be signed with HS256"),
    "no algorithm, no signature": (
        head('{"alg":"none","kid":"site"}').rpartition(".")[0] + ".",
        "must be signed with HS256",
    ),
    "no signature": (at().rpartition(".")[0] + ".", "signature is not base64url"),
    "another algorithm": (head('{"alg":"RS256","kid":"site"}'), "must be signed with HS256"),
    "its name in small letters": (head('{"alg":"hs256","kid":"site"}'), "must be signed with HS256"),
    "a list of algorithms": (head('{"alg":["HS256"],"kid":"site"}'), "must be signed with HS256"),
    "an algorithm twice": (head('{"alg":"none","alg":"HS256","kid":"site"}'), "each of its members once"),
    "no algorithm is said": (head('{"kid":"site"}'), "must be signed with HS256"),
    "a key in the header": (head('{"alg":"HS256","kid":"site","jwk":{"k":"aaaa"}}'), "no 'jwk'"),
    "a key's address": (head('{"alg":"HS256","kid":"site","jku":"http://x"}'), "no 'jku'"),
    "something critical": (head('{"alg":"HS256","kid":"site","crit":["b64"],"b64":false}'), "no 'crit'"),
    "no key": (head('{"alg":"HS256"}'), "kid, the key's id"),
    "a key that is a list": (head('{"alg":"HS256","kid":["site"]}'), "kid, the key's id"),
    "a path as the key": (head('{"alg":"HS256","kid":"../../dev/null"}'), "no valid key '../../dev/null'"),
    "a key of odd letters": (head('{"alg":"HS256","kid":"\\ud800"}'), "no valid key '\\ud800'"),
    "a header that is a list": (head("[]"), "must be a JSON object"),
    "a header without an end": (head("[" * 2500), "must be a JSON object"),
    "claims without an end": (body('{"exp":EXP,"user":' + "[" * 2500), "must be a JSON object"),
    "no end": (body('{"user":"ann"}'), "when it ends: exp"),
    "an end that is null": (body('{"exp":null,"user":"ann"}'), "claim exp is wrong"),
    "an end that is a text": (body('{"exp":"EXP","user":"ann"}'), "claim exp is wrong"),
    "an end with a fraction": (body('{"exp":EXP.5,"user":"ann"}'), "claim exp is wrong"),
    "an end in floats": (body('{"exp":1e308,"user":"ann"}'), "claim exp is wrong"),
    "an end that is no number": (body('{"exp":NaN,"user":"ann"}'), "must be a JSON object"),
    "an endless end": (body('{"exp":Infinity,"user":"ann"}'), "must be a JSON object"),
    "an end that is true": (body('{"exp":true,"user":"ann"}'), "claim exp is wrong"),
    "an end beyond all numbers": (body('{"exp":' + "9" * 400 + ',"user":"ann"}'), "claim exp is wrong"),
    "an end before all numbers": (body('{"exp":-1,"user":"ann"}'), "claim exp is wrong"),
    "an end twice": (body('{"exp":1,"exp":EXP,"user":"ann"}'), "each of its members once"),
    "a user twice": (body('{"exp":EXP,"user":"ann","user":"bob"}'), "each of its members once"),
    "a day and more": (token(SECRET, exp=int(NOW) + 86_461, user="ann"), "lasts longer than a day"),
    "of tomorrow": (at(nbf=int(NOW) + 61), "not valid yet"),
    "made tomorrow": (at(iat=int(NOW) + 61), "not valid yet"),
    "a user of two lines": (at(user="a\nb"), "printable"),
    "a user without a name": (at(user=""), "claim user is wrong"),
    "a user of blanks": (at(user="  "), "printable"),
    "half a letter": (at(user="\ud800"), "printable"),
    "a user of many letters": (at(user="x" * 129), "claim user is wrong"),
    "a user that is a number": (at(user=7), "claim user is wrong"),
    "an unknown tier": (at(tier="gold"), "tier 'gold' is none: free, paid"),
    "a claim that is none": (at(prioritty=1), "'prioritty', which is none; did you mean priority"),
    "a claim of a dashboard": (at(admin=True), "'admin', which is none"),
    "a scope": (at(scopes=["admin"]), "'scopes', which is none"),
    "a priority above all": (at(priority=6), "claim priority is wrong"),
    "a priority that is true": (at(priority=True), "claim priority is wrong"),
    "all models by name": (at(models=["*"]), "must be names"),
    "no model": (at(models=[]), "claim models is wrong"),
    "a model of odd letters": (at(models=["\ud800"]), "must be names"),
    "a model that is a text": (at(models="m"), "claim models is wrong"),
    "an unknown mode": (at(mode="fast"), "claim mode is wrong"),
    "uses without a name": (at(uses=3), "needs a name of its own (jti)"),
    "no uses": (at(uses=0, jti="a"), "claim uses is wrong"),
    "half a use": (at(uses=0.5, jti="a"), "claim uses is wrong"),
    "a name of two words": (at(jti="a b"), "claim jti is wrong"),
    "a name with a line's end": (at(jti="ab\n"), "claim jti is wrong"),
    "two bounds of output": (at(max_tokens=3, max_completion_tokens=4), "give the one that"),
    "an empty claim set": (
        sealed(b'{"alg":"HS256","kid":"site"}', b"", derived(SECRET)),
        "claims is not base64url",
    ),
    "claims that are no text": (
        sealed(b'{"alg":"HS256","kid":"site"}', b"\xff\xfe", derived(SECRET)),
        "must be a JSON object",
    ),
    "padding": (at() + "=", "signature is not base64url"),
    "a line's end": (at().replace(".", ".\n", 1), "claims is not base64url"),
    "not ASCII": (at() + "\u0660", "signature is not base64url"),
    "too long": (at(user="x", models=["m" * 200] * 30), f"longer than {MAX_TOKEN_CHARS}"),
    "dots alone": ("..", "header is not base64url"),
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
    with pytest.raises(BadSignature) as refused:
        come(text, callers(NOW + 60))
    assert (refused.value.code, refused.value.message) == (
        "TOKEN_EXPIRED",
        "The token has expired: ask for another one",
    )
    assert come(token(SECRET, exp=int(NOW) + 86_400, user="ann")).user == "site/ann"


def test_headers_name_nobody_else() -> None:
    assert come(at(), x_fairlane_user="ann", x_fairlane_tier="paid").user == "site/ann"
    for header in ({"x_fairlane_user": "bob"}, {"x_fairlane_tier": "free"}, {"x_fairlane_user": ""}):
        with pytest.raises(TokenForbids, match="leave X-Fairlane-"):
            come(at(), **header)
    of_elsewhere = token("fl_elsewhere_secret", "elsewhere", exp=int(NOW) + 9, user="ann")
    assert come(of_elsewhere, x_site_user="bob").user == "elsewhere/ann"


def test_every_claim_is_known_to_this_test() -> None:
    assert set(CLAIMS) == {
        *("exp", "nbf", "iat", "jti", "user", "tier", "priority", "mode", "models"),
        *("max_tokens", "max_completion_tokens", "timeout", "uses"),
    }


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


# ---- whole requests ----------


async def nothing(*_: object) -> Any:
    """Stands for ASGI's `receive` and `send`."""


class Asked(Request):
    """The head of a request, as it comes."""

    def __init__(
        self, headers: dict[str, str], method: str = "POST", path: str = "/api/openai", query: str = ""
    ) -> None:
        scope = {
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        super().__init__(scope, nothing, nothing)


def sign(
    secret: str = SECRET, method: str = "POST", target: str = "/api/openai", **more: Any
) -> dict[str, str]:
    return signature(secret, method, target, b"{}", **{"at": NOW, **more})


def test_a_signed_request_is_its_keys_with_the_headers_that_are_signed() -> None:
    caller, found = callers().authenticate_signed(Asked(sign(x_fairlane_user="zoë", x_fairlane_tier="free")))
    assert (caller.user, caller.tier, caller.claims) == ("site/zoë", "free", None)
    assert found.body == hashlib.sha256(b"{}").hexdigest()
    target = "/api/task/a%2Fb/events?after=1-2&x=%20"
    path, _, query = target.partition("?")
    strict = sign("fl_strict_secret", "GET", target, kid="strict")
    assert callers().authenticate_signed(Asked(strict, "GET", path, query))[0].user == "strict"
    with pytest.raises(SignedAsWhole):
        callers().authenticate(Asked(sign()).header)


def test_a_key_that_only_signs_is_not_to_be_sent() -> None:
    assert "signed_only" in why(lambda: come("fl_strict_secret"))
    assert come("fl_service_secret").user == "service"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Asked(sign(), "GET"), "signature is wrong"),
        (Asked(sign(), path="/api/tasks"), "signature is wrong"),
        (Asked(sign(), query="a=1"), "signature is wrong"),
        (Asked(sign() | {"X-Fairlane-Tier": "free"}), "signature is wrong"),
        (Asked(sign() | {"x-fairlane-priority": "5"}), "signature is wrong"),
        (Asked(sign(x_fairlane_user="ann") | {"x-fairlane-user": "bob"}), "signature is wrong"),
        (Asked(sign("fl_elsewhere_secret", kid="elsewhere") | {"X-Site-User": "bob"}), "signature is wrong"),
        (Asked(sign("other")), "signature is wrong"),
        (Asked(sign("fl_plain_secret", kid="plain")), "may not sign"),
        (Asked(sign(kid="nobody")), "no valid key"),
        (Asked(sign(at=NOW - 301)), "differs from the gateway's by more than 300"),
        (Asked(sign(at=NOW + 301)), "differs from the gateway's by more than 300"),
        (Asked(sign(nonce="short")), "nonce must be"),
        (Asked(sign(nonce="a" * 65)), "nonce must be"),
        (Asked(sign(nonce="a" * 15 + ":")), "nonce must be"),
        (Asked({"Authorization": "Fairlane-HMAC-SHA256 "}), "has the header Authorization"),
        (Asked({"Authorization": sign()["Authorization"] + ",keyid=plain"}), "has the header Authorization"),
        (Asked({"Authorization": sign()["Authorization"] + ",x=1"}), "has the header Authorization"),
        (Asked({"Authorization": sign()["Authorization"].replace("ts=", "ts=-")}), "ts must be"),
        (Asked({"Authorization": sign()["Authorization"].replace("ts=", "ts=\u0661")}), "ts must be"),
        (Asked({"Authorization": sign()["Authorization"][:-1]}), "signature must be 64"),
        (Asked({"Authorization": sign()["Authorization"].replace("body=", "body=A")}), "body must be 64"),
    ],
)
def test_a_request_that_was_changed_or_is_old_is_refused_with_a_sentence(asked: Asked, sentence: str) -> None:
    assert sentence in why(lambda: callers().authenticate_signed(asked))


def test_the_header_in_which_a_key_finds_its_users_is_signed_too() -> None:
    headers = sign("fl_elsewhere_secret", kid="elsewhere", x_site_user="bob")
    assert callers().authenticate_signed(Asked(headers))[0].user == "elsewhere/bob"


@pytest.mark.parametrize(("seconds", "holds"), [(-300, True), (300, True), (-300.5, False)])
def test_a_request_is_good_for_five_minutes(seconds: float, holds: bool) -> None:
    asked = Asked(sign(at=int(NOW)))
    if holds:
        assert callers(NOW - seconds).authenticate_signed(asked)
    else:
        assert "sign each try anew" in why(lambda: callers(NOW - seconds).authenticate_signed(asked))


def test_a_token_is_no_signature_of_a_request_and_the_other_way_round() -> None:
    text = at()
    signed, _, mac = text.rpartition(".")
    assert "\n" not in signed, "what is signed of a request has lines"
    assert "64 hex digits" in why(
        lambda: callers().authenticate_signed(
            Asked({"Authorization": sign()["Authorization"].rpartition("=")[0] + "=" + mac})
        )
    )


def test_an_open_gateway_looks_at_no_signature() -> None:
    known = Callers(Settings())
    assert known.authenticate(Asked(sign(at=1)).header).open
    assert known.authenticate({b"authorization": "Bearer a.b.c"}.get).open


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
        with pytest.raises(ApiError):
            callers().authenticate_signed(
                Asked({"Authorization": "Fairlane-HMAC-SHA256 " + said.decode("latin-1")})
            )
