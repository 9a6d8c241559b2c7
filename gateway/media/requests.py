"""Requests for audio, images and moderations, and the views of their answers. Pure."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from fairlane.gateway.core.bodies import RawObject, value_of
from fairlane.gateway.core.spec import check_choices, read_flag
from fairlane.gateway.errors import Headers, bad_request
from fairlane.streaming.jsontext import kind_of
from fairlane.streaming.views.media.images import ImageBodyView, ImageStreamView, ModerationBodyView
from fairlane.streaming.views.media.speech import SpeechBytesView, SpeechEventsView, type_of
from fairlane.streaming.views.media.transcripts import FORMATS, TranscriptBodyView, TranscriptStreamView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo
from fairlane.workers import tasktypes


class AnswerViews(NamedTuple):
    """The views of an answer: one of both is used."""

    whole: Callable[[TaskInfo], ResultView] | None
    streamed: Callable[[TaskInfo], Any] | None = None
    kind: Headers | None = None
    """The content type of a stream; None: events."""


class MediaCall(NamedTuple):
    """A call for media."""

    task_type: str
    needs: tuple[str, ...]
    """Members that it must have; those that are files make it a form."""
    views: Callable[[RawObject], AnswerViews]
    default: str | None = None
    """The model of a request that names none; None: the only one for its type."""

    @property
    def is_form(self) -> bool:
        return any(name in tasktypes.FILES for name in self.needs)

    def read(self, fields: RawObject) -> AnswerViews:
        """Return the views for a body of these members. Raise ApiError(400) if it is no such request."""
        for name in self.needs:
            if not kind_of(fields.get(name)):
                raise bad_request(f"You must provide {_a(name)}", name)
            if name in tasktypes.FILES and kind_of(fields[name]) not in ("{", "["):
                raise bad_request(f"{name} must be a file", name)
        check_choices(fields)
        return self.views(fields)


def _a(name: str) -> str:
    return f"a{'n' if name[0] in 'aeiou' else ''} {name}"


def _transcription(fields: RawObject) -> AnswerViews:
    whole = partial(TranscriptBodyView, response_format=_choice(fields, "response_format", FORMATS))
    return AnswerViews(whole, TranscriptStreamView if read_flag(fields, "stream") else None)


def _translation(fields: RawObject) -> AnswerViews:
    known = tuple(name for name in FORMATS if name != "diarized_json")
    return AnswerViews(partial(TranscriptBodyView, response_format=_choice(fields, "response_format", known)))


def _speech(fields: RawObject) -> AnswerViews:
    named = value_of(fields, "response_format")
    if named is not None and not isinstance(named, str):
        raise bad_request("response_format must be a string", "response_format")
    if _choice(fields, "stream_format", ("audio", "sse")) == "sse":
        return AnswerViews(None, SpeechEventsView)
    return AnswerViews(None, SpeechBytesView, [(b"content-type", type_of(named or "mp3"))])


def _images(kind: str, fields: RawObject) -> AnswerViews:
    streamed = partial(ImageStreamView, kind=kind) if read_flag(fields, "stream") else None
    return AnswerViews(ImageBodyView, streamed)


def _choice(fields: RawObject, name: str, known: tuple[str, ...]) -> str:
    """Return a member that is one of these words; the first if it is absent."""
    value = value_of(fields, name)
    if value is None:
        return known[0]
    if value not in known:
        raise bad_request(f"{name} must be one of {', '.join(known)}", name)
    return str(value)


MODERATION: Final = MediaCall(
    tasktypes.MODERATION, ("input",), lambda _: AnswerViews(ModerationBodyView), "omni-moderation-latest"
)
"""OpenAI's clients name no model; this is the one that OpenAI takes then."""
TRANSCRIPTION: Final = MediaCall(tasktypes.TRANSCRIPTION, ("file",), _transcription)
TRANSLATION: Final = MediaCall(tasktypes.TRANSLATION, ("file",), _translation)
SPEECH: Final = MediaCall(tasktypes.SPEECH, ("input",), _speech)
IMAGE: Final = MediaCall(tasktypes.IMAGE, ("prompt",), partial(_images, "image_generation"))
EDIT: Final = MediaCall(tasktypes.IMAGE_EDIT, ("image", "prompt"), partial(_images, "image_edit"))
VARIATION: Final = MediaCall(tasktypes.IMAGE_VARIATION, ("image",), lambda _: AnswerViews(ImageBodyView))
