"""Requests and answers of the calls for audio, images and moderations, for the document."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.api.models.base import Asked, Model, body_of

File = Annotated[str, Field(json_schema_extra={"format": "binary"})]


class ModerationRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model | None = None
    input: Any


class SpeechRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model
    input: Any
    response_format: str | None = None
    stream_format: Literal["audio", "sse"] | None = None


class ImageRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model
    prompt: Any
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None


class TranscriptionForm(Asked):
    """As in OpenAI's reference; its worker gets it as JSON."""

    model: Model
    file: File
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"
    stream: bool = False


class TranslationForm(Asked):
    """As in OpenAI's reference; its worker gets it as JSON."""

    model: Model
    file: File
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"


class EditForm(Asked):
    """As in OpenAI's reference; its worker gets it as JSON. Several images: `image[]`."""

    model: Model
    image: File
    prompt: str
    n: Annotated[int, Field(ge=1, le=128)] = 1
    stream: bool = False


class VariationForm(Asked):
    """As in OpenAI's reference; its worker gets it as JSON."""

    model: Model
    image: File
    n: Annotated[int, Field(ge=1, le=128)] = 1


def form_of(model: type[BaseModel]) -> dict[str, Any]:
    """The document's part on a form."""
    described = body_of(model)
    content = described["requestBody"]["content"]
    content["multipart/form-data"] = content.pop("application/json")
    return described


class _Told(BaseModel):
    """As the worker made it."""

    model_config = ConfigDict(extra="allow")


class Moderations(_Told):
    id: str
    model: str
    results: list[Any]


class Transcript(_Told):
    text: str


class Images(_Told):
    created: int
    data: list[Any]
