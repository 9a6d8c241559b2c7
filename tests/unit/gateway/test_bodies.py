import asyncio
import json
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from fairlane.gateway.calls.bodies import (
    LARGE,
    MANY,
    MAX_MEMBERS,
    MAX_VALUE,
    MAX_WAITING,
    OVERSIZED,
    Bodies,
    has_image,
    is_large,
    parse_object,
    value_of,
)
from fairlane.gateway.calls.intake import is_name, payload_of, read_options
from fairlane.gateway.errors import ApiError
from fairlane.streaming.jsontext import MAX_DEPTH

FILLING = "x" * LARGE


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def parse(body: bytes) -> Any:
    """What a gateway makes of a body."""

    async def work() -> Any:
        return await Bodies(asyncio.get_running_loop().time).parse(body)

    return run(work())


def refused(body: bytes) -> str:
    with pytest.raises(ApiError) as caught:
        parse(body)
    assert caught.value.status == 400
    return caught.value.message


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


@pytest.mark.parametrize("filling", [b"", b'"filling":"%b",' % FILLING.encode()], ids=["small", "large"])
def test_a_body_has_a_bounded_number_of_members(filling: bytes) -> None:
    members = [b'"%d":0' % number for number in range(MAX_MEMBERS + 1)]
    assert (
        refused(b"{" + filling + b",".join(members) + b"}") == f"The body has more than {MAX_MEMBERS} members"
    )
    assert len(parse(b"{" + filling + b",".join(members[2:]) + b"}")) in (MAX_MEMBERS - 1, MAX_MEMBERS)


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


def test_bodies_of_many_values_take_turns_like_large_ones() -> None:
    assert is_large(b'{"x":[%b]}' % b",".join([b"0"] * MANY))
    assert not is_large(json.dumps({"messages": [{"role": "user", "content": "x" * 1000}] * 100}).encode())


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
    payload = payload_of(body, fields)
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


@pytest.mark.parametrize("before", [0, (1 << 20) - 40, 3 << 20])
def test_images_of_a_large_body_are_looked_for_in_its_turn(before: int) -> None:
    content: list[Any] = [
        {"type": "text", "text": "x" * before},
        {"type": "image_url", "image_url": {"url": "u" * LARGE}},
    ]
    for seen in (True, False):
        body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
        fields = parse(body)
        fields["messages"] = Raw(b"[]")  # it is not searched again
        assert has_image(fields) is seen
        content[1]["type"] = "text"


@pytest.mark.parametrize("text", ["", "a\0", "a\nb", "\x7f", "a\x85b", "\u2028", "x" * 101])
def test_names_hold_no_control_characters(text: str) -> None:
    assert not is_name(text, 100)
    assert is_name("a b/c:d-é", 100)


def test_large_bodies_have_turns_and_others_run_between_them() -> None:
    async def work() -> list[str]:
        bodies, log = Bodies(asyncio.get_running_loop().time), list[str]()

        async def one(name: str) -> None:
            async with bodies.turn(1):
                log.append(f"{name} begins")
                await asyncio.sleep(0)
                log.append(f"{name} ends")

        await asyncio.gather(one("a"), one("b"))
        return log

    assert run(work()) == ["a begins", "a ends", "b begins", "b ends"]


def test_callers_have_turns_one_after_the_other_however_many_bodies_each_has() -> None:
    async def work() -> list[str]:
        bodies, log = Bodies(asyncio.get_running_loop().time), list[str]()

        async def one(caller: str) -> None:
            async with bodies.turn(1, caller):
                log.append(caller)
                await asyncio.sleep(0)

        async with bodies.turn(1, "first"):
            waiting = [asyncio.create_task(one("greedy")) for _ in range(4)]
            waiting += [asyncio.create_task(one(caller)) for caller in ("ann", "bob", "ann")]
            await asyncio.sleep(0)
            waiting.pop(1).cancel()
        await asyncio.gather(*waiting)
        async with bodies.turn(1, "last"):
            pass
        return log

    assert run(work()) == ["greedy", "ann", "bob", "greedy", "ann", "greedy"]


def test_a_turn_that_comes_to_one_who_has_left_goes_on_to_the_next() -> None:
    async def work() -> None:
        bodies = Bodies(asyncio.get_running_loop().time)

        async def one() -> None:
            async with bodies.turn(1):
                pass

        async with bodies.turn(1):
            first, second = asyncio.create_task(one()), asyncio.create_task(one())
            await asyncio.sleep(0)
        first.cancel()  # its turn has just come
        await asyncio.wait_for(second, 5)
        assert first.cancelled()

    run(work())


def test_one_caller_waits_with_half_of_the_bytes_that_others_leave() -> None:
    async def work() -> None:
        bodies = Bodies(asyncio.get_running_loop().time)
        async with bodies.turn(MAX_WAITING // 4, "greedy"):
            with pytest.raises(ApiError):
                await bodies.turn(MAX_WAITING // 4 + 1, "greedy").__aenter__()
            turn = asyncio.create_task(bodies.turn(MAX_WAITING // 4, "ann").__aenter__())
            await asyncio.sleep(0)
            assert not turn.done(), "it waits"
        await turn

    run(work())


def test_no_more_large_bodies_wait_than_fit_the_memory() -> None:
    async def work() -> int:
        bodies = Bodies(asyncio.get_running_loop().time)
        async with bodies.turn(MAX_WAITING // 2):
            with pytest.raises(ApiError) as caught:
                await bodies.parse(b'{"x":"%b"}' % FILLING.encode())
        assert len(await bodies.parse(b'{"x":"%b"}' % FILLING.encode())) == 1
        assert caught.value.retry_after_ms
        return caught.value.status

    assert run(work()) == 503
