import asyncio
import contextlib
import json
import threading
import time
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.gateway.core.bodies import (
    LARGE,
    MAX_VALUE,
    OVERSIZED,
    Bodies,
    encode_members,
    has_image,
    parse_object,
    value_of,
)
from fairlane.gateway.core.spec import OWN_FIELDS, is_name, read_options
from fairlane.gateway.errors import ApiError
from fairlane.gateway.openai.requests import read_chat, read_embedding
from fairlane.streaming.jsontext import MAX_DEPTH, MAX_DIGITS

FILLING = "x" * LARGE


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def parse(body: bytes) -> Any:
    """What a gateway makes of a body."""

    async def work() -> Any:
        return await Bodies().parse(body)

    return run(work())


def refused(body: bytes) -> str:
    with pytest.raises(ApiError) as caught:
        parse(body)
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize(
    "text", [rb"\ud83c", rb"\ud83c ", rb"a\uDF89b", rb"\ud83c\ud83c", rb"\ud83c\u0041", rb"\udf89\ud83c"]
)
@pytest.mark.parametrize("body", [b'{"a":"%b"}', b'{"a":[{"b":"%b"}],"c":1}', b'{"%b":1}'])
def test_half_of_a_surrogate_pair_has_one_sentence(body: bytes, text: bytes) -> None:
    sentence = r"The body holds half of a surrogate pair, such as \ud83c, which is no character"
    assert refused(body % text) == sentence


def test_a_body_that_is_cut_off_within_an_escape_says_so() -> None:
    assert "half" not in refused(rb'{"a":"\ud83c\udf89')


@pytest.mark.parametrize("nothing", ["null", '""', "[]", "{}"])
def test_members_that_say_nothing_are_as_if_absent(nothing: str) -> None:
    names = ("tools", "tool_choice", "stream", "stream_options", "n", "encoding_format")
    more = "".join(f',"{name}":{nothing}' for name in names)
    body = b'{"messages":[],"input":[]%b}' % more.encode()
    assert read_chat(parse_object(body)).streamed is None
    assert read_embedding(parse_object(body)).whole.keywords == {"encoding_format": "float"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("choice", "taken"), [("auto", True), ("none", True), ("required", False)])
