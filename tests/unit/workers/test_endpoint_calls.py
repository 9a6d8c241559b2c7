"""A task's payload as a call, its headers, compressed answers, and what answers come to."""

import json
from typing import Any

import httpx2
import pytest

from fairlane.workers.adapters.endpoints.calls import read_call
from fairlane.workers.adapters.endpoints.client import Answer
from fairlane.workers.adapters.endpoints.headers import MAX_TOTAL_HEADERS, incoming, outgoing
from fairlane.workers.adapters.endpoints.outcomes import result
from fairlane.workers.sdk import TaskError

RULES: dict[str, Any] = {"pattern": "https://a.example/v1/*", "timeoutMs": 1000, "maxResponseBytes": 1000}


def payload(**more: Any) -> bytes:
    rules = RULES | more.pop("rules", {})
    whole = {"endpoint": "e", "method": "GET", "url": "https://a.example/v1/x", "rules": rules, **more}
    return json.dumps(whole).encode()


def said(status: int = 200, body: bytes = b"", **headers: str) -> Answer:
    named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Answer(status, httpx2.Headers(named), body)


def test_a_call_is_what_the_payload_says() -> None:
    call = read_call(
        payload(method="PUT", headers=[["A", "b"]], bodyBase64="AP8=", rules={"allowPrivate": ["10.0.0.0/8"]})
    )
    assert (call.method, call.headers, call.body, call.idempotent) == ("PUT", (("a", "b"),), b"\0\xff", True)
    assert call.target.url == "https://a.example/v1/x"
    assert [str(network) for network in call.allowed] == ["10.0.0.0/8"]
    assert not read_call(payload(method="POST")).idempotent
    assert not read_call(payload(method="PATCH")).idempotent


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"method": "get"}, "method"),
        ({"method": "CONNECT"}, "method"),
        ({"method": "TRACE"}, "method"),
        ({"method": "GET / HTTP/1.1\r\nX: y"}, "method"),
        ({"url": "https://b.example/v1/x"}, "pattern"),
        ({"url": "http://a.example/v1/x"}, "pattern"),
        ({"url": "https://a.example:8443/v1/x"}, "pattern"),
        ({"url": "https://a.example/v2/x"}, "pattern"),
        ({"url": "https://a.example/v1/../admin"}, "segments"),
        ({"url": "https://a.example@b.example/v1/x"}, "user"),
        ({"url": "file:///etc/passwd"}, "http"),
        ({"url": "https://a.example/v1/x\r\nHost: b"}, "percent-encoded"),
        ({"headers": [["a b", "c"]]}, "name"),
        ({"headers": [["a", "b\r\nHost: evil"]]}, "header a"),
        ({"headers": [["a", "b\0"]]}, "header a"),
        ({"headers": [["a", "\u20ac"]]}, "header a"),
        ({"headers": [["a", "b"]] * (MAX_TOTAL_HEADERS + 1)}, "headers"),
        ({"headers": [["a", "b" * 40_000]]}, "headers"),
        ({"body": "a", "bodyBase64": "YQ=="}, "both"),
        ({"bodyBase64": "Y!Q=="}, "base64"),
        ({"body": 1}, "payload"),
        ({"rules": {"maxResponseBytes": 1 << 30}}, "payload"),
        ({"rules": {"allowPrivate": ["10.0.0.0/33"]}}, "10.0.0.0/33"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused_with_a_sentence(more: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_call(payload(**more))


def test_headers_of_a_connection_and_of_ours_do_not_go_out() -> None:
    given = [
        ("Host", "evil"),
        ("Content-Length", "3"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "keep-alive, X-Hop"),
        ("X-Hop", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authorization", "Basic x"),
        ("Proxy-Connection", "close"),
        ("TE", "trailers"),
        ("Trailer", "x"),
        ("Upgrade", "h2c"),
        ("Expect", "100-continue"),
        ("Accept-Encoding", "br"),
        ("HTTP2-Settings", "x"),
        ("Authorization", " Bearer of the operator "),
        ("X-Kept", "2"),
    ]
    assert outgoing(given) == [("authorization", "Bearer of the operator"), ("x-kept", "2")]


def test_headers_of_a_connection_and_credentials_do_not_come_back() -> None:
    given = [
        (b"Connection", b"close, x-hop"),
        (b"X-Hop", b"1"),
        (b"Set-Cookie", b"session=secret"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Proxy-Authenticate", b"Basic"),
        (b"Content-Encoding", b"gzip"),
        (b"Content-Length", b"9"),
    ]
    for name in ("grün".encode(), "grün".encode("latin-1")):
        headers, kept = httpx2.Headers([*given, (b"X-Name", name)]), [("x-name", "grün")]
        assert incoming(headers, decoded=True) == kept
        assert incoming(headers, decoded=False) == [
            ("content-encoding", "gzip"),
            ("content-length", "9"),
            *kept,
        ]


def test_answers_below_500_are_results() -> None:
    call = read_call(payload(method="POST"))
    for status in (200, 204, 302, 304, 400, 401, 404, 409, 418, 499):
        assert result(call, said(status, b"x"))["status"] == status
    assert result(call, said(body="gr\u00fcn".encode()))["body"] == "grün"
    assert result(call, said(body=b"\xff\x00"))["bodyBase64"] == "/wA="
    assert result(call, said(body=b"a\0b"))["bodyBase64"] == "YQBi"


@pytest.mark.parametrize(
    ("answer", "code", "status", "pause"),
    [
        (said(429), "MODEL_TOO_BUSY", None, 1000),
        (said(429, retry_after="7"), "MODEL_TOO_BUSY", None, 7000),
        (said(503, retry_after="7"), "MODEL_TOO_BUSY", None, 7000),
        (said(429, retry_after="99999"), "MODEL_TOO_BUSY", None, 3_600_000),
        (said(503), "UPSTREAM_ERROR", 503, None),
        (said(503, retry_after="soon"), "UPSTREAM_ERROR", 503, None),
        (said(500), "UPSTREAM_ERROR", 500, None),
        (said(501), "UPSTREAM_ERROR", 501, None),
        (said(504), "UPSTREAM_TIMEOUT", 504, None),
        (said(777), "UPSTREAM_ERROR", None, None),
    ],
)
def test_failures_have_their_codes(answer: Answer, code: str, status: int | None, pause: int | None) -> None:
    with pytest.raises(TaskError) as failed:
        result(read_call(payload()), answer)
    assert (failed.value.code, failed.value.http_status, failed.value.retry_after_ms) == (code, status, pause)
    assert failed.value.retryable


def test_a_failure_tells_what_the_endpoint_said_but_no_secret_of_the_call() -> None:
    call = read_call(payload(headers=[["authorization", "Bearer s3cr3t-of-ours"]]))
    body = json.dumps({"error": {"message": "no such key: s3cr3t-of-ours, sorry"}}).encode()
    with pytest.raises(TaskError) as failed:
        result(call, said(500, body))
    assert failed.value.message == "The endpoint answered 500: no such key: ***, sorry"
