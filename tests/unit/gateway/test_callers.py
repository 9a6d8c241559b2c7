"""Who a request is from."""

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.accounts.callers import MAX_KINDS, BadTier, BadUser, Caller, Callers
from fairlane.gateway.accounts.no_auth import access_warnings, no_auth_rejection
from fairlane.gateway.errors import Unauthorized
from fairlane.gateway.http.request import Request
from fairlane.gateway.settings import Settings


def sha(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


CONFIGURED: dict[str, Any] = {
    "keys": [
        {"id": "acme", "tier": "paid", "sha256": sha("acme-secret"), "weight": 2.5, "models": ["m1"]},
        {"id": "site", "delegating": True, "sha256": sha("site-secret")},
        {"id": "ops", "scopes": ["admin"], "sha256": sha("ops-secret").upper()},
    ],
    "workers": [{"id": "gpu-1", "sha256": sha("gpu-secret"), "models": ["m1", "m2"]}],
}


def callers(**values: Any) -> Callers:
    return Callers(Settings.model_validate(values))


def asked(headers: Mapping[str, str], **values: Any) -> Caller:
    known = {name.encode(): value for name, value in headers.items()}
    return callers(**(values or CONFIGURED)).authenticate(known.get)


def bearer(secret: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}", **{k.replace("_", "-"): v for k, v in more.items()}}


def test_key_is_its_own_user_whatever_the_headers_say() -> None:
    headers = bearer("acme-secret", x_fairlane_user="root", x_fairlane_tier="free")
    assert asked(headers) == Caller(
        "acme", "paid", "acme", weight=2.5, models=("m1",), secret_id=sha("acme-secret")[:16]
    )


def test_delegating_key_names_user_and_tier() -> None:
    headers = bearer("site-secret", x_fairlane_user="alice", x_fairlane_tier="paid")
    caller = asked(headers)
    assert (caller.user, caller.tier, caller.key_id, caller.delegating) == (
        "site/alice",
        "paid",
        "site",
        True,
    )
    assert asked(bearer("site-secret")).user == "site"
    assert asked(bearer("site-secret")).tier == "free"


@pytest.mark.parametrize("name", ["acme", "site", "ops", "/acme", "acme/", "../acme", "site/acme"])
def test_no_name_that_a_delegating_key_gives_is_the_user_of_another_key(name: str) -> None:
    named = asked(bearer("site-secret", x_fairlane_user=name)).user
    assert named.partition("/") == ("site", "/", name)
    others = {asked(bearer(f"{key}-secret")).user for key in ("acme", "site", "ops")}
    assert named not in others


def test_an_open_gateway_takes_names_as_they_are_given() -> None:
    assert asked({"x-fairlane-user": "site/bob"}, host="127.0.0.1").user == "site/bob"


def test_admin_key_is_an_admin_and_others_are_not() -> None:
    assert asked(bearer("ops-secret")).admin
    assert not asked(bearer("site-secret")).admin


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "acme-secret"},
        {"authorization": "Basic acme-secret"},
        bearer("acme-secret2"),
        bearer("acme-secre"),
        bearer(sha("acme-secret")),
        bearer("gpu-secret"),
        bearer("x" * 10_000),
        bearer("\ud800"),
    ],
)
def test_anything_but_a_valid_key_gets_the_same_refusal(headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized) as refused:
        asked(headers)
    assert (refused.value.status, refused.value.message) == (401, Unauthorized().message)


def test_unknown_tier_of_a_trusted_caller_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadTier, match="free, paid"):
        asked(bearer("site-secret", x_fairlane_tier="gold"))


@pytest.mark.parametrize("name", ["", "   ", "x" * 129, "a\x00b", "a\tb", "a\nb", "\x7f"])
def test_unusable_user_names_are_refused(name: str) -> None:
    with pytest.raises(BadUser):
        asked(bearer("site-secret", x_fairlane_user=name))


@pytest.mark.parametrize("name", ["alice", "a b", "x" * 128, "李雷", "Zoë", "user@example.com", "a:b"])
def test_user_names_in_any_script_are_read_from_header_bytes(name: str) -> None:
    as_header = name.encode("utf-8").decode("latin-1")
    assert asked(bearer("site-secret", x_fairlane_user=as_header)).user == f"site/{name}"


def test_without_keys_on_loopback_headers_count_at_face_value() -> None:
    plain = asked({"authorization": "Bearer sk-anything"}, host="127.0.0.1")
    assert plain == Caller("anonymous", "free", "", admin=True, delegating=True, open=True)
    named = asked({"x-fairlane-user": "bob", "x-fairlane-tier": "paid"}, host="127.0.0.1")
    assert (named.user, named.tier) == ("bob", "paid")


