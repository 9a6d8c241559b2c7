"""OpenAI's calls for audio, images and moderations: a task's payload as its request, and what reads the answers. Pure."""

import json
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from fairlane.workers.adapters.chunks import StreamError, check_event, is_null, reported_usage, usage_of
from fairlane.workers.adapters.dialects.base import Call, Output
from fairlane.workers.adapters.dialects.forms import Form
from fairlane.workers.sdk import Delta, Result, Task, Usage
from fairlane.workers.tasktypes import (
    IMAGE,
    IMAGE_EDIT,
    IMAGE_VARIATION,
    MODERATION,
    SPEECH,
    TRANSCRIPTION,
    TRANSLATION,
)

PATHS = {
    MODERATION: "/moderations",
    TRANSCRIPTION: "/audio/transcriptions",
    TRANSLATION: "/audio/translations",
    SPEECH: "/audio/speech",
    IMAGE: "/images/generations",
    IMAGE_EDIT: "/images/edits",
    IMAGE_VARIATION: "/images/variations",
}
FORMS = frozenset({TRANSCRIPTION, TRANSLATION, IMAGE_EDIT, IMAGE_VARIATION})
_OF_STREAMS = ("stream", "partial_images")
_TEXTS = ("text", "srt", "vtt")


def media_call(task: Task, members: dict[str, Raw], model: str, boundary: str) -> Call:
    """The request for a task of media, whose payload has these members. `boundary`: of a form. Raise ValueError for a payload
    that cannot be a form.

    Speech is asked for as bytes, and streamed as they come; a transcription is streamed if its client streams; images come whole.
    """
    body: dict[str, Any] = {
        name: raw for name, raw in members.items() if name not in (*_OF_STREAMS, "stream_format")
    }
    body["model"] = Raw(msgspec.json.encode(model))
    binary = task.type == SPEECH
    stream = task.type == TRANSCRIPTION and task.stream and bytes(members.get("stream", b"")) == b"true"
    if stream:
        body["stream"] = Raw(b"true")
    path, reader = PATHS[task.type], _reader(task, members)
    if task.type not in FORMS:
        return Call(path, msgspec.json.encode(body), reader, stream=binary, binary=binary)
    form = Form(boundary)
    for name, raw in body.items():
        form.add(name, raw)
    return Call(path, form.close(), reader, stream, content_type=form.content_type)


def _reader(task: Task, members: dict[str, Raw]) -> "MediaReader":
    if task.type == SPEECH:
        return SpeechReader()
    said = members.get("response_format")
    texts = (
        task.type in (TRANSCRIPTION, TRANSLATION) and said is not None and json.loads(bytes(said)) in _TEXTS
    )
    return TextReader() if texts else MediaReader()


class _Event(Struct):
    type: str = ""
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    usage: Raw = Raw(b"null")
    error: Raw = Raw(b"null")


class MediaReader:
    """Reads JSON, which is the result as it came, or the events of a transcription."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.done = False
        self._said = False

    @property
    def complete(self) -> bool:
        """Whether its last event has come."""
        return self.done

    def last(self) -> Delta | None:
        """Nothing."""
        return None

    def read(self, event: bytes) -> list[Delta]:
        """The text of one event of a transcription. Raise as `Reader`."""
        if event.strip() == b"[DONE]":
            self.done = True
            return []
        check_event(event)
        found = msgspec.json.decode(event, type=_Event)
        if not is_null(found.error):
            raise StreamError(found.error)
        if found.type == "transcript.text.done":
            self.done = True
            if not is_null(found.usage):
                self.usage = usage_of(found.usage)
            return [Delta(content=found.text)] if found.text and not self._said else []
        if found.type != "transcript.text.delta" or not found.delta:
            return []
        self._said = True
        return [Delta(content=found.delta)]

    def whole(self, body: bytes) -> list[Output]:
        """Return the usage, and the answer unchanged. Raise as `Reader`."""
        return [*reported_usage(body), Result(Raw(body))]


class TextReader(MediaReader):
    """Reads an answer that is text: a transcript, or subtitles."""

    def whole(self, body: bytes) -> list[Output]:
        return [Result(body.decode())]


class SpeechReader(MediaReader):
    """Reads an answer that should be bytes, and is not."""

    def whole(self, body: bytes) -> list[Output]:
        """Raise StreamError for a JSON error in place of speech, ValueError for other JSON."""
        super().whole(body)
        raise ValueError("it is JSON, and no audio")
