"""OpenAI's calls: chat completions, completions, embeddings, models."""

from typing import Annotated, Any

from fastapi import Path, Query

from fairlane.gateway.access import Access
from fairlane.gateway.api import messages, openai
from fairlane.gateway.api.framing import HotRoute, refusals
from fairlane.gateway.api.hot.describing import (
    AS_IT_CAME,
    OURS,
    READ,
    SUBMIT,
    VERSION,
    Text,
    json_text,
    stream_of,
    with_limits,
)
from fairlane.gateway.api.models.base import REF, Left
from fairlane.gateway.api.models.messages import AnthropicError, AnthropicModel, ModelPage
from fairlane.gateway.api.models.openai import (
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    EmbeddingList,
    EmbeddingRequest,
    ModelList,
    ModelRow,
)
from fairlane.gateway.api.models.refusals import OpenAIError

PAGING = {
    "version": VERSION,
    "limit": Annotated[
        int | Left, Query(ge=1, le=messages.MOST_OF_PAGE, description="with it: models in a page")
    ],
    "after_id": Annotated[Text, Query(description="with it: behind which model the page begins")],
    "before_id": Annotated[Text, Query(description="with it: before which model the page ends")],
}
EITHER = OpenAIError | AnthropicError


def _openai(path: str, call: Any, body: Any, whole: Any, chunk: str | None, says: str) -> HotRoute:
    responses: dict[int | str, dict[str, Any]] = refusals(*SUBMIT, openai=True, submits=True)
    if chunk:
        responses[200] = {"content": _chunks(chunk)}
    return HotRoute(
        *("POST", path, call, Access.CALLER),
        submits=True,
        body=body,
        parameters=OURS,
        description=says,
        response_model=whole,
        responses=with_limits(responses),
        tags=["openai"],
    )


def _chunks(name: str) -> dict[str, Any]:
    names = (name, "OpenAIError")
    text = json_text({"anyOf": [{"$ref": REF.format(model=name)} for name in names]})
    data = {"anyOf": [{"const": "[DONE]"}, text]}
    return stream_of({"type": "object", "required": ["data"], "properties": {"data": data}})


ROUTES = (
    _openai(
        "/v1/chat/completions",
        openai.chat_completions,
        ChatRequest,
        ChatCompletion,
        "ChatCompletionChunk",
        "OpenAI's chat completions: a whole answer, or with `stream` its chunks." + AS_IT_CAME,
    ),
    _openai(
        "/v1/completions",
        openai.completions,
        CompletionRequest,
        Completion,
        "Completion",
        "OpenAI's text completions: a whole answer, or with `stream` its parts." + AS_IT_CAME,
    ),
    _openai(
        "/v1/embeddings",
        openai.embeddings,
        EmbeddingRequest,
        EmbeddingList,
        None,
        "OpenAI's embeddings." + AS_IT_CAME,
    ),
    HotRoute(
        *("GET", "/v1/models", openai.models, Access.CALLER),
        description="The models that are configured or offered now, of those that the caller's key covers.",
        parameters=PAGING,
        response_model=ModelList | ModelPage,
        responses=with_limits(refusals(400, 401, 403, 429, 503, openai=True, model=EITHER)),
        tags=["openai"],
    ),
    HotRoute(
        *("GET", "/v1/models/{model:path}", openai.model, Access.CALLER),
        description="One of the models of `GET /v1/models`.",
        parameters={"model": Annotated[str, Path()], "version": VERSION},
        response_model=ModelRow | AnthropicModel,
        responses=with_limits(refusals(*READ, openai=True, model=EITHER)),
        tags=["openai"],
    ),
)