def test_without_keys_off_loopback_nobody_is_let_in() -> None:
    with pytest.raises(Unauthorized):
        asked({}, host="0.0.0.0")
    assert callers(host="0.0.0.0").authenticate_worker(None) is None


def test_keys_close_a_gateway_on_loopback_too() -> None:
    with pytest.raises(Unauthorized):
        asked({})


def test_task_is_seen_only_by_its_user_through_the_same_key() -> None:
    alice = asked(bearer("site-secret", x_fairlane_user="alice"))
    assert alice.may_see("site", "site/alice")
    assert not alice.may_see("site", "site/bob")
    assert not alice.may_see("site", "site")
    impostor = asked(bearer("site-secret", x_fairlane_user="acme"))
    assert not impostor.may_see("acme", "acme")


def test_worker_is_known_by_its_token() -> None:
    known = callers(**CONFIGURED)
    identity = known.authenticate_worker("Bearer gpu-secret")
    assert identity is not None
    assert (identity.id, identity.models) == ("gpu-1", ("m1", "m2"))
    for authorization in (None, "", "Bearer acme-secret", "gpu-secret"):
        assert known.authenticate_worker(authorization) is None
    assert known.renewed(identity.sha256) == identity
    assert known.renewed(sha("another")) is None
    assert known.renewed("") is None, "as soon as there are tokens, who came without one must go"


def test_any_worker_may_connect_on_loopback_when_neither_keys_nor_tokens_are_configured() -> None:
    known = callers()
    identity = known.authenticate_worker(None)
    assert identity is not None
    assert identity.models == ("*", "http:*")
    assert known.renewed(identity.sha256) == identity
    assert known.renewed(sha("gpu-secret")) is None


def test_keys_of_callers_close_the_door_to_workers_without_a_token() -> None:
    known = callers(keys=CONFIGURED["keys"])
    for authorization in (None, "Bearer acme-secret", "Bearer ops-secret"):
        assert known.authenticate_worker(authorization) is None


async def nothing(*_: object) -> Any:
    """Stands for ASGI's `receive` and `send`."""


class Head(Request):
    def __init__(
        self, method: str = "GET", path: str = "/", version: str = "1.1", **headers: str | None
    ) -> None:
        told = [
            (name.replace("_", "-").encode(), value.encode("latin-1"))
            for name, value in headers.items()
            if value is not None
        ]
        scope = {"method": method, "path": path, "http_version": version, "headers": told}
        super().__init__(scope, nothing, nothing)


def rejected(known: Callers, head: Head) -> str | None:
    return known.reject_request(head.scope, head.headers, is_plain=head.plain)


def test_open_gateway_refuses_before_asking_and_one_with_keys_does_not() -> None:
    head = Head(host="evil.example", x_forwarded_for="10.0.0.1")
    assert rejected(callers(), head) is not None
    assert rejected(callers(**CONFIGURED), head) is None


def test_gateway_with_allowed_hosts_answers_to_no_other_name() -> None:
    known = callers(**CONFIGURED, allowed_hosts=["LLM.example"])
    assert rejected(known, Head(host="llm.example:8080")) is None
    assert rejected(known, Head(host="127.0.0.1:8080")) is None
    assert rejected(known, Head(host="other.example")) is not None
    assert rejected(known, Head()) is not None


HEADS = st.builds(
    Head,
    method=st.sampled_from(["GET", "POST", "PUT"]),
    path=st.sampled_from(["/api/openai", "/v1/files", "/v1/files/"]),
    version=st.sampled_from(["1.1", "1.0"]),
    host=st.sampled_from([None, "localhost", "127.0.0.1:8080", "llm.example", "evil.example"]),
    content_type=st.sampled_from(
        [None, "application/json", "APPLICATION/JSON; x", "text/plain", "multipart/form-data; boundary=x"]
    ),
    origin=st.sampled_from([None, None, "http://localhost", "https://evil.example"]),
    sec_fetch_site=st.sampled_from([None, None, "cross-site", "none"]),
    via=st.sampled_from([None, None, "1.1 proxy"]),
    x_fairlane_user=st.sampled_from([None, "ann"]),
)


