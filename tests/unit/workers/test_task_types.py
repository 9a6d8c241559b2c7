"""Which worker takes which type of task, on both sides of the connection."""

from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.workers.sdk.handlers import Registry
from fairlane.workers.sdk.pool import Base64Pieces
from fairlane.workers.tasktypes import MEDIA, SPEECH, TRANSCRIPTION, covers, takes


@pytest.mark.parametrize(
    ("types", "text", "speech"),
    [(None, True, False), (["*"], True, False), (["*", SPEECH], True, True), ([SPEECH], False, True)],
)
def test_media_are_for_those_who_name_them(types: Any, text: bool, speech: bool) -> None:
    assert takes(types, "openaiLike") is takes(types, "anything") is text
    assert takes(types, SPEECH) is speech
    assert not takes(types, TRANSCRIPTION)


def test_who_does_all_that_another_does() -> None:
    assert covers(None, None)
    assert covers(None, ["openaiLike"])
    assert not covers(None, [SPEECH])
    assert not covers(["openaiLike"], None)
    assert covers(["*", *MEDIA], None)
    assert covers(["*", *MEDIA], ["*", SPEECH])
    assert not covers([SPEECH], ["*", SPEECH])


async def handler(task: Any, context: Any) -> None: ...


def test_a_worker_says_any_and_what_it_names() -> None:
    registry = Registry()
    registry.add(handler, ["m"], None)
    assert registry.task_types is None
    registry.add(handler, ["voice"], [SPEECH])
    assert registry.task_types == ["*", SPEECH]
    assert registry.find("m", SPEECH) is None
    assert registry.find("voice", SPEECH) is not None
    assert registry.find("voice", "openaiLike") is None


@given(st.lists(st.binary(max_size=200_000), max_size=6))
def test_base64_of_pieces_put_together_is_that_of_all(pieces: list[bytes]) -> None:
    binary = Base64Pieces()
    texts = [text for piece in pieces for text in binary.add(piece)] + [binary.rest()]
    assert b64decode("".join(texts), validate=True) == b"".join(pieces)
    assert all(len(text) <= 65536 for text in texts)
