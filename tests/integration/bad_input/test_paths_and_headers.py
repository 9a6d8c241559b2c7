"""Paths, methods, queries and headers that make no sense, and requests that are hardly HTTP."""

import contextlib
import socket
from typing import Any

import httpx2
import pytest
from tests.integration.bad_input.conftest import Background
from tests.integration.bad_input.shapes import OPENAI, VALID, check_refused

import fairlane.gateway.http.request

TASK = "01a1fc1b-0232-8009-84a9-bfa34c29bda8"
"""An id that a gateway could have issued."""

PATHS = [
    "/api",
    "/api/",
    "/api/openai/chat",
    "/API/OPENAI",
    "//api/openai",
    "/api/task",
    "/api/task/",
    "/api/task//events",
    "/api/task/x/y/z",
    "/v1",
    "/v1/",
    "/v1/nothing",
    "/v1/chat",
    "/v1/chat/completions/x",
    "/v1/realtime",
    "/favicon.png",
    "/static",
    "/%00",
    "/%ff%fe",
    "/api/%2e%2e",
    "/" + "x" * 1000,
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_path_that_is_none_is_a_404(http: httpx2.Client, method: str, path: str) -> None:
    check_refused(http.request(method, path, json={} if method == "POST" else None), 404)


@pytest.mark.parametrize(
    "path", ["/chat/completions", "/v1//chat/completions", "/openai/v1/chat/completions"]
)
def test_a_call_of_openai_at_a_wrong_path_is_told_the_right_one(http: httpx2.Client, path: str) -> None:
    answer = http.post(path, json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith(
        f"There is no POST {path}. The call is /v1/chat/completions: "
    )


def test_a_path_that_is_too_long_is_refused(http: httpx2.Client) -> None:
    for path in ("/" + "x" * 5000, "/api/task/" + "x" * 5000, "/v1/models/" + "x" * 5000):
        check_refused(http.get(path), 414, 404)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/api/openai", "/api/tasks", f"/api/task/{TASK}/cancel", *OPENAI])
def test_a_wrong_method_for_a_post_is_a_405_that_says_so(http: httpx2.Client, method: str, path: str) -> None:
    answer = http.request(method, path)
    if method == "BREW":
        assert answer.status_code in (400, 405)
        return
    kept = (method, path) == ("GET", "/v1/chat/completions")  # a call of OpenAI's, which is not here
    more = ": chat completions are not kept here, whatever their `store`, so there is no list of them"
    assert check_refused(answer, 405) == "Use POST for this path" + (more if kept else "")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path",
    [f"/api/task/{TASK}", f"/api/task/{TASK}/events", "/api/sse-stream", "/api/admin/overview", "/v1/models"],
)
def test_a_wrong_method_for_a_get_is_a_405_that_says_so(http: httpx2.Client, method: str, path: str) -> None:
    answer = http.request(method, path)
    assert check_refused(answer, 405) == "Use GET for this path"
    assert answer.headers["allow"] == "GET"


def test_health_may_be_asked_by_head(http: httpx2.Client) -> None:
    for path in ("/livez", "/readyz"):
        answer = http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_the_workers_path_by_plain_http_says_that_it_wants_a_websocket(http: httpx2.Client) -> None:
    for method in ("GET", "POST"):
        assert "WebSocket" in check_refused(http.request(method, "/ws"), 426)


TASK_IDS = [
    "x",
    "0",
    "null",
    "%00",
    "%0a",
    "..",
    "%2e%2e%2f",
    "é",
    "😀",
    TASK.upper(),
    TASK + "0",
    "x" * 1500,
    "*",
]


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_a_task_id_that_is_none_is_a_404(http: httpx2.Client, task_id: str) -> None:
    for method, path in (("GET", ""), ("POST", "/cancel"), ("GET", "/events")):
        answer = http.request(method, f"/api/task/{task_id}{path}")
        if "/" not in answer.request.url.path.removeprefix("/api/task/").removesuffix(path):
            check_refused(answer, 404)
    check_refused(http.get("/api/sse-stream", params={"taskId": task_id}), 404)


def test_a_model_that_is_none_is_a_404(http: httpx2.Client) -> None:
    for name in ("%00", "*", "x" * 1500):  # the worker runs models of any other name
        check_refused(http.get(f"/v1/models/{name}"), 404)


@pytest.mark.parametrize(
    "query",
    [
        "&".join(f"a{number}=1" for number in range(500)),
        "taskId=x&taskId=y",
        "%ff=%ff",
        "&&&===",
        "taskId=" + "x" * 20_000,
        "after=%0d%0aX-Evil:1",
        "fromLatest=perhaps",
    ],
)
def test_an_odd_query_is_a_4xx(http: httpx2.Client, query: str) -> None:
    check_refused(http.get(f"/api/sse-stream?{query}"))
    check_refused(http.get(f"/api/task/{TASK}/events?{query}"))


def check_told_again(answer: httpx2.Response) -> None:
    """All events from the first on, after the word that what was seen is not in this log."""
    assert answer.status_code == 200, (answer.status_code, answer.text[:300])
    names = [line for line in answer.text.splitlines() if line.startswith("event: ")]
    assert names[:2] == ["event: gap", "event: restart"]
    assert "event: done" in names
    assert "\nid: \nevent: restart\n" in answer.text


def test_an_event_id_with_line_breaks_in_the_query_splits_no_header_and_no_event(http: httpx2.Client) -> None:
    task_id = http.post("/api/openai", json={"async": True}).json()["taskId"]
    answer = http.get(f"/api/task/{task_id}/events", params={"after": "1-1\r\nX-Evil: 1"})
    check_told_again(answer)
    assert "x-evil" not in answer.headers
    assert "evil" not in answer.text.lower()


BAD_HEADERS: list[tuple[str, Any]] = [
    *[("X-Fairlane-Timeout", bad) for bad in ("soon", "", "nan", "inf", "-Infinity", "1e999", "5s", "0x10")],
    *[("X-Fairlane-Priority", bad) for bad in ("high", "6", "-1", "1.5", "nan", "inf", "", "9" * 500)],
    *[("X-Fairlane-Result-Ttl", bad) for bad in ("day", "0", "-1", "nan", "inf", "")],
    *[("X-Fairlane-Repair", bad) for bad in ("yes", "", "2", "TRUE", "1, 1")],
    *[("X-Fairlane-Mode", bad) for bad in ("fast", "", "STREAM", "stream,batch")],
    *[("X-Fairlane-On-Disconnect", bad) for bad in ("stop", "", "CANCEL")],
    *[("X-Fairlane-Metadata", bad) for bad in ("x", "", "[]", "1", "{", '{"a": NaN}', '{"a":' * 5000)],
    ("X-Fairlane-Metadata", b'{"a": "\xff"}'),
    ("X-Fairlane-Metadata", '{"a": "' + "x" * 5000 + '"}'),
    *[("X-Fairlane-Tier", bad) for bad in ("gold", "", "PAID", "paid, free")],
    *[("X-Fairlane-User", bad) for bad in ("", "u" * 129, b"\x85", "a\tb")],
]


@pytest.mark.parametrize(("name", "value"), BAD_HEADERS)
def test_a_bad_header_of_ours_is_a_400_on_v1(http: httpx2.Client, name: str, value: Any) -> None:
    raw = value if isinstance(value, bytes) else value.encode("latin-1")
    for path in OPENAI:
        answer = http.post(path, json=VALID[path], headers={name.encode(): raw})
        check_refused(answer, 400)


@pytest.mark.parametrize(
    ("name", "value"),
    [header for header in BAD_HEADERS if header[0] in ("X-Fairlane-Tier", "X-Fairlane-User")],
)
def test_a_bad_user_or_tier_is_a_400_on_native_calls(http: httpx2.Client, name: str, value: Any) -> None:
    raw = value if isinstance(value, bytes) else value.encode("latin-1")
    for method, path in (
        ("POST", "/api/openai"),
        ("GET", f"/api/task/{TASK}"),
        ("GET", "/api/admin/overview"),
    ):
        answer = http.request(
            method, path, headers={name.encode(): raw}, json={} if method == "POST" else None
        )
        assert name in check_refused(answer, 400)


def test_v1_headers_of_ours_with_good_values_are_taken(http: httpx2.Client) -> None:
    headers = {
        "X-Fairlane-Timeout": "6e3",
        "X-Fairlane-Priority": "5",
        "X-Fairlane-Result-Ttl": "1000",
        "X-Fairlane-Repair": "1",
        "X-Fairlane-Mode": "batch",
        "X-Fairlane-On-Disconnect": "continue",
        "X-Fairlane-Metadata": '{"a": 1}',
        "X-Fairlane-Tier": "paid",
        "X-Fairlane-User": "ann",
    }
    for path in OPENAI[:2]:
        assert http.post(path, json=VALID[path], headers=headers).status_code == 200


# ---- hardly HTTP ----------


def exchange(background: Background, request: bytes) -> bytes:
    """What the gateway answers to these bytes, up to the end of the connection or of what it has to say."""
    with socket.create_connection(("127.0.0.1", background.port), timeout=15) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65_536):
                answer += part
                head, end, body = answer.partition(b"\r\n\r\n")
                if end and b"content-length: %d\r\n" % len(body) in head.lower() + b"\r\n":
                    break
        return answer


HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /api/openai HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
HARDLY = {
    "no HTTP": b"hello\r\n\r\n",
    "binary": bytes(range(256)) + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no version": b"GET /api/task/x\r\n\r\n",
    "old version": b"GET /api/openai HTTP/0.9\r\n\r\n",
    "length is text": POST + b"Content-Length: ten\r\n\r\n{}",
    "length is negative": POST + b"Content-Length: -2\r\n\r\n{}",
    "length is huge": POST + b"Content-Length: 99999999999999999999999999\r\n\r\n{}",
    "length of 5,000 digits": POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "length and chunked": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    "chunk size is text": POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n0\r\n\r\n",
    "unknown transfer encoding": POST + b"Transfer-Encoding: gzip\r\nConnection: close\r\n\r\n{}",
    "header without colon": b"GET /api/task/x HTTP/1.1\r\n" + HOST + b"Nonsense\r\n\r\n",
    "NUL in a header": b"GET /api/task/x HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
    "folded header": b"GET /api/task/x HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\nConnection: close\r\n\r\n",
    "no host": b"GET /api/task/x HTTP/1.1\r\nConnection: close\r\n\r\n",
    "two hosts": b"GET /api/task/x HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\nConnection: close\r\n\r\n",
    "raw bytes in the path": b"GET /api/task/\xff\xfe HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    "bad escape in the path": b"GET /api/task/%zz%f HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    "absolute path of another": b"GET http://evil.example/api/task/x HTTP/1.1\r\nHost: evil.example\r\n"
    b"Connection: close\r\n\r\n",
    "asterisk": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
    "connect": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    "huge header": b"GET /api/task/x HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET /api/task/x HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 3000 + b"\r\n",
    "websocket without a key": b"GET /ws HTTP/1.1\r\n"
    + HOST
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"\r\n",
    "websocket elsewhere": b"GET /nowhere HTTP/1.1\r\n"
    + HOST
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    "websocket to a native call": b"GET /api/openai HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
}


@pytest.mark.parametrize("name", HARDLY)
def test_what_is_hardly_http_is_refused_or_cut_off_and_never_a_500(
    background: Background, http: httpx2.Client, name: str
) -> None:
    answer = exchange(background, HARDLY[name])
    if answer:
        status = answer.split(b"\r\n", 1)[0]
        assert status.startswith(b"HTTP/1.1 4"), status
    assert http.get("/livez").status_code == 200


def test_a_body_that_never_comes_is_a_408(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairlane.gateway.http.request, "BODY_S", 0.3)
    for request in (
        POST + b"Content-Length: 10\r\n\r\n",
        POST + b'Content-Length: 10\r\n\r\n{"a"',
        POST + b"Transfer-Encoding: chunked\r\n\r\n",
        POST + b'Transfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n',
    ):
        answer = exchange(background, request)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive" in answer
