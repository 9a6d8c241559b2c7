"""Endpoints: which one a URL means, what passes, what a request comes to."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from fairlane.gateway.configuration import ActiveConfig, with_endpoints
from fairlane.gateway.endpoints.endpoints import (
    BadUrl,
    Endpoint,
    Endpoints,
    NoEndpoint,
    WrongMethod,
    per_second,
)
from fairlane.gateway.endpoints.headers import (
    CREDENTIALS,
    MAX_SET,
    OF_A_CONNECTION,
    BadHeader,
    own_header,
    passed_headers,
    passing_name,
)
from fairlane.gateway.endpoints.payloads import payload_of, worker_payload
from fairlane.gateway.endpoints.settings import EndpointSettings
from fairlane.gateway.settings import Settings
from fairlane.gateway.settings.flatten import flatten
from fairlane.gateway.settings.model import notes
from fairlane.workers.adapters.endpoints.headers import outgoing
from fairlane.workers.adapters.targets import Pattern, read_target


def endpoint(name: str, url: str = "https://a.example/v1/*", **more: Any) -> Endpoint:
    return Endpoint(name, Pattern.read(url), **more)


def test_the_pattern_that_says_it_most_exactly_counts() -> None:
    endpoints = Endpoints(
        [
            endpoint("all", "https://a.example/*"),
            endpoint("v1", "https://a.example/v1/*", methods=("GET",)),
            endpoint("make", "https://a.example/v1/make", methods=("POST",)),
            endpoint("of", "https://a.example/v1/*/make", methods=("POST",)),
            endpoint("put", "https://a.example/v1/make", methods=("PUT",)),
        ]
    )
    for url, method, name in (
        ("https://a.example/other", "GET", "all"),
        ("https://a.example/v1/other", "GET", "v1"),
        ("https://a.example/v1/make", "POST", "make"),
        ("https://a.example/v1/make", "PUT", "put"),
        ("https://a.example/v1/7/make", "POST", "of"),
        ("https://a.example/v1/make", "", "make"),
        ("https://a.example/v1/other", "", "v1"),
    ):
        assert endpoints.find(url, method)[0].name == name
    with pytest.raises(WrongMethod, match="takes GET, not POST"):  # though `all` would take it
        endpoints.find("https://a.example/v1/other", "POST")
    with pytest.raises(WrongMethod, match="takes POST, PUT, not DELETE"):
        endpoints.find("https://a.example/v1/make", "DELETE")
    with pytest.raises(NoEndpoint):
        endpoints.find("https://b.example/v1/make", "GET")
    with pytest.raises(BadUrl):
        endpoints.find("https://a.example/v1/../x", "GET")
    assert endpoints.of_model("http:make") is endpoints.named("make")
    assert endpoints.of_model("make") is None
    assert len(endpoints) == 5


def test_who_may_use_one() -> None:
    closed = endpoint("x", keys=frozenset({"a"}), tiers=frozenset({"paid"}))
    assert closed.may_use("a", "paid")
    assert not closed.may_use("a", "free")
    assert not closed.may_use("b", "paid")
    assert endpoint("x").may_use("", "free")


def test_what_must_not_come_twice_has_one_try() -> None:
    assert [endpoint("x", retries=2).max_tries(method) for method in ("GET", "PUT", "POST", "PATCH")] == [
        3,
        3,
        1,
        1,
    ]


@pytest.mark.parametrize(
    "name", [*sorted(CREDENTIALS | OF_A_CONNECTION), "X-Forwarded-Host", "Proxy-X", "Forwarded", "Via"]
)
def test_credentials_and_what_belongs_to_a_connection_never_pass(name: str) -> None:
    with pytest.raises(BadHeader):
        passing_name(name.upper())
    with pytest.raises(BadHeader):
        passed_headers([(name, "x")], {"accept"})


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\x00", "日本", "a" * 9000, "a\x7f"])
def test_the_value_of_a_header_is_one_line(value: str) -> None:
    with pytest.raises(BadHeader):
        passed_headers([("accept", value)], {"accept"})
    with pytest.raises(BadHeader):
        own_header("Authorization", value)


def test_headers_that_may_pass_are_told_in_small_letters_and_counted() -> None:
    assert passed_headers([("Accept", " a/b ")], {"accept"}) == [("accept", "a/b")]
    assert own_header("Authorization", "Bearer x") == ("authorization", "Bearer x")
    with pytest.raises(BadHeader, match="at most 64"):
        passed_headers([("accept", "a")] * 65, {"accept"})
    with pytest.raises(BadHeader, match="together"):
        passed_headers([("accept", "a" * 8000)] * 5, {"accept"})
    most = [*[("accept", "a" * 8000)] * 2, *[("accept", "a")] * 2]
    names = [f"x-{number}" for number in range(MAX_SET)]
    said = {
        "url": "https://a.example/",
        "set_headers": {**dict.fromkeys(names, ""), names[0]: "a" * 8000, names[1]: "a" * 7900},
    }
    passed, own = (
        passed_headers(most, {"accept"}),
        EndpointSettings.model_validate(said).made("x").set_headers,
    )
    assert len(outgoing([*passed, ("content-type", "text/plain"), *own])) == len(passed) + len(own) + 1, (
        "a worker takes all"
    )
    for wrong in (dict.fromkeys(names[:3], "a" * 8000), dict.fromkeys([*names, "x-more"], "")):
        with pytest.raises(ValidationError, match="set_headers"):
            EndpointSettings.model_validate({**said, "set_headers": wrong})
    for name in ("a b", "a:b", "", "ä", "a\n"):
        with pytest.raises(BadHeader):
            passing_name(name)


def test_a_request_goes_by_what_holds_when_its_turn_comes() -> None:
    before = endpoint("x", headers=frozenset({"accept"}))
    target = read_target("https://a.example/v1/make?q=1")
    payload = payload_of(
        before,
        target,
        "POST",
        [("accept", "a"), ("x-key", "theirs"), ("content-type", "b/c")],
        body=b'"b\\u00f6dy"',
    )
    assert b"rules" not in payload
    now = endpoint(
        "x",
        headers=frozenset({"x-key"}),
        set_headers=(("x-key", "secret"),),
        timeout_ms=5,
        allow_private=("10.0.0.0/8",),
    )
    told = json.loads(worker_payload(Endpoints([now]), "http:x", payload) or b"")
    assert told == {
        "endpoint": "x",
        "method": "POST",
        "url": "https://a.example/v1/make?q=1",
        "headers": [["content-type", "b/c"], ["x-key", "secret"]],
        "body": "bödy",
        "rules": {
            "pattern": "https://a.example/v1/*",
            "timeoutMs": 5,
            "maxResponseBytes": 1 << 20,
            "allowPrivate": ["10.0.0.0/8"],
        },
    }
    for other in (
        Endpoints(),
        Endpoints([endpoint("x", "https://a.example/v2/*")]),
        Endpoints([endpoint("x", methods=("GET",))]),
    ):
        assert worker_payload(other, "http:x", payload) is None
    assert worker_payload(Endpoints([now]), "http:x", b'{"anything": 1}') is None
    assert worker_payload(Endpoints([now]), "http:x", b"[]") is None


def test_what_an_endpoint_takes_is_the_least_of_slots_and_windows() -> None:
    assert per_second(8, 400, "") == 20
    assert per_second(8, 400, "50/1s") == 20
    assert per_second(8, 100, "50/1s, 600/1m") == 10
    assert per_second(0, None, "50/1s") == 50
    assert per_second(8, None, "") is None
    assert per_second(0, 400, "") is None


def test_settings_become_models_of_their_own() -> None:
    said = {"image": EndpointSettings(url="https://a.example/*", concurrency=3, windows="5/1s, 100/1m")}
    settings = Settings(models={"m": {"concurrency": 1}}, endpoints=said)  # type: ignore[dict-item]
    merged, endpoints = with_endpoints(
        settings, {"image": said["image"], "other": EndpointSettings(url="https://b.example/")}
    )
    assert set(merged.models) == {"m", "http:image", "http:other"}
    model = merged.models["http:image"]
    assert (model.concurrency, model.cost, model.windows) == (3, "requests", "5/1s, 100/1m")
    assert merged.models["http:other"].windows is None
    assert [one.name for one in endpoints] == ["image", "other"]
    assert set(settings.models) == {"m"}
    current = ActiveConfig(settings)
    current.take_endpoints({"other": EndpointSettings(url="https://b.example/")}, 5)
    assert set(current.settings.models) == set(merged.models)
    assert current.settings.origins is settings.origins
    assert current.replace(Settings()) == {"endpoints_removed": ["image"], "models_removed": ["m"]}
    assert set(current.settings.models) == {"http:other"}
    current.take_endpoints({}, 6)
    assert current.settings.models == {}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"models": {"http:x": {}}}, "is an endpoint's"),
        ({"routes": {"http:x": {"model": "m"}}}, "is an endpoint's"),
        ({"routes": {"r": {"model": "http:x"}}}, "is not the name of a model"),
        ({"models": {"m": {"fallbacks": ["http:x"]}}}, "is not the name of a model"),
        ({"upstreams": {"u": {"provider": "vllm", "models": ["http:x"]}}}, "is an endpoint's"),
        (
            {"endpoints": {"a": {"url": "https://a.example/*"}, "b": {"url": "https://A.example:443/*"}}},
            "the same url",
        ),
        ({"endpoints": {"a": {"url": "https://a.example/*", "tiers": ["gold"]}}}, "no queue has the tier"),
        ({"endpoints": {"a:b": {"url": "https://a.example/*"}}}, "match pattern"),
        ({"endpoints": {"a": {"url": "https://a.example/*", "windows": "1/1s, 5/1s"}}}, "length"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Settings.model_validate(said)


def test_two_endpoints_may_share_a_url_with_other_methods() -> None:
    settings = Settings.model_validate(
        {
            "endpoints": {
                "a": {"url": "https://a.example/*", "methods": ["GET"]},
                "b": {"url": "https://a.example/*", "methods": ["POST"]},
            }
        }
    )
    endpoints = with_endpoints(settings, {})[1]
    assert endpoints.find("https://a.example/x", "POST")[0].name == "b"


def test_no_secret_is_shown() -> None:
    settings = Settings.model_validate(
        {
            "endpoints": {
                "a": {"url": "https://a.example/*", "set_headers": {"Authorization": "Bearer hidden"}}
            }
        }
    )
    made = with_endpoints(settings, {})[1].named("a")
    assert made is not None
    assert made.set_headers == (("authorization", "Bearer hidden"),)
    for text in (repr(settings), repr(made), settings.model_dump_json(), str([*flatten(settings)])):
        assert "hidden" not in text
    [leaf] = [leaf for leaf in flatten(settings) if leaf.loc[-1] == "set_headers"]
    assert leaf.value == {"authorization": "(set)"}


@pytest.mark.parametrize(
    ("said", "networks"),
    [
        ({"url": "http://localhost:9000/x"}, '"127.0.0.1/32", "::1/128"'),
        ({"url": "http://10.1.2.3/x"}, '"10.1.2.3/32"'),
        ({"url": "http://[::1]/x", "allow_private": ["127.0.0.0/8"]}, '"::1/128"'),
        ({"url": "http://localhost/x", "allow_private": ["127.0.0.0/8", "::1/128"]}, ""),
        ({"url": "http://10.1.2.3/x", "allow_private": ["10.0.0.0/8"]}, ""),
        ({"url": "http://168.63.129.16/x"}, '"168.63.129.16/32"'),
        ({"url": "http://[::ffff:10.1.2.3]/x"}, '"10.1.2.3/32"'),
        ({"url": "http://[::ffff:10.1.2.3]/x", "allow_private": ["10.0.0.0/8"]}, ""),
        ({"url": "http://8.8.8.8/x"}, ""),
        ({"url": "http://a.example/x"}, ""),
    ],
)
def test_an_endpoint_at_a_private_address_that_it_does_not_allow_is_warned_of(
    said: dict[str, Any], networks: str
) -> None:
    told = [note for note in notes(Settings(endpoints={"a": said})) if "endpoints.a.url" in note]
    assert [f"[{networks}]" in note for note in told] == ([True] if networks else [])
