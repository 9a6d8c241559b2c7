"""What tasks of media ask for, and what handlers answer: audio, images, moderations.

    @worker.handler(models=["my-voice"], task_types=[SPEECH])
    async def speak(task, context):
        asked = SpeechRequest.of(task)
        async for piece in synthesize(asked.input, asked.voice, asked.response_format):
            yield piece  # bytes

A handler gets such tasks only where it names their types. Values here are JSON: return one, or yield `Result` of it. Bytes in
them are base64 on the way. Usage is reported as usual (`Usage`); where a model counts seconds and not tokens:
`Usage(details={"type": "duration", "seconds": 12.5})`.
"""

from typing import Any, Self

import msgspec
from msgspec import Struct

from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.values import Task
from fairlane.workers.tasktypes import (
    IMAGE,
    IMAGE_EDIT,
    IMAGE_VARIATION,
    MODERATION,
    SPEECH,
    TRANSCRIPTION,
    TRANSLATION,
)

__all__ = [
    "IMAGE",
    "IMAGE_EDIT",
    "IMAGE_VARIATION",
    "MODERATION",
    "SPEECH",
    "TRANSCRIPTION",
    "TRANSLATION",
    "Audio",
    "Image",
    "ImageRequest",
    "Images",
    "Moderation",
    "ModerationRequest",
    "Moderations",
    "Segment",
    "SpeechRequest",
    "Transcript",
    "TranscriptionRequest",
    "Upload",
    "Word",
]


class _Request(Struct, kw_only=True):
    """A payload. Members that it does not name are in `task.payload`."""

    model: str | None = None
    """As the caller named it; `task.model` is never None."""

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the request of a task. Raise `TaskError` (BAD_REQUEST) for an invalid one."""
        try:
            return msgspec.json.decode(task.payload_bytes, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TaskError("BAD_REQUEST", f"The payload cannot be read: {error}") from error


class Upload(Struct, rename="camel", kw_only=True):
    """A file that came with a request."""

    data: bytes
    filename: str = ""
    """As its sender calls it: never a path to be opened."""
    content_type: str = ""
    """As its sender says."""


class SpeechRequest(_Request, kw_only=True):
    """A text to be spoken."""

    input: str
    voice: Any = None
    """A name, or an object that describes a custom voice."""
    response_format: str = "mp3"
    speed: float = 1.0
    instructions: str | None = None


class Audio(Struct, rename="camel"):
    """Speech as a whole, for a handler that does not yield its bytes as they come."""

    data: bytes
    content_type: str = "audio/mpeg"


class TranscriptionRequest(_Request, kw_only=True):
    """Audio to be written down; of a translation, in English."""

    file: Upload
    language: str | None = None
    prompt: str | None = None
    response_format: str = "json"
    """A `Transcript` can be sent in any of them; subtitles want its segments."""
    temperature: float | None = None
    timestamp_granularities: list[str] = []


class Segment(Struct, omit_defaults=True):
    """A part of a transcript; times in seconds."""

    id: int
    start: float
    end: float
    text: str
    speaker: str | None = None


class Word(Struct):
    """A word of a transcript; times in seconds."""

    word: str
    start: float
    end: float


class Transcript(Struct, omit_defaults=True):
    """A transcript. A handler may yield the text as it is recognized instead, if no segments are wanted."""

    text: str
    language: str | None = None
    duration: float | None = None
    segments: list[Segment] | None = None
    words: list[Word] | None = None


class ModerationRequest(_Request, kw_only=True):
    """Texts, or parts of messages (also images), to be judged."""

    input: str | list[Any]

    @property
    def inputs(self) -> list[Any]:
        """Return the inputs to judge: texts, or one list of the parts of a message."""
        if isinstance(self.input, str):
            return [self.input]
        return [self.input] if any(isinstance(part, dict) for part in self.input) else self.input


CATEGORIES = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent"),
    *("self-harm", "self-harm/intent", "self-harm/instructions", "sexual", "sexual/minors"),
    *("violence", "violence/graphic"),
)
"""OpenAI's, which clients read all of."""


class Moderation(Struct):
    """A judgement on one input. `scored` makes one of scores alone."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]

    @classmethod
    def scored(cls, scores: dict[str, float], *, threshold: float = 0.5) -> Self:
        """Of a score, 0 to 1, for some categories; others count as 0."""
        known = dict.fromkeys(CATEGORIES, 0.0) | scores
        categories = {name: score >= threshold for name, score in known.items()}
        return cls(any(categories.values()), categories, known, {name: ["text"] for name in known})


class Moderations(Struct):
    """One judgement for each input."""

    results: list[Moderation]


class ImageRequest(_Request, kw_only=True):
    """Images to be made; with `image`, of that: an edit by the prompt, or a variation, which has none."""

    prompt: str = ""
    n: int | None = None
    size: str | None = None
    quality: str | None = None
    output_format: str | None = None
    stream: bool | None = None
    image: Upload | list[Upload] = []
    mask: Upload | None = None

    @property
    def images(self) -> list[Upload]:
        """Those that came with it."""
        return self.image if isinstance(self.image, list) else [self.image]


class Image(Struct, omit_defaults=True):
    """One image, or where to find it."""

    b64_json: bytes | None = None
    url: str | None = None
    revised_prompt: str | None = None


class Images(Struct, omit_defaults=True):
    """The images that were made."""

    data: list[Image]
    size: str | None = None
    quality: str | None = None
    background: str | None = None
    output_format: str | None = None
