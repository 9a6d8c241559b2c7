"""Forms become payloads, and payloads forms: what one side writes the other reads."""

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from fairlane.gateway.core.bodies import encode_members
from fairlane.gateway.core.spec import text_bytes
from fairlane.gateway.errors import ApiError
from fairlane.gateway.http.multipart import FormReader, Head, WholePart
from fairlane.gateway.media.forms import FLAGS, NUMBERS, members_of
from fairlane.workers.adapters.dialects.media import form_of
from fairlane.workers.tasktypes import FILES


def field(name: str, text: str) -> WholePart:
    return WholePart(name, None, "", text.encode())


def payload(*parts: WholePart) -> Any:
    members = members_of(list(parts))
    assert members is not None
    return json.loads(encode_members(members))


def read(boundary: str, body: bytes) -> list[WholePart]:
    """A form, as the gateway reads it."""
    reader, parts = FormReader(boundary.encode()), []
    head: Head | None = None
    data = b""
    for found in reader.feed(body):
        if isinstance(found, Head):
            head, data = found, b""
        elif found is None:
            assert head is not None
            parts.append(WholePart(*head, data))
        else:
            data += found
    assert reader.ended
    return parts


def test_fields_are_texts_but_for_numbers_and_flags() -> None:
    assert payload(
        field("model", "whisper-1"),
        field("prompt", '42 "ü"'),
        field("temperature", "0.25"),
        field("n", "2"),
        field("stream", "true"),
    ) == {"model": "whisper-1", "prompt": '42 "ü"', "temperature": 0.25, "n": 2, "stream": True}


def test_names_that_repeat_and_names_in_brackets() -> None:
    assert payload(
        field("timestamp_granularities[]", "word"),
        field("include", "a"),
        field("include", "b"),
        field("keywords[]", "x"),
        field("keywords[]", "y"),
        field("svg[model]", "m"),
        field("svg[reasoning][effort]", "low"),
        field("chunking_strategy[threshold]", "0.5"),
    ) == {
        "timestamp_granularities": ["word"],
        "include": ["a", "b"],
        "keywords": ["x", "y"],
        "svg": {"model": "m", "reasoning": {"effort": "low"}},
        "chunking_strategy": {"threshold": 0.5},
    }


def test_a_file_is_an_object_with_base64() -> None:
    data = bytes(range(256))
    part = WholePart("file", 'a "b".wav', "audio/wav", data)
    told = {"filename": 'a "b".wav', "contentType": "audio/wav", "data": b64encode(data).decode()}
    assert payload(part) == {"file": told}
    assert payload(part._replace(name="image[]"), part._replace(name="image[]"))["image"] == [told, told]
    assert (
        payload(part._replace(content_type="a\r\nb: c"))["file"]["contentType"] == "application/octet-stream"
    )


@pytest.mark.parametrize(
    "parts",
    [
        [field("file", "text")],
        [field("image[]", "text")],
        [field("temperature", "NaN")],
        [field("temperature", "1e999999")],
        [field("n", "0x10")],
        [field("n", "")],
        [field("stream", "1")],
        [field("", "x")],
        [field("[]", "x")],
        [field("a[", "x")],
        [field("a]b", "x")],
        [field("a[][b]", "x")],
        [field("a[b][c][d][e]", "x")],
        [field("a", "x"), field("a[b]", "x")],
        [field("a[b]", "x"), field("a", "x")],
        [field("a[]", "x"), field("a[b]", "x")],
        [WholePart("prompt", None, "", b"\xff")],
    ],
)
def test_what_makes_no_sense_is_refused(parts: list[WholePart]) -> None:
    with pytest.raises(ApiError) as caught:
        payload(*parts)
    assert caught.value.status == 400


def test_files_have_no_tokens() -> None:
    members = members_of([field("prompt", "x" * 40), WholePart("file", "a", "", b"x" * 9000)])
    assert members is not None
    body = encode_members(members)
    assert text_bytes(body, members) < 100


names = st.text(
    st.characters(codec="utf-8", exclude_characters='[]\\"%', exclude_categories=["Cc"]),
    min_size=1,
    max_size=20,
).filter(lambda name: name not in FILES | NUMBERS | FLAGS)
texts = st.text(st.characters(codec="utf-8"), max_size=60)
files = st.builds(
    lambda name, data: {"filename": name, "contentType": "image/png", "data": b64encode(data).decode()},
    st.text(st.characters(codec="utf-8", exclude_characters="%\\", exclude_categories=["Cc"]), min_size=1),
    st.binary(max_size=200),
)


@given(st.dictionaries(names, st.one_of(texts, st.lists(texts, min_size=1, max_size=3), files), max_size=6))
def test_a_payload_survives_the_way_through_a_form(said: dict[str, Any]) -> None:
    if said:
        body, content_type = form_of({name: Raw(json.dumps(value).encode()) for name, value in said.items()})
        assert payload(*read(content_type.partition("boundary=")[2], body)) == said


@pytest.mark.parametrize(
    "value", [{"filename": "a", "data": "no base64!"}, [[[[["deep"]]]]], ["x"] * 2000, [None] * 2000]
)
def test_what_no_form_can_say_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"base64|deeply|fields"):
        form_of({"a": Raw(json.dumps(value).encode())})


def test_the_name_of_a_file_or_a_member_cannot_begin_another_field() -> None:
    file = {"filename": 'a\\"; name="api_base', "data": ""}
    form, _ = form_of({"file": Raw(json.dumps(file).encode())})
    assert b'name="file"; filename="a\\\\%22; name=%22api_base"\r\n' in form
    form, _ = form_of({"a": Raw(json.dumps({'b"\r\n': "x"}).encode())})
    assert b'name="a[b%22%0D%0A]"\r\n' in form
