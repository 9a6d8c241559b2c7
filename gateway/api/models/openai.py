"""OpenAI's chat completions, completions, embeddings and list of models."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.api.models.base import Answer, Asked, IdempotencyHeader, Left, Model, Positive, Priority
from fairlane.gateway.settings.parts import Mode


class StreamOptions(Asked):
    include_usage: bool | None = None


class OpenAIHeaders(IdempotencyHeader):
    """Our own wishes on OpenAI's calls."""

    x_fairlane_timeout: Positive | Left = Field(None, description="ms from submission to the end")
    x_fairlane_priority: Priority | Left = Field(None, description="among one's own tasks, 5 first")
    x_fairlane_mode: Mode | Left = Field(
        None, description="which of the tier's queues; else by the body: `vision` with an image, or `stream`"
    )
    x_fairlane_on_disconnect: Literal["cancel", "continue"] | Left = Field(
        None, description="what becomes of the task when its caller hangs up; `cancel` if not given"
    )
    x_fairlane_result_ttl: Positive | Left = Field(None, description="ms")
    x_fairlane_repair: Literal["1", "0", "true", "false"] | Left = Field(
        None, description="1: an answer that does not match its JSON schema is asked for again, once"
    )
    x_fairlane_metadata: str | Left = Field(None, description="a JSON object of at most 4,096 bytes")
    x_fairlane_user: str | Left = Field(None, description="for delegating keys")
    x_fairlane_tier: str | Left = Field(None, description="for delegating keys")


class ChatRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model
    messages: list[Any]
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model
    prompt: Any
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class EmbeddingRequest(Asked):
    """As in OpenAI's reference; it goes to the worker as it came."""

    model: Model
    input: Any
    encoding_format: Literal["float", "base64"] = "float"


class Usage(Answer):
    prompt_tokens: int = Field(0, alias="prompt_tokens")
    completion_tokens: int = Field(0, alias="completion_tokens")
    total_tokens: int = Field(0, alias="total_tokens")


class ChatChoice(BaseModel):
    model_config = ConfigDict(extra="allow")
    index: int
    message: dict[str, Any]
    finish_reason: str | None


class ChatCompletion(BaseModel):
    """A whole answer, as in OpenAI's reference."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class ChunkChoice(BaseModel):
    model_config = ConfigDict(extra="allow")
    index: int
    delta: dict[str, Any]
    finish_reason: str | None


class ChatCompletionChunk(BaseModel):
    """A part of a streamed answer, as in OpenAI's reference; the stream ends with `data: [DONE]`."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class TextChoice(BaseModel):
    model_config = ConfigDict(extra="allow")
    index: int
    text: str
    finish_reason: str | None


class Completion(BaseModel):
    """A whole answer, or a part of a streamed one, as in OpenAI's reference."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class Embedding(BaseModel):
    model_config = ConfigDict(extra="allow")
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(BaseModel):
    """As in OpenAI's reference."""

    model_config = ConfigDict(extra="allow")
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage | None = None


class ModelRow(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str = Field(description="as its workers tell, else `fairlane`")
    context_length: int | None = Field(
        None,
        description="tokens of input and output together: the least that a worker tells; absent where none does",
    )
    max_model_len: int | None = Field(None, description="the same, under the name that vLLM gives it")


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelRow]
