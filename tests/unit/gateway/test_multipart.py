"""Forms: however their bytes come, the same parts are read; and what is no form is told so."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.errors import ApiError, ClientGone
from fairlane.gateway.http.multipart import MAX_PARTS, Form, FormReader, Head, read_whole
from fairlane.gateway.http.request import Request

pytestmark = pytest.mark.anyio
BOUNDARY = "xYz"
Sent = tuple[str, str | None, str, bytes]


def form(*parts: Sent) -> bytes:
    made = b""
    for name, filename, kind, data in parts:
        named = "" if filename is None else f'; filename="{filename}"'
        typed = f"Content-Type: {kind}\r\n" if kind else ""
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n{typed}\r\n'
        made += head.encode() + data + b"\r\n"
    return made + f"--{BOUNDARY}--\r\n".encode()


def joined(found: list[Head | bytes | None]) -> list[tuple[Head, bytes]]:
    parts: list[tuple[Head, bytes]] = []
    for one in found:
        if isinstance(one, Head):
            parts.append((one, b""))
        elif one is not None:
            parts[-1] = parts[-1][0], parts[-1][1] + one
    return parts


def request(*pieces: bytes, gone: bool = False, **headers: str) -> Request:
    """A request whose body comes in these pieces."""
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    named = {"content-type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
    ]
    messages.append({"type": "http.disconnect"} if gone else {"type": "http.request", "body": b""})
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(left)

    async def send(message: Any) -> None:
        """Nobody answers."""

    scope = {
        "path": "/v1/files",
        "method": "POST",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    return Request(scope, receive, send)


def cut(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({at % (len(body) + 1) for at in cuts})
    return [body[a:b] for a, b in zip((0, *places), (*places, len(body)), strict=True)]


NAMES = st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters='"\\%'), max_size=20)
PARTS = st.tuples(
    NAMES.filter(bool),
    st.none() | NAMES,
    st.sampled_from(["", "text/plain", "application/octet-stream"]),
    st.binary(max_size=100)
    | st.sampled_from([b"\r\n", b"\r\n--", b"\r\n--xY", b"--xYz", b"\r\n--xYz!", b"\r\r\n-"]),
)


@given(st.lists(PARTS, max_size=5), st.lists(st.integers(0, 10_000), max_size=30))
async def test_however_a_form_comes_its_parts_are_the_same(parts: list[Sent], cuts: list[int]) -> None:
    if any(f"\r\n--{BOUNDARY}".encode() in b"\r\n" + part[3] for part in parts):
        return  # (no client would take such a boundary)
    body = form(*parts)
    reader = FormReader(BOUNDARY.encode())
    found = [one for piece in cut(body, cuts) for one in reader.feed(piece)]
    assert reader.ended
    expected = [(Head(name, filename, kind), data) for name, filename, kind, data in parts]
    assert joined(found) == expected
    assert found.count(None) == len(parts)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=9))
async def test_any_bytes_are_a_form_or_a_clear_refusal(body: bytes, cuts: list[int]) -> None:
    reader = FormReader(BOUNDARY.encode())
    try:
        for piece in cut(body, cuts):
            reader.feed(piece)
    except ApiError as error:
        if error.status != 400:
            raise


async def test_a_form_is_read_part_by_part_and_what_nobody_reads_is_passed_over() -> None:
    body = form(("a", None, "", b"one"), ("file", "f", "x/y", b"z" * 5000), ("b", None, "", b"two"))
    seen = []
    async for part in Form(request(*cut(body, list(range(0, 6000, 7)))), 10_000):
        if part.name == "file":
            assert (part.filename, part.content_type) == ("f", "x/y")
            async for piece in part.pieces():
                assert piece
                break
        else:
            seen.append((part.name, await part.text()))
            assert await part.value() == b""  # it has been read
    assert seen == [("a", "one"), ("b", "two")]


async def test_names_are_read_as_clients_write_them() -> None:
    body = form(('n%22ä"'.replace('"', ""), "a%22b%0D%0A.txt", "", b""))
    (part,) = [part async for part in Form(request(body), 1000)]
    assert (part.name, part.filename) == ('n"ä', 'a"b\r\n.txt')


async def test_what_ends_a_form_early() -> None:
    body = form(("a", None, "", b"one"))
    with pytest.raises(ApiError, match="cut off"):
        [part async for part in Form(request(body[:-6]), 1000)]
    with pytest.raises(ClientGone):
        [part async for part in Form(request(body[:-6], gone=True), 1000)]
    with pytest.raises(ApiError) as large:
        [part async for part in Form(request(body, b"x" * 1000), 1000)]
    assert large.value.status == 413
    with pytest.raises(ApiError) as said:
        [part async for part in Form(request(body, content_length="1001"), 1000)]
    assert said.value.status == 413
    with pytest.raises(ApiError, match="more than 64 parts"):
        [part async for part in Form(request(form(*[("a", None, "", b"")] * (MAX_PARTS + 1))), 100_000)]


async def test_a_part_has_a_limit_of_its_own() -> None:
    body = form(("a", "f", "", b"x" * 100))
    async for part in Form(request(body), 1000):
        with pytest.raises(ApiError, match="a is larger than the limit of 99 bytes"):
            await part.value(99)
    async for part in Form(request(body), 1000):
        assert await part.value(100) == b"x" * 100


async def test_a_small_form_is_read_whole() -> None:
    body = form(("a", None, "", b"one"), ("file", "f", "x/y", b"z" * 5000))
    parts = await read_whole(request(*cut(body, [700, 4000])), 6000)
    assert [(part.name, part.filename, part.content_type, len(part.data)) for part in parts] == [
        ("a", None, "", 3),
        ("file", "f", "x/y", 5000),
    ]
    with pytest.raises(ApiError) as refused:
        await read_whole(request(body), 5000)
    assert refused.value.status == 413


async def test_a_body_that_breaks_off_holds_nothing() -> None:
    asked = request(form(("a", None, "", b"one")), b"rest")
    form_of = Form(asked, 1000)

    async def first() -> AsyncIterator[str]:
        async for part in form_of:
            yield part.name

    names = first()
    assert await anext(names) == "a"
    await names.aclose()  # type: ignore[attr-defined]