def test_a_choice_among_no_tools_says_nothing_or_is_rejected(choice: str, taken: bool) -> None:
    fields = parse_object(b'{"messages":[],"tools":[],"tool_choice":"%b"}' % choice.encode())
    with contextlib.nullcontext() if taken else pytest.raises(ApiError, match="there are no tools"):
        read_chat(fields)


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(TEXTS, VALUES, max_size=6), st.booleans(), st.sampled_from([None, 1]), st.integers(0, 6)
)
def test_a_large_body_is_split_like_a_small_one(
    fields: dict[str, Any], ascii_only: bool, indent: int | None, place: int
) -> None:
    items = list(fields.items())
    items.insert(place, ("filling", FILLING))
    large = json.dumps(dict(items), ensure_ascii=ascii_only, indent=indent).encode()
    found = parse(large)
    assert len(large) >= LARGE
    assert list(found) == list(dict(items))
    assert {name: json.loads(bytes(raw)) for name, raw in found.items()} == dict(items)
    small = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode()
    assert {name: json.loads(bytes(raw)) for name, raw in parse(small).items()} == fields


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"x":"%b",}', "is not valid JSON"),
        (b'{"x":"%b"', "is not valid JSON"),
        (b'{"x":"%b"} and more', "is not valid JSON"),
        (b'{"x":"%b","y":\x00}', "is not valid JSON"),
        (b'["%b"]', "must be a JSON object"),
        (b'"%b"', "must be a JSON object"),
        (b'{"x":"%b\xff"}', "is not valid UTF-8"),
        (b'{"x":"%b","y":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "is nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_large_body_is_said_in_the_same_words(body: bytes, sentence: str) -> None:
    large, small = body % FILLING.encode(), body % b"y"
    assert len(large) > LARGE
    assert refused(large).startswith(f"The body {sentence}")
    assert refused(small).startswith(f"The body {sentence}")


def test_blanks_alone_are_an_empty_body_of_any_size() -> None:
    assert refused(b" " * LARGE) == refused(b" ") == "The body is empty; a JSON object is expected"


def test_a_name_may_be_written_with_escapes_and_the_last_of_its_kind_counts() -> None:
    for filling in ("", FILLING):
        body = b'{"x":"%b","mod\\u0065l":"a","model":"b"}' % filling.encode()
        assert value_of(parse(body), "model") == "b"


@pytest.mark.parametrize("name", [b"a", b'\\"', b" "])
def test_a_long_name_takes_the_memory_of_its_text(name: bytes) -> None:
    body = b'{"%b":1}' % (name * (4_000_000 // len(name)))
    tracemalloc.start()
    try:
        assert [bytes(raw) for raw in parse(body).values()] == [b"1"]
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()


NESTED: dict[str, Callable[[int], bytes]] = {
    "lists": lambda depth: b"[" * depth + b"]" * depth,
    "lists side by side": lambda depth: b"[%b0]" % (1000 * (b"[" * (depth - 1) + b"]" * (depth - 1) + b",")),
    "lists and objects": lambda depth: b'{"y":[' * (depth // 2) + b"[]" * (depth % 2) + b"]}" * (depth // 2),
    "behind strings": lambda depth: (
        b'{"%b":"%b","y":%b}' % (b"[{" * 100, b']\\"[[' * 100, b"[" * (depth - 1) + b"]" * (depth - 1))
    ),
}


@pytest.mark.parametrize("filling", [b"", FILLING.encode()], ids=["small", "large"])
@pytest.mark.parametrize("what", NESTED)
def test_how_deep_a_body_may_be_is_counted_the_same_way_in_all(what: str, filling: bytes) -> None:
    deepest = MAX_DEPTH - 1  # the body itself is the first level
    for depth in (deepest - 1, deepest):
        assert len(parse(b'{"x":%b,"filling":"%b"}' % (NESTED[what](depth), filling))) == 2
    for depth in (deepest + 1, deepest + 2, 3000):
        body = b'{"x":%b,"filling":"%b"}' % (NESTED[what](depth), filling)
        assert refused(body) == "The body is nested too deeply"


@pytest.mark.parametrize("filling", [b"", FILLING.encode()], ids=["small", "large"])
def test_a_number_that_a_worker_in_python_could_not_read_is_rejected_and_a_text_of_digits_is_not(
    filling: bytes,
) -> None:
    longest = b"7" * MAX_DIGITS
    text = b'\\"x\\": ' + longest + b"8"
    assert len(parse(b'{"x":%b,"y":"%b","filling":"%b"}' % (longest, text, filling))) == 3
    for number in (b"%b8", b"-%b8", b"%b8.5", b"%b88e3"):
        body = b'{"y":"%b","x":[%b],"filling":"%b"}' % (text, number % longest, filling)
        assert refused(body) == "The body holds a number of more than 4300 digits"


def test_white_space_behind_a_value_is_none_of_it() -> None:
    blanks = b" \r\n\t" * 5000
    body = b'{"model"%b:%b"m"%b,%b"stream":true%b,"filling":"%b"}' % (
        *(blanks, blanks, blanks, blanks, blanks),
        FILLING.encode(),
    )
    fields = parse(body)
    assert (value_of(fields, "model"), value_of(fields, "stream")) == ("m", True)
    assert (bytes(fields["model"]), bytes(fields["stream"])) == (b'"m"', b"true")


def test_a_value_that_is_too_long_is_not_read() -> None:
    fields = parse_object(b'{"a":"%b","b":%bnull}' % (b"x" * MAX_VALUE, b" " * MAX_VALUE))
    assert value_of(fields, "a") is OVERSIZED
    assert value_of(fields, "b") is None
    assert value_of(fields, "c") is None


def test_our_own_fields_are_cut_out_of_a_large_body_byte_for_byte() -> None:
    body = b'{ "timeout" : 9 ,"x": [1.0, "%b"] , "metadata":{ "a" : 1e2 } ,"y":"\\u0041"}' % FILLING.encode()
    fields = parse(body)
    options = read_options(fields, wait=True, stream=False)
    assert (options.timeout, options.metadata) == (9, b'{ "a" : 1e2 }')
    payload = encode_members(fields, OWN_FIELDS)
    assert payload.replace(b" ", b"") == b'{"x":[1.0,"%b"],"y":"\\u0041"}' % FILLING.encode()


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}], True),
        ([{"role": "user", "content": [{"type": "text", "text": "t"}, {"type": "input_image"}]}], True),
        ([{"role": "tool", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}], True),
        ([{"role": "user", "content": 'about {"type":"image"}'}], False),
        ([{"role": "user", "content": "image_url"}], False),
        ([{"role": "user", "content": [{"type": "images"}]}], False),
        ([None, 1, "x", {"content": [None, {"type": []}, {"type": {}}]}], False),
        ({"type": "image"}, False),
    ],
)
def test_messages_with_an_image_are_told_from_others(messages: Any, seen: bool) -> None:
    for indent in (None, 2):
        body = json.dumps({"messages": messages}, indent=indent).encode()
        assert has_image(parse_object(body)) is seen


@pytest.mark.parametrize("text", ["", "a\0", "a\nb", "\x7f", "a\x85b", "\u2028", "x" * 101])
def test_names_hold_no_control_characters(text: str) -> None:
    assert not is_name(text, 100)
    assert is_name("a b/c:d-é", 100)


def test_large_bodies_are_worked_on_one_at_a_time_in_a_thread() -> None:
    async def work() -> None:
        bodies, loop = Bodies(), threading.get_ident()
        assert await bodies.run(LARGE - 1, threading.get_ident) == loop
        at_a_time = threading.Lock()

        def alone() -> int:
            assert at_a_time.acquire(blocking=False)
            time.sleep(0.01)
            at_a_time.release()
            return threading.get_ident()

        assert loop not in await asyncio.gather(*(bodies.run(LARGE, alone) for _ in range(4)))

    run(work())