@given(st.booleans(), st.booleans(), st.lists(HEADS, max_size=30))
def test_a_request_is_refused_as_if_none_had_come_before(keyed: bool, hosts: bool, heads: list[Head]) -> None:
    settings = {**(CONFIGURED if keyed else {}), **({"allowed_hosts": ["llm.example"]} if hosts else {})}
    known = callers(**settings)
    for head in heads:
        assert rejected(known, head) == rejected(callers(**settings), head)
        if head.plain and known.open:
            assert known.authenticate(head.proof) == known.anybody


def test_a_bounded_number_of_kinds_of_requests_is_remembered() -> None:
    known = callers()
    for number in range(2 * MAX_KINDS):
        assert rejected(known, Head(host=f"{number}.example")) is not None
    assert known._reject_plain.cache_info().currsize == MAX_KINDS


def test_handshake_of_a_worker_is_held_to_the_same_rules() -> None:
    scope = {"type": "websocket", "headers": [(b"host", b"localhost:8080")]}
    assert callers().reject_worker(scope) is None
    assert callers().reject_worker({"headers": [(b"host", b"evil.example")]}) is not None
    assert callers().reject_worker({"headers": [*scope["headers"], (b"via", b"1.1 x")]}) is not None


def test_an_open_gateway_takes_no_http_1_0_and_one_with_keys_does() -> None:
    head = Head(host="localhost")
    head.scope["http_version"] = "1.0"
    assert "HTTP/1.0" in (rejected(callers(), head) or "")
    assert rejected(callers(**CONFIGURED), head) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {},
            [
                (
                    "may do what an admin may and connect as a worker",
                    "proxy",
                    "fairlane key create scopes=admin --print",
                )
            ],
        ),
        ({"workers": CONFIGURED["workers"]}, [("may do what an admin may; so", "proxy")]),
        (
            {"keys": CONFIGURED["keys"]},
            [("no worker tokens", "/data", "fairlane key create --worker --print")],
        ),
        ({"host": "0.0.0.0"}, [("no worker tokens", "/data")]),
        (CONFIGURED, []),
        ({"cors_origins": ["*"]}, [("proxy",), ("web page",)]),
        ({"allowed_hosts": ["gpu.lan", "localhost"]}, [("proxy",), ("for gpu.lan without any",)]),
    ],
)
def test_an_operator_is_told_who_gets_in(values: dict[str, Any], said: list[tuple[str, ...]]) -> None:
    sentences = access_warnings(Settings.model_validate({"data_dir": "/data", **values}))
    assert len(sentences) == len(said)
    for sentence, words in zip(sentences, said, strict=True):
        assert all(word in sentence for word in words), sentence


LOCAL = {"host": "localhost:8080", "origin": None, "forwarded": False, "content_type": None, "method": "GET"}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"host": "127.0.0.1"},
        {"host": "[::1]:8080"},
        {"host": "gpu.lan:8080"},
        {"method": "POST", "content_type": "application/json; charset=utf-8"},
        {"method": "POST", "content_type": "application/problem+json"},
        {"method": "POST"},
        {"origin": "http://localhost:8080"},
        {"origin": "https://app.example"},
        {"websocket": True},
    ],
)
def test_open_gateway_takes_what_this_machine_asks(changed: dict[str, Any]) -> None:
    allowed: dict[str, Any] = {"allowed_hosts": {"gpu.lan"}, "allowed_origins": {"https://app.example"}}
    assert no_auth_rejection(**{**LOCAL, **allowed, **changed}) is None


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"forwarded": True}, "proxy"),
        ({"host": None}, "localhost"),
        ({"host": ""}, "localhost"),
        ({"host": "evil.example"}, "localhost"),
        ({"host": "localhost.evil.example"}, "localhost"),
        ({"host": "192.168.0.7:8080"}, "localhost"),
        ({"host": "x/y?"}, "localhost"),
        ({"host": "127.0.0.1@evil.example"}, "localhost"),
        ({"origin": "https://evil.example"}, "web page"),
        ({"origin": "http://localhost:3000"}, "web page"),
        ({"origin": "null"}, "web page"),
        ({"origin": "http://localhost:8080", "websocket": True}, "web pages"),
        ({"method": "POST", "content_type": "text/plain"}, "JSON"),
        ({"method": "POST", "content_type": "application/x-www-form-urlencoded"}, "JSON"),
        ({"method": "PUT", "content_type": "multipart/form-data; boundary=x"}, "JSON"),
        ({"method": "POST", "content_type": ""}, "JSON"),
    ],
)
def test_open_gateway_refuses_strangers_with_a_reason(changed: dict[str, Any], word: str) -> None:
    refusal = no_auth_rejection(**{**LOCAL, **changed})
    assert refusal is not None
    assert word in refusal
