"""OpenAI's calls for audio, images and moderations. Official SDKs work unmodified.

Each is a task of a type of its own, which goes to the workers that name the type; where nobody does, the answer is a 404 that says
so. Those with files come as forms (gateway/calls/media/forms.py); what comes back is a fold in streaming/views/media.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.answering import Asking, Body, StreamView, answer, task_of
from fairlane.gateway.calls.bodies import LARGE, Members, value_of
from fairlane.gateway.calls.fixed import object_of
from fairlane.gateway.calls.http import SSE_HEADERS, Request
from fairlane.gateway.calls.idempotency import read_idempotency
from fairlane.gateway.calls.intake import check_choices, read_flag
from fairlane.gateway.calls.media.forms import member_steps
from fairlane.gateway.calls.multipart import WholePart, read_whole
from fairlane.gateway.errors import Headers, bad_request, too_large_encoded
from fairlane.gateway.tasks.tasks import Tasks
from fairlane.streaming.jsontext import kind_of
from fairlane.streaming.views.media import (
    ImageBodyView,
    ImageStreamView,
    ModerationBodyView,
    SpeechBytesView,
    SpeechEventsView,
    TranscriptBodyView,
    TranscriptStreamView,
    type_of,
)
from fairlane.streaming.views.media.transcripts import FORMATS
from fairlane.streaming.views.task import TaskInfo
from fairlane.workers import tasktypes

MODERATION_MODEL = "omni-moderation-latest"
"""What a moderation runs that names no model: OpenAI's clients name none."""


def moderations(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/moderations."""
    return answer(tasks, caller, request, _READ_MODERATION)


def transcriptions(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/audio/transcriptions."""
    return answer(tasks, caller, request, _READ_TRANSCRIPTION)


def translations(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/audio/translations."""
    return answer(tasks, caller, request, _READ_TRANSLATION)


def speech(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/audio/speech: bytes as they come, or with `stream_format: "sse"` events."""
    return answer(tasks, caller, request, _READ_SPEECH)


def generations(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/images/generations."""
    return answer(tasks, caller, request, _READ_IMAGE)


def edits(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/images/edits."""
    return answer(tasks, caller, request, _READ_EDIT)


def variations(tasks: Tasks, caller: Caller, request: Request) -> Awaitable[None]:
    """POST /v1/images/variations."""
    return answer(tasks, caller, request, _READ_VARIATION)


class _Told(NamedTuple):
    """How the answer is told."""

    whole: Callable[[TaskInfo], Body]
    streamed: Callable[[TaskInfo], StreamView] | None = None
    kind: Headers = SSE_HEADERS


class _Call(NamedTuple):
    """What differs between the calls."""

    task_type: str
    needs: tuple[str, ...]
    """Members that it must have; those that are files make it a form."""
    told: Callable[[Members], _Told]
    """Reads how it is to be told. Raises ApiError(400)."""
    default: str | None = None
    """The model of a request that names none; None: it must."""

    @property
    def is_form(self) -> bool:
        return any(name in tasktypes.FILES for name in self.needs)


async def _read(call: _Call, tasks: Tasks, caller: Caller, request: Request) -> Asking:
    """What a request asks for. Nothing else of the body is left."""
    body, fields = await (_form if call.is_form else _json)(tasks, request)
    for name in call.needs:
        if not kind_of(fields.get(name)):
            raise bad_request(f"You must provide {'a file' if name == 'file' else name}", name)
        if name in tasktypes.FILES and kind_of(fields[name]) not in ("{", "["):
            raise bad_request(f"{name} must be a file", name)
    check_choices(fields)
    told = call.told(fields)
    said = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    streams = told.streamed is not None
    task = task_of(tasks, caller, request, call.task_type, body, fields, said, streams, default=call.default)
    if said is None:  # with a key it may be answered already
        await tasks.models.check_type(task)
    return Asking(task, told.streamed, told.whole, told.kind)


async def _json(tasks: Tasks, request: Request) -> tuple[bytes, Members]:
    body = await request.json_body(tasks.settings.max_body_bytes, tasks.bodies.arriving)
    return body, await tasks.bodies.parse(body, caller=request.opener)


async def _form(tasks: Tasks, request: Request) -> tuple[bytes, Members]:
    """A form as the JSON that its task's payload is: as large as a body may be, its files as base64."""
    most = tasks.settings.max_body_bytes
    parts = await read_whole(request, most, tasks.bodies.arriving)
    size = sum(_encoded(part) for part in parts)
    if size > most:
        raise too_large_encoded(most, size)
    if size < LARGE:
        *_, fields = member_steps(parts)
        assert fields is not None
        return object_of(fields), fields
    async with tasks.bodies.turn(size, request.opener) as spent:
        steps, fields = member_steps(parts), None
        while fields is None:
            with spent():
                fields = next(steps)
            await asyncio.sleep(0)
        with spent():
            return object_of(fields), fields


def _encoded(part: WholePart) -> int:
    """Bytes that a part takes in the payload, more or less."""
    return len(part.data) if part.filename is None else (len(part.data) + 2) // 3 * 4


# ---- how each is told ----------


def _moderation(_: Members) -> _Told:
    return _Told(ModerationBodyView)


def _transcription(fields: Members) -> _Told:
    whole = partial(TranscriptBodyView, response_format=_choice(fields, "response_format", FORMATS))
    return _Told(whole, TranscriptStreamView if read_flag(fields, "stream") else None)


def _translation(fields: Members) -> _Told:
    return _Told(partial(TranscriptBodyView, response_format=_choice(fields, "response_format", FORMATS[:-1])))


def _speech(fields: Members) -> _Told:
    named = value_of(fields, "response_format")
    if named is not None and not isinstance(named, str):
        raise bad_request("response_format must be a string", "response_format")
    if _choice(fields, "stream_format", ("audio", "sse")) == "sse":
        return _Told(TranscriptBodyView, SpeechEventsView)
    kind = [(b"content-type", type_of(named or "mp3")), (b"x-content-type-options", b"nosniff")]
    return _Told(TranscriptBodyView, SpeechBytesView, kind)


def _images(kind: str, fields: Members) -> _Told:
    streamed = partial(ImageStreamView, kind=kind) if read_flag(fields, "stream") else None
    return _Told(ImageBodyView, streamed)


def _choice(fields: Members, name: str, known: tuple[str, ...]) -> str:
    """A member that is one of a few words, the first if it is not said."""
    value = value_of(fields, name)
    if value is None:
        return known[0]
    if value not in known:
        raise bad_request(f"{name} must be one of {', '.join(known)}", name)
    return str(value)


_READ_MODERATION = partial(_read, _Call(tasktypes.MODERATION, ("input",), _moderation, MODERATION_MODEL))
_READ_TRANSCRIPTION = partial(_read, _Call(tasktypes.TRANSCRIPTION, ("file",), _transcription))
_READ_TRANSLATION = partial(_read, _Call(tasktypes.TRANSLATION, ("file",), _translation))
_READ_SPEECH = partial(_read, _Call(tasktypes.SPEECH, ("input",), _speech))
_READ_IMAGE = partial(_read, _Call(tasktypes.IMAGE, ("prompt",), partial(_images, "image_generation")))
_READ_EDIT = partial(_read, _Call(tasktypes.IMAGE_EDIT, ("image", "prompt"), partial(_images, "image_edit")))
_READ_VARIATION = partial(_read, _Call(tasktypes.IMAGE_VARIATION, ("image",), partial(_images, "image_edit")))
