"""OpenAI's calls for audio, images and moderations: a task's payload as its request, and what reads the answers. Pure.

A payload as a form (`multipart/form-data`); `gateway/media/forms.py` has the other direction:

| in the payload | in the form |
|---|---|
| a text | a field |
| a number, true or false | its JSON as a field; null is left out |
| a list | a field `name[]` for each item |
| an object | a field `name[key]` for each member |
| `{"filename", "contentType", "data"}` | a file; `data` is base64 |
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

import httpx2
import msgspec
from msgspec import Raw

from fairlane.workers.adapters.choices import MAX_USAGE, usage_of
from fairlane.workers.adapters.dialects.base import Call, Output, Reader
from fairlane.workers.adapters.failures import UpstreamSaid, is_error
from fairlane.workers.adapters.lenient import NotJsonError, check_size, encoded, joined, lenient
from fairlane.workers.sdk import Delta, Result, Task
from fairlane.workers.sdk.media import Upload
from fairlane.workers.tasktypes import (
    IMAGE,
    IMAGE_EDIT,
    IMAGE_VARIATION,
    MODERATION,
    SPEECH,
    TRANSCRIPTION,
    TRANSLATION,
)

CALLS = {
    MODERATION: ("/moderations", "results", False),
    TRANSCRIPTION: ("/audio/transcriptions", "text", True),
    TRANSLATION: ("/audio/translations", "text", True),
    SPEECH: ("/audio/speech", "", False),
    IMAGE: ("/images/generations", "data", False),
    IMAGE_EDIT: ("/images/edits", "data", True),
    IMAGE_VARIATION: ("/images/variations", "data", True),
}
"""The path of each type, the member that an answer must have, and whether the request is a form."""
MAX_LEVELS = 4
MAX_FIELDS = 1024
_OF_STREAMS = ("stream", "partial_images", "stream_format")
_TEXTS = ("text", "srt", "vtt")
_HTML = re.compile(rb"\s*<(?:!doctype|html)", re.IGNORECASE)
_members = msgspec.json.Decoder(dict[str, Raw]).decode


def media_call(task: Task, members: dict[str, Raw], model: str) -> Call:
    """Return the request for a task of media, whose payload has these members. Raise ValueError for one that cannot be a form.

    Speech is asked for as bytes, and streamed as they come; a transcription is streamed if its client streams; images come whole.
    """
    body = {name: raw for name, raw in members.items() if name not in _OF_STREAMS}
    body["model"] = Raw(msgspec.json.encode(model))
    binary = task.type == SPEECH
    stream = task.type == TRANSCRIPTION and task.stream and bytes(members.get("stream", b"")) == b"true"
    if stream:
        body["stream"] = Raw(b"true")
    path, member, is_form = CALLS[task.type]
    reader = ObjectReader(member)
    if member == "text":
        format = msgspec.json.decode(members.get("response_format", b"null"))
        reader = TranscriptReader(plain_text=format in _TEXTS)
    if is_form:
        form, content_type = form_of(body)
        return Call(path, form, reader, stream, content_type=content_type)
    return Call(path, msgspec.json.encode(body), reader, stream=binary, binary=binary)


def form_of(members: Mapping[str, Raw]) -> tuple[bytes, str]:
    """Return a form and its content type. Raise ValueError for what no form can say."""
    decoded = ((name, msgspec.json.decode(raw)) for name, raw in members.items())
    fields = chain.from_iterable(_fields(name, value) for name, value in decoded)
    found = list(islice(fields, MAX_FIELDS + 1))  # also what is left out takes its time
    if len(found) > MAX_FIELDS:
        raise ValueError(f"a form of more than {MAX_FIELDS} fields")
    files = [(name, value) for name, value in found if value is not None]
    request = httpx2.Request("POST", "http://upstream", files=files)
    return request.read(), request.headers["Content-Type"]


def _fields(name: str, value: Any, level: int = 1) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a member, those that are left out as None."""
    if not isinstance(value, dict | list):
        text = value if isinstance(value, str) else msgspec.json.encode(value)
        yield name, None if value is None else (None, text)
    elif level > MAX_LEVELS:
        raise ValueError(f"{name} is nested too deeply for a form")
    elif isinstance(value, list):
        for item in value:
            yield from _fields(f"{name}[]", item, level + 1)
    elif {"data", "filename"} <= value.keys():
        file = msgspec.convert(value, Upload)
        yield name, (file.filename or "file", file.data, file.content_type or "application/octet-stream")
    else:
        for key, inner in value.items():
            yield from _fields(f"{name}[{key}]", inner, level + 1)


class ObjectReader(Reader):
    """Reads a JSON object, which is the result as it came. It must have a `member` that is neither null nor an empty list;
    without a name no object is right, as the answers are bytes."""

    def __init__(self, member: str) -> None:
        super().__init__()
        self._member = member

    @property
    def complete(self) -> bool:
        return self.done

    def read(self, event: bytes) -> list[Delta]:
        """Return no output: what comes as events can only be an error. Raise as `Reader`."""
        self._event(event)
        return []

    def _event(self, event: bytes) -> dict[str, Any]:
        check_size(event)
        value = lenient(event)
        if not isinstance(value, dict) or is_error(value, answers=value.get("type", "error") != "error"):
            raise UpstreamSaid(event)
        return value

    def whole(self, body: bytes) -> list[Output]:
        """Return the usage, and the answer unchanged. Raise as `Reader`."""
        try:
            body.decode()  # strings are passed on unparsed
            found = _members(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            check_size(body)
            value = lenient(body)
            if not isinstance(value, dict):
                raise UpstreamSaid(body) from error
            body = bytes(encoded(value))
            found = _members(body)
        small = {
            name: msgspec.json.decode(raw) for name, raw in found.items() if len(bytes(raw)) <= MAX_USAGE
        }
        self.done = bytes(found.get(self._member, b"null")) not in (b"null", b"[]")
        if is_error(small, answers=self.done):
            raise UpstreamSaid(body)
        self.usage = usage_of(small.get("usage"))
        result: list[Output] = [Result(Raw(body))] if self.done else []
        return result if self.usage is None else [self.usage, *result]


class TranscriptReader(ObjectReader):
    """Reads a transcript: an object, the events of a stream, or with `plain_text` a text, for example subtitles."""

    def __init__(self, *, plain_text: bool) -> None:
        super().__init__("text")
        self.plain_text = plain_text
        self._said = False

    def read(self, event: bytes) -> list[Delta]:
        """Return the text of one event. Raise as `Reader`."""
        if event.strip() == b"[DONE]":
            self.done = True
            return []
        found = self._event(event)
        kind, name = found.get("type"), "delta"
        if kind == "transcript.text.done":
            self.done, name = True, "" if self._said else "text"
            self.usage = usage_of(found.get("usage"))
        elif kind != "transcript.text.delta":
            return []
        text = found.get(name)
        self._said = self._said or bool(text)
        return [Delta(content=joined(text))] if text and isinstance(text, str) else []

    def whole(self, body: bytes) -> list[Output]:
        """Return the text, or an object as it came. Raise as `Reader`."""
        if not self.plain_text or body.lstrip()[:1] == b"{":
            return super().whole(body)
        if _HTML.match(body):
            raise NotJsonError("a page")
        self.done = True
        return [Result(body.decode(errors="replace"))]
