"""Anthropic's Messages."""

from typing import Annotated, Any

from fastapi import Header

from fairlane.gateway.access import Access
from fairlane.gateway.api import messages
from fairlane.gateway.api.framing import HotRoute, refusals
from fairlane.gateway.api.hot.describing import READ, SUBMIT, named_events, with_limits
from fairlane.gateway.api.models.messages import (
    AnthropicError,
    AnthropicHeaders,
    CountTokensRequest,
    Message,
    MessagesRequest,
    TokensCount,
)

ANTHROPICS = {"ours": Annotated[AnthropicHeaders, Header()]}


def _anthropic(path: str, call: Any, body: Any, whole: Any, says: str, *, submits: bool) -> HotRoute:
    statuses = (*SUBMIT, 529) if submits else (*READ, 408, 413, 415)
    responses = refusals(*statuses, submits=submits, model=AnthropicError)
    if submits:
        responses[200] = {"content": named_events("MessageEvent")}
    return HotRoute(
        *("POST", path, call, Access.CALLER),
        submits=submits,
        body=body,
        parameters=ANTHROPICS,
        description=says,
        response_model=whole,
        responses=with_limits(responses),
        tags=["anthropic"],
    )


ROUTES = (
    _anthropic(
        "/v1/messages",
        messages.messages,
        MessagesRequest,
        Message,
        "Anthropic's Messages: a whole answer, or with `stream` its events. What a model for chat completions cannot be told is "
        "refused, by its name.",
        submits=True,
    ),
    _anthropic(
        "/v1/messages/count_tokens",
        messages.count_tokens,
        CountTokensRequest,
        TokensCount,
        "How many tokens of input a Messages request has: an estimate, a quarter of its bytes. No task is made.",
        submits=False,
    ),
)
