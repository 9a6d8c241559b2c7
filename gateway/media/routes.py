"""OpenAI's calls for audio, images and moderations. Official SDKs work unmodified.

Each call has its own task type, for the workers that support the type; without such a worker the answer is a 404. Calls with
files are forms (gateway/media/forms.py); answers are folds of streaming/views/media.
"""

from functools import partial
from typing import Any, Literal

from msgspec import Raw, Struct

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.api.idempotency import read_idempotency
from fairlane.gateway.api.raw_routes import BINARY, EVENTS, form, submission
from fairlane.gateway.api.schemas import STRING, Choices, File, Model, json
from fairlane.gateway.core.bodies import RawObject, encode_members
from fairlane.gateway.core.tasks import Tasks
from fairlane.gateway.errors import too_large_encoded
from fairlane.gateway.http.multipart import WholePart, read_whole
from fairlane.gateway.http.request import SSE_HEADERS, Request
from fairlane.gateway.media import requests
from fairlane.gateway.media.forms import members_of
from fairlane.gateway.openai.answers import ParsedCall, respond, task_of
from fairlane.gateway.openai.shapes import NULL, is_empty
from fairlane.streaming.jsontext import json_string


class ModerationRequest(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the body unchanged."""

    model: Model | None = None
    input: Any


class SpeechRequest(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the body unchanged."""

    model: Model
    input: Any
    response_format: str | None = None
    stream_format: Literal["audio", "sse"] | None = None


class ImageRequest(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the body unchanged."""

    model: Model
    prompt: Any
    n: Choices | None = None
    stream: bool | None = None


class TranscriptionForm(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the form as JSON."""

    model: Model
    file: File
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"
    stream: bool = False


class TranslationForm(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the form as JSON."""

    model: Model
    file: File
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"


class EditForm(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the form as JSON. Several images: `image[]`."""

    model: Model
    image: File
    prompt: str
    n: Choices = 1
    stream: bool = False


class VariationForm(Struct, kw_only=True):
    """See OpenAI's reference. The worker gets the form as JSON."""

    model: Model
    image: File
    n: Choices = 1


async def _read(call: requests.MediaCall, tasks: Tasks, caller: Caller, request: Request) -> ParsedCall:
    """Return a request as a task. Nothing else of the body remains in memory."""
    if call.is_form:
        body, fields = await _form(tasks, request)
    else:
        body, fields = await tasks.bodies.read(request, tasks.settings.max_body_bytes)
    answer = call.read(fields)
    idempotency = await read_idempotency(request, tasks.settings, tasks.bodies, fields, native=False)
    if caller.only_model is None and is_empty(fields.get("model", NULL)):
        name = call.default or await tasks.models.only(caller, call.task_type)
        fields["model"] = Raw(json_string(name))
        body = encode_members(fields)
    streams = answer.streamed is not None
    task = task_of(tasks, caller, request, call.task_type, body, fields, idempotency, streams)
    if idempotency is None:  # with an idempotency key its answer can exist already
        await tasks.models.check_type(task)
    return ParsedCall(task, answer.streamed, answer.whole, kind=answer.kind or SSE_HEADERS)


async def _form(tasks: Tasks, request: Request) -> tuple[bytes, RawObject]:
    """Return a form as the JSON of its task's payload, with files as base64, within the limit of a body."""
    most = tasks.settings.max_body_bytes
    parts = await read_whole(request, most)
    size = sum(_encoded(part) for part in parts)
    if size > most:
        raise too_large_encoded(most, size)
    return await tasks.bodies.run(size, _payload, parts, most)


def _payload(parts: list[WholePart], most: int) -> tuple[bytes, RawObject]:
    fields = members_of(parts)
    body = encode_members(fields)
    if len(body) > most:  # JSON escapes can make texts longer
        raise too_large_encoded(most, len(body))
    return body, fields


def _encoded(part: WholePart) -> int:
    """Estimate the bytes of a part in the payload."""
    return len(part.data) if part.filename is None else (len(part.data) + 2) // 3 * 4


moderations = partial(respond, read=partial(_read, requests.MODERATION))
"""POST /v1/moderations."""
transcriptions = partial(respond, read=partial(_read, requests.TRANSCRIPTION))
"""POST /v1/audio/transcriptions."""
translations = partial(respond, read=partial(_read, requests.TRANSLATION))
"""POST /v1/audio/translations."""
speech = partial(respond, read=partial(_read, requests.SPEECH))
"""POST /v1/audio/speech: bytes as they arrive, or with `stream_format: "sse"` events."""
generations = partial(respond, read=partial(_read, requests.IMAGE))
"""POST /v1/images/generations."""
edits = partial(respond, read=partial(_read, requests.EDIT))
"""POST /v1/images/edits."""
variations = partial(respond, read=partial(_read, requests.VARIATION))
"""POST /v1/images/variations."""


_TEXT = {"text/plain": {"schema": STRING}}
_AUDIO = {kind: {"schema": BINARY} for kind in ("audio/*", "application/octet-stream")}
ROUTES = (
    submission("moderations", moderations, "Classify content", json(ModerationRequest), {}),
    submission(
        "audio/transcriptions", transcriptions, "Transcribe audio", form(TranscriptionForm), _TEXT | EVENTS
    ),
    submission(
        "audio/translations", translations, "Translate audio into English", form(TranslationForm), _TEXT
    ),
    submission("audio/speech", speech, "Create speech", json(SpeechRequest), _AUDIO | EVENTS),
    submission("images/generations", generations, "Create images", json(ImageRequest), EVENTS),
    submission("images/edits", edits, "Edit images", form(EditForm), EVENTS),
    submission("images/variations", variations, "Create variations of an image", form(VariationForm), {}),
)
