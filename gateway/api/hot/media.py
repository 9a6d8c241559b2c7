"""Audio, images and moderations, as OpenAI has them."""

from typing import Any

from fairlane.gateway.access import Access
from fairlane.gateway.api import media
from fairlane.gateway.api.framing import HotRoute, refusals
from fairlane.gateway.api.hot.describing import AS_IT_CAME, OURS, SUBMIT, stream_of, with_limits
from fairlane.gateway.api.models.media import (
    EditForm,
    ImageRequest,
    Images,
    ModerationRequest,
    Moderations,
    SpeechRequest,
    Transcript,
    TranscriptionForm,
    TranslationForm,
    VariationForm,
    form_of,
)

NAMES_ITS_TYPE = (
    "\n\nWhere no connected worker names the type of its tasks the answer is a 404 (`TYPE_NOT_OFFERED`)."
)
TYPED_EVENTS = stream_of(
    {
        "type": "object",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    }
)
PLAIN_TEXT = {"text/plain": {"schema": {"type": "string"}}}
AUDIO = {
    kind: {"schema": {"type": "string", "format": "binary"}}
    for kind in ("audio/*", "application/octet-stream")
}


def _media(
    path: str,
    call: Any,
    body: Any,
    whole: Any,
    says: str,
    *,
    form: bool = False,
    others: dict[str, Any] | None = None,
) -> HotRoute:
    """A call for audio, images or moderations. `others`: answers of other types than JSON."""
    responses: dict[int | str, dict[str, Any]] = refusals(*SUBMIT, openai=True, submits=True)
    if others:
        responses[200] = {"content": others}
    described = {"openapi_extra": form_of(body)} if form else {"body": body}
    return HotRoute(
        *("POST", path, call, Access.CALLER),
        submits=True,
        parameters=OURS,
        description=says + NAMES_ITS_TYPE,
        response_model=whole,
        responses=with_limits(responses),
        tags=["openai"],
        **described,
    )


ROUTES = (
    _media(
        "/v1/moderations",
        media.moderations,
        ModerationRequest,
        Moderations,
        "OpenAI's moderations." + AS_IT_CAME,
    ),
    _media(
        "/v1/audio/transcriptions",
        media.transcriptions,
        TranscriptionForm,
        Transcript,
        "OpenAI's transcriptions of audio: as JSON, text or subtitles, or with `stream` its events.",
        form=True,
        others=PLAIN_TEXT | TYPED_EVENTS,
    ),
    _media(
        "/v1/audio/translations",
        media.translations,
        TranslationForm,
        Transcript,
        "OpenAI's translations of audio into English: as JSON, text or subtitles.",
        form=True,
        others=PLAIN_TEXT,
    ),
    _media(
        "/v1/audio/speech",
        media.speech,
        SpeechRequest,
        None,
        "OpenAI's speech: audio as it comes, or with `stream_format: sse` its events." + AS_IT_CAME,
        others=AUDIO | TYPED_EVENTS,
    ),
    _media(
        "/v1/images/generations",
        media.generations,
        ImageRequest,
        Images,
        "OpenAI's images: all of them, or with `stream` as events." + AS_IT_CAME,
        others=TYPED_EVENTS,
    ),
    _media(
        "/v1/images/edits",
        media.edits,
        EditForm,
        Images,
        "OpenAI's edits of images: all of them, or with `stream` as events.",
        form=True,
        others=TYPED_EVENTS,
    ),
    _media(
        "/v1/images/variations",
        media.variations,
        VariationForm,
        Images,
        "OpenAI's variations of an image.",
        form=True,
    ),
)
