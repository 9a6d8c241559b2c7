"""Files that requests name by their ids: found, and put in as data."""

import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest

from fairlane.gateway.calls import attachments as module
from fairlane.gateway.calls.attachments import (
    CHAT,
    RESPONSES,
    Attached,
    Form,
    Reference,
    media_type_of,
    named_steps,
    put_in_steps,
    url_bytes,
)
from fairlane.gateway.calls.reading import MOST_PARTS
from fairlane.gateway.errors import ApiError
from fairlane.gateway.tasks import attachments as tasks

A, B = f"file-{'a' * 32}", f"file-{'b' * 32}"
URL = b"data:application/pdf;base64,AAAA"
PDF = Attached('a "file".pdf', "application/pdf", URL)


def named(listed: list[Any], form: Form) -> list[Reference]:
    steps = named_steps([("at", [json.dumps(item).encode() for item in listed])], form)
    return next(found for found in steps if found is not None)


def put_in(listed: list[Any], form: Form) -> list[Any]:
    raw = [json.dumps(item).encode() for item in listed]
    steps = put_in_steps([("at", raw)], form, lambda _: PDF)
    [made] = next(made for made in steps if made is not None)
    return [json.loads(item) for item in made]


def test_parts_of_responses_that_name_files() -> None:
    listed = [
        {"role": "user", "content": "a text"},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "see"},
                {"type": "input_image", "file_id": A, "detail": "low"},
                {"type": "input_file", "file_id": B},
                {"type": "input_file", "file_id": B, "filename": "mine.pdf"},
            ],
        },
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file", "file_id": A}]},
    ]
    assert named(listed, RESPONSES) == [
        Reference("at[1].content[1]", A, True),
        Reference("at[1].content[2]", B, False),
        Reference("at[1].content[3]", B, False),
        Reference("at[2].output[0]", A, False),
    ]
    made = put_in(listed, RESPONSES)
    assert made[0] == listed[0]
    text, image, file, renamed = made[1]["content"]
    assert text == {"type": "input_text", "text": "see"}
    assert image == {"type": "input_image", "detail": "low", "image_url": URL.decode()}
    assert file == {"type": "input_file", "file_data": URL.decode(), "filename": 'a "file".pdf'}
    assert renamed == {"type": "input_file", "file_data": URL.decode(), "filename": "mine.pdf"}
    assert made[2]["output"] == [
        {"type": "input_file", "file_data": URL.decode(), "filename": 'a "file".pdf'}
    ]


def test_parts_of_chats_that_name_files() -> None:
    listed = [{"role": "user", "content": [{"type": "file", "file": {"file_id": A}}, {"type": "text"}]}]
    assert named(listed, CHAT) == [Reference("at[0].content[0].file", A, False)]
    file = {"file_data": URL.decode(), "filename": 'a "file".pdf'}
    assert put_in(listed, CHAT)[0]["content"] == [{"type": "file", "file": file}, {"type": "text"}]


@pytest.mark.parametrize(
    ("form", "part"),
    [
        (RESPONSES, {"type": "input_image", "file_id": "file-AbC"}),
        (RESPONSES, {"type": "input_image", "file_id": A, "image_url": "https://a"}),
        (RESPONSES, {"type": "input_file", "file_id": A, "file_data": "x"}),
        (RESPONSES, {"type": "input_file", "file_id": A, "file_url": "https://a"}),
        (RESPONSES, {"type": "input_text", "text": A, "file_id": A}),
        (RESPONSES, {"type": "input_file", "file_id": [A]}),
        (RESPONSES, {"type": ["input_file"], "file_id": A}),
        (RESPONSES, {"file_id": A}),
        (RESPONSES, "file_id"),
        (CHAT, {"type": "file", "file": {"file_id": "file-of-others"}}),
        (CHAT, {"type": "file", "file": {"file_id": A, "file_data": "x"}}),
        (CHAT, {"type": "file", "file_id": A}),
        (CHAT, {"type": "image_url", "image_url": {"file_id": A}}),
        (CHAT, {"type": "file", "file": [{"file_id": A}]}),
    ],
)
def test_all_else_stays_as_it_came(form: Form, part: Any) -> None:
    listed = [{"role": "user", "content": [part]}, {"content": {"file_id": A}}, [part], "file_id"]
    assert named(listed, form) == []
    raw = [json.dumps(item).encode() for item in listed]
    [made] = next(made for made in put_in_steps([("at", raw)], form, lambda _: PDF) if made is not None)
    assert all(new is old for new, old in zip(made, raw, strict=True))


def test_a_null_beside_an_id_says_nothing() -> None:
    part = {"type": "input_image", "file_id": A, "image_url": None}
    assert len(named([{"role": "user", "content": [part]}], RESPONSES)) == 1


def test_a_request_names_so_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 2)
    parts = [{"type": "input_file", "file_id": A}] * 3
    with pytest.raises(ApiError) as refused:
        named([{"content": parts}], RESPONSES)
    assert (refused.value.status, refused.value.param) == (400, "at[0].content[2].file_id")


def test_items_with_too_many_parts_are_left_to_whoever_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PARTS", 2)
    assert named([{"content": [{"type": "input_file", "file_id": A}] * 3}], RESPONSES) == []


@pytest.mark.parametrize("form", [RESPONSES, CHAT])
def test_objects_of_very_many_members_are_not_taken_apart(
    form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_MEMBERS", 4)
    part: dict[str, Any] = {"type": "input_file", "file_id": A}
    if form is CHAT:
        part = {"type": "file", "file": {"file_id": A}}
    more = {f"m{number}": 1 for number in range(4)}
    assert len(named([{"content": [part]}], form)) == 1
    assert named([{"content": [part], **more}, {"content": [{**part, **more}]}], form) == []
    assert named([{"content": [{"type": "file", "file": {"file_id": A, **more}}]}], form) == []


@pytest.mark.anyio
async def test_very_many_items_are_refused_before_they_are_taken_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(tasks, "items", taken.append)
    never: Any = None
    attachments = tasks.Attachments(never, never)
    many = msgspec.Raw(b'["file_id"%b]' % (b",1" * MOST_PARTS))
    for call, name in (
        (attachments.in_responses(never, {"input": many}, ()), "input"),
        (attachments.in_chat(never, {"messages": many}), "messages"),
    ):
        with pytest.raises(ApiError) as refused:
            await call
        assert (refused.value.status, refused.value.param) == (400, name)
    assert not taken


@pytest.mark.parametrize(
    ("head", "name", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n...", "a.txt", "image/png"),
        (b"\xff\xd8\xff\xe0", "a", "image/jpeg"),
        (b"GIF89a", "", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "a", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", "a", "application/octet-stream"),
        (b"%PDF-1.7", "letter.docx", "application/pdf"),
        (b"PK\3\4", "Letter.DOCX", module._ENDINGS["docx"]),
        (b"a,b\n", "table.csv", "text/csv"),
        ("wörter".encode(), "notes", "text/plain"),
        ("wör".encode()[:2], "notes", "text/plain"),
        (b"\xff\xfe\x00", "notes", "application/octet-stream"),
        (b"a\0b", "notes.bin", "application/octet-stream"),
        (b"", "empty", "text/plain"),
    ],
)
def test_what_a_file_is(head: bytes, name: str, kind: str) -> None:
    assert media_type_of(head, name) == kind


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000, 1001])
def test_how_large_a_file_becomes(size: int) -> None:
    for kind in module._ENDINGS.values():
        made = module.PREFIX % kind.encode() + b64encode(b"x" * size)
        assert len(made) <= url_bytes(size) <= len(made) + 120
