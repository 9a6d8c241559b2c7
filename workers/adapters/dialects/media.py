"""OpenAI's calls for audio, images and moderations: a task's payload as its request, and what reads the answers. Pure."""

import json
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from fairlane.workers.adapters.chunks import Answer, StreamError, check_event, is_null, usage_of
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
_DRAWN = frozenset({IMAGE, IMAGE_EDIT})
"""What can be shown unfinished."""
_UNFINISHED = ("image_generation.partial_image", "image_edit.partial_image")
_FINISHED = ("image_generation.completed", "image_edit.completed")
_OF_EVENT = ("type", "created_at")
_OF_IMAGE = ("b64_json", "url", "revised_prompt")
_NULL = Raw(b"null")
MAX_IMAGES_BYTES = 64 * 1024 * 1024
"""Of the finished images of one stream, as base64."""
MOST_UNFINISHED = 3
"""Unfinished images of a task, as OpenAI has it: a caller who asks for more is shown these."""
MOST_UNFINISHED_BYTES = 8 * 1024 * 1024
"""Of all of them, as base64; those beyond are not shown. They are a courtesy: many large ones at a time would be more than a
worker may send, and its other tasks would be lost with its connection."""
_DIGITS = 3
_TEXTS = ("text", "srt", "vtt")


def media_call(task: Task, members: dict[str, Raw], model: str, boundary: str) -> Call:
    """The request for a task of media, whose payload has these members. `boundary`: of a form. Raises ValueError for a payload
    that cannot be a form.

    Speech is asked for as bytes, and comes back as they come; a transcription is streamed where its caller wants that, and images
    where he wants to see them unfinished: without that a stream would bring nothing more than the answer, and many servers that
    make images know none.
    """
    body: dict[str, Any] = {
        name: raw for name, raw in members.items() if name not in (*_OF_STREAMS, "stream_format")
    }
    body["model"] = Raw(msgspec.json.encode(model))
    wants = task.stream and bytes(members.get("stream", b"")) == b"true"
    asked = _number(members.get("partial_images")) if wants and task.type in _DRAWN else 0
    unfinished = min(asked, MOST_UNFINISHED)
    stream = unfinished > 0 or (wants and task.type == TRANSCRIPTION)
    if stream:
        body["stream"] = Raw(b"true")
    if unfinished:
        body["partial_images"] = Raw(b"%d" % unfinished)
    path, reader = PATHS[task.type], _reader(task, members)
    if task.type not in FORMS:
        binary = task.type == SPEECH
        return Call(
            path,
            msgspec.json.encode(body),
            reader,
            stream=binary or stream,
            binary=binary,
            slow=unfinished > 0,
        )
    form = Form(boundary)
    for name, raw in body.items():
        form.add(name, raw)
    return Call(path, form.close(), reader, stream, content_type=form.content_type, slow=unfinished > 0)


def _number(said: Raw | None) -> int:
    """A count that a member says; 0 where it says none."""
    text = bytes(said or b"")
    return int(text) if text.isdigit() and len(text) <= _DIGITS else 0


def _reader(task: Task, members: dict[str, Raw]) -> "MediaReader":
    if task.type == SPEECH:
        return SpeechReader()
    if task.type in _DRAWN:
        return ImageReader(_number(members.get("n")) or 1)
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

    def last(self) -> Delta | Result | None:
        """Nothing."""
        return None

    def read(self, event: bytes) -> list[Delta]:
        """The text of one event of a transcription. Raises as `Reader`."""
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
        """The answer as it came, and its usage. Raises as `Reader`."""
        body.decode()
        answer = msgspec.json.decode(body, type=Answer)
        if not is_null(answer.error):
            raise StreamError(answer.error)
        usage = None if is_null(answer.usage) else usage_of(answer.usage)
        return [*([usage] if usage is not None else []), Result(Raw(body))]


class ImageReader(MediaReader):
    """Reads the same, or the events of images: unfinished ones as they come, and of the finished ones the answer that they would
    have been without a stream. `wanted`: the number of finished ones that make a whole stream."""

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self._wanted = wanted
        self._images: list[dict[str, Raw]] = []
        self._about: dict[str, Raw] = {}
        self._bytes = 0
        self._shown = 0
        self._shown_bytes = 0

    def last(self) -> Delta | Result | None:
        """The finished ones."""
        if not self._images:
            return None
        return Result(Raw(msgspec.json.encode(self._about | {"data": self._images})))

    def read(self, event: bytes) -> list[Delta]:
        """An unfinished image. Raises as `Reader`, also when there are more bytes of finished ones than an answer may have."""
        if event.strip() == b"[DONE]":
            self.done = bool(self._images)
            return []
        check_event(event)
        found = msgspec.json.decode(event, type=dict[str, Raw])
        if not is_null(found.get("error", _NULL)):
            raise StreamError(found["error"])
        kind = msgspec.json.decode(found.get("type", _NULL))
        if kind in _UNFINISHED:
            told = {name: raw for name, raw in found.items() if name not in _OF_EVENT}
            return self._show(Raw(msgspec.json.encode({"partial_image": told})))
        if kind in _FINISHED:
            self._finish(found)
        return []

    def _show(self, told: Raw) -> list[Delta]:
        self._shown += 1
        self._shown_bytes += len(bytes(told))
        if self._shown > MOST_UNFINISHED or self._shown_bytes > MOST_UNFINISHED_BYTES:
            return []
        return [Delta(extra=told)]

    def _finish(self, found: dict[str, Raw]) -> None:
        image = {name: found[name] for name in _OF_IMAGE if name in found}
        if not image:
            raise ValueError("an event of an image that holds none")
        self._bytes += sum(len(bytes(raw)) for raw in image.values())
        if self._bytes > MAX_IMAGES_BYTES:
            raise ValueError(f"its images have more than {MAX_IMAGES_BYTES} bytes")
        self._images.append(image)
        shared = {name: raw for name, raw in found.items() if name not in (*_OF_EVENT, *_OF_IMAGE)}
        self._about |= shared | ({"created": found["created_at"]} if "created_at" in found else {})
        if not is_null(found.get("usage", _NULL)):
            self.usage = usage_of(found["usage"])
        self.done = len(self._images) >= self._wanted


class TextReader(MediaReader):
    """Reads an answer that is text: a transcript, or subtitles."""

    def whole(self, body: bytes) -> list[Output]:
        return [Result(body.decode())]


class SpeechReader(MediaReader):
    """Reads an answer that should be bytes, and is not."""

    def whole(self, body: bytes) -> list[Output]:
        """What is JSON is no speech. Raises StreamError for an error, ValueError for anything else."""
        super().whole(body)
        raise ValueError("it is JSON, and no audio")
