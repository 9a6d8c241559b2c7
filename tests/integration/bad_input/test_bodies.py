"""Bodies that are not what they should be: always a 4xx with a sentence, in the shape of the call's surface."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.integration.bad_input.conftest import MAX_BODY
from tests.integration.bad_input.shapes import NATIVE, OPENAI, SAID_OTHERWISE, SUBMITS, VALID, check_refused

from fairlane.workers.decoding import zstd  # type: ignore[attr-defined]

JSON = {"Content-Type": "application/json"}
submits = pytest.mark.parametrize("path", SUBMITS)

MALFORMED = {
    "empty": b"",
    "blank": b" \n\t ",
    "cut off": b'{"model": "m", "messages": [',
    "single quotes": b"{'model': 'm'}",
    "trailing comma": b'{"model": "m",}',
    "trailing text": b'{"model": "m"} and more',
    "two objects": b"{}{}",
    "comment": b'{"model": "m" /* x */}',
    "unquoted key": b"{model: 1}",
    "NaN": b'{"model": "m", "temperature": NaN}',
    "Infinity": b'{"model": "m", "temperature": -Infinity}',
    "leading zero": b'{"model": 01}',
    "hexadecimal": b'{"model": 0x1}',
    "lone high surrogate": b'{"model": "\\ud800"}',
    "lone low surrogate": b'{"model": "m", "x": "\\udc00 y"}',
    "surrogate as key": b'{"\\ud800": 1}',
    "surrogate as bytes": b'{"model": "\xed\xa0\x80"}',
    "raw NUL in a string": b'{"model": "a\x00b"}',
    "raw line break in a string": b'{"model": "a\nb"}',
    "only NULs": b"\x00" * 100,
    "invalid UTF-8": b'{"model": "\xff\xfe"}',
    "overlong UTF-8": b'{"model": "\xc0\xaf"}',
    "UTF-16": '{"model": "m"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"model": "m"}',
    "bad escape": b'{"model": "\\x41"}',
    "cut off escape": b'{"model": "\\u12',
    "list nested 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "object nested 100,000 deep": b'{"a":' * 100_000,
    "value nested 50,000 deep": b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "compressed": b"\x1f\x8b\x08\x00" + bytes(range(256)),
    "form": b"model=m&messages=",
}
NOT_OBJECTS = [b"null", b"true", b"5", b'"text"', b"[]", b"[{}]", b"1.5e3"]


@submits
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_body_is_a_400(http: httpx2.Client, path: str, name: str) -> None:
    answer = http.post(path, content=MALFORMED[name], headers=JSON)
    assert check_refused(answer, 400).startswith("The body")


@submits
@pytest.mark.parametrize("body", NOT_OBJECTS)
def test_a_body_that_is_no_object_is_a_400(http: httpx2.Client, path: str, body: bytes) -> None:
    answer = http.post(path, content=body, headers=JSON)
    assert check_refused(answer, 400) == "The body must be a JSON object"


@submits
@pytest.mark.parametrize("name", ["metadata", "payload", "messages", "prompt", "input", "tools", "unknown"])
def test_deep_nesting_below_a_field_is_taken_or_refused_but_never_a_500(
    http: httpx2.Client, path: str, name: str
) -> None:
    for depth in (400, 900, 990, 1100, 20_000):
        fields = {**VALID[path], name: "@"}
        body = json.dumps(fields).replace('"@"', '{"a":' * depth + "1" + "}" * depth)
        answer = http.post(path, content=body, headers=JSON)
        if answer.status_code != 200:
            check_refused(answer, 400)


@submits
def test_a_body_over_the_limit_is_a_413(http: httpx2.Client, path: str) -> None:
    body = json.dumps({**VALID[path], "x": "y" * MAX_BODY}).encode()

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(body), 65_536):
            yield body[at : at + 65_536]

    for content in (body, chunks()):
        answer = http.post(path, content=content, headers=JSON)
        assert str(MAX_BODY) in check_refused(answer, 413)


@submits
def test_a_body_of_exactly_the_limit_is_taken(http: httpx2.Client, path: str) -> None:
    if path in SAID_OTHERWISE:
        body = json.dumps(VALID[path]).encode()
        body += b" " * (MAX_BODY - len(body))
    else:
        body = json.dumps({**VALID[path], "x": ""}).encode()
        body = body.replace(b'"x": ""', b'"x": "%b"' % (b"y" * (MAX_BODY - len(body))))
    assert len(body) == MAX_BODY
    assert http.post(path, content=body, headers=JSON).status_code == 200
    check_refused(http.post(path, content=body + b" ", headers=JSON), 413)


@submits
@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "text/plain",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/octet-stream",
        "json",
        "ä",
        "x" * 5000,
    ],
)
def test_a_body_that_is_not_said_to_be_json_is_refused(
    http: httpx2.Client, path: str, kind: str | None
) -> None:
    headers = {} if kind is None else {b"Content-Type": kind.encode("latin-1")}
    answer = http.post(path, content=b"{}", headers=headers)
    assert "application/json" in check_refused(answer, 415, 403)


@submits
def test_a_compressed_body_is_decoded_within_the_limit(http: httpx2.Client, path: str) -> None:
    body = json.dumps(VALID[path]).encode()
    for coding, packed, status in (
        ("gzip", gzip.compress(body), 200),
        ("ZSTD", zstd.compress(body), 200),
        ("deflate", zlib.compress(body), 200),
        ("gzip", gzip.compress(body + b" " * MAX_BODY), 413),
        ("zstd", body, 400),
    ):
        answer = http.post(path, content=packed, headers={**JSON, "Content-Encoding": coding})
        assert answer.status_code == status
    answer = http.post(path, content=body, headers={**JSON, "Content-Encoding": "br"})
    assert "br" in check_refused(answer, 415)
    assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"


@pytest.mark.parametrize(("path", "name"), [("/v1/files", "file"), ("/v1/audio/transcriptions", "file")])
def test_a_compressed_form_is_decoded(http: httpx2.Client, path: str, name: str) -> None:
    fields = {"model": "none", "purpose": "user_data"}
    plain = http.build_request("POST", path, data=fields, files={name: ("a.wav", b"RIFF" * 1000)})
    headers = {"Content-Type": plain.headers["content-type"], "Content-Encoding": "zstd"}
    answer = http.post(path, content=zstd.compress(plain.read()), headers=headers)
    assert answer.status_code == http.send(plain).status_code


@submits
@pytest.mark.parametrize(
    "kind",
    ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.x+json", "application/json;"],
)
def test_json_by_any_of_its_names_is_taken(http: httpx2.Client, path: str, kind: str) -> None:
    answer = http.post(path, content=json.dumps(VALID[path]), headers={"Content-Type": kind})
    assert answer.status_code == 200


NOT_LISTS: list[Any] = [None, 1, "x", {}, True]
NOT_NAMES: list[Any] = [None, 1, [], {}, True, ""]
NOT_FORMATS: list[Any] = ["int8", 1, {"a": 1}]
WRONG: list[tuple[str, dict[str, Any]]] = [
    *[("/v1/chat/completions", {"model": "m", "messages": wrong}) for wrong in NOT_LISTS],
    *[("/v1/chat/completions", {"model": wrong, "messages": []}) for wrong in NOT_NAMES],
    ("/v1/chat/completions", {"messages": []}),
    ("/v1/chat/completions", {"model": "m"}),
    ("/v1/chat/completions", {"model": "m", "messages": [], "stream": "true"}),
    ("/v1/chat/completions", {"model": "m", "messages": [], "stream": 1}),
    ("/v1/chat/completions", {"model": "m", "messages": [], "stream": True, "stream_options": 1}),
    (
        "/v1/chat/completions",
        {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": "yes"}},
    ),
    ("/v1/completions", {"model": "m"}),
    ("/v1/completions", {"model": "m", "prompt": "p", "stream": [1]}),
    ("/v1/embeddings", {"model": "m"}),
    *[("/v1/embeddings", {"model": "m", "input": "i", "encoding_format": wrong}) for wrong in NOT_FORMATS],
]


@pytest.mark.parametrize(("path", "body"), WRONG)
def test_a_field_of_a_wrong_type_is_a_400(http: httpx2.Client, path: str, body: dict[str, Any]) -> None:
    check_refused(http.post(path, json=body), 400)


HUGE = ["9" * 400, "-" + "9" * 400, "9" * 4000, "1e308", "-1e308", "0." + "1" * 3000, "1e-999"]


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("field", ["timeout", "priority", "resultTtlMs", "max_tokens", "n", "model", "mode"])
def test_numbers_of_any_size_are_taken_or_refused_but_never_a_500(
    http: httpx2.Client, field: str, number: str
) -> None:
    for path in NATIVE:
        body = json.dumps({**VALID[path], field: "@"}).replace('"@"', number)
        answer = http.post(path, content=body, headers=JSON)
        if answer.status_code != 200:
            check_refused(answer, 400)
    for path in OPENAI:
        body = json.dumps({**VALID[path], field: "@"}).replace('"@"', number)
        answer = http.post(path, content=body, headers=JSON)
        if answer.status_code != 200:
            check_refused(answer, 400)


@pytest.mark.parametrize(
    "text", ["\u0000", "\ufeff", "\u2028", "😀", "\u202e", "a\r\nX-Evil: 1", "\x7f", " "]
)
def test_odd_texts_in_names_are_taken_or_refused(http: httpx2.Client, text: str) -> None:
    for path in SUBMITS:
        answer = http.post(path, json={**VALID[path], "model": text})
        if answer.status_code != 200:
            check_refused(answer, 400)
    answer = http.post("/api/tasks", json={"type": text, "payload": text})
    if answer.status_code != 200:
        check_refused(answer, 400)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_more_choices_than_openai_gives_are_a_400_in_its_words(http: httpx2.Client, path: str) -> None:
    for n, words in (
        ("129", "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 129 instead."),
        ("-1", "Invalid 'n': integer below minimum value. Expected a value >= 1, but got -1 instead."),
        ('"129"', "Invalid type for 'n': expected an integer."),
        ("1e3", "Invalid type for 'n': expected an integer."),
        ("true", "Invalid type for 'n': expected an integer."),
    ):
        body = json.dumps({**VALID[path], "n": "@"}).replace('"@"', n)
        answer = http.post(path, content=body, headers=JSON)
        assert check_refused(answer, 400) == words
        assert answer.json()["error"]["param"] == "n"
    for n in (1, 128, None):
        assert http.post(path, json={**VALID[path], "n": n}).status_code == 200


def test_odd_but_legal_json_is_taken(http: httpx2.Client) -> None:
    for body in (
        b'{"a":1,"a":2}',
        b'{"":""}',
        b'{"x":"\\u0000","y":"\\ud83d\\ude00"}',
        b' \r\n{ "x" : [ ] }\n',
        b'{"messages":"not a list"}',
        b'{"messages":[null,1,"x",{"content":[null,{"type":[]},{"type":{}}]}]}',
        b'{"max_tokens":true,"n":"many"}',
        b'{"timeout":null,"mode":null,"priority":null,"onDisconnect":null,"metadata":null,"model":null}',
    ):
        answer = http.post("/api/openai", content=body, headers=JSON)
        assert (answer.status_code, answer.json()) == (200, {"content": "fine"})
