"""OpenAI's Responses, and those that are kept."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query

from fairlane.gateway.access import Access
from fairlane.gateway.api import kept_responses, responses
from fairlane.gateway.api.framing import HotRoute, refusals
from fairlane.gateway.api.hot.describing import OURS, READ, SUBMIT, Text, named_events, stream_of, with_limits
from fairlane.gateway.api.models.base import Left
from fairlane.gateway.api.models.responses import (
    InputItems,
    ResponseDeleted,
    ResponseObject,
    ResponsesRequest,
)
from fairlane.gateway.responses.items import MOST_OF_PAGE


def _responses(says: str) -> HotRoute:
    refused: dict[int | str, dict[str, Any]] = refusals(*SUBMIT, openai=True, submits=True)
    refused[200] = {"content": _response_content()}
    return HotRoute(
        *("POST", "/v1/responses", responses.responses, Access.CALLER),
        submits=True,
        body=ResponsesRequest,
        parameters=OURS,
        description=says,
        response_model=ResponseObject,
        responses=with_limits(refused),
        tags=["openai"],
    )


def _response_content() -> dict[str, Any]:
    """The events of a response."""
    data = named_events("ResponseEvent")["text/event-stream"]["itemSchema"]
    done = {"type": "object", "required": ["data"], "properties": {"data": {"const": "[DONE]"}}}
    return stream_of({"anyOf": [data, done]})


def _kept(
    method: str, path: str, call: Any, whole: Any, says: str, query: dict[str, Any] | None = None
) -> HotRoute:
    responses: dict[int | str, dict[str, Any]] = refusals(*READ, openai=True)
    if query and "starting_after" in query:
        responses[200] = {"content": _response_content()}
    return HotRoute(
        *(method, f"/v1/responses/{{response_id}}{path}", call, Access.CALLER),
        parameters={"response_id": Annotated[str, Path()], **(query or {})},
        description=says,
        response_model=whole,
        responses=with_limits(responses),
        tags=["openai"],
    )


ROUTES = (
    _responses(
        "OpenAI's Responses: a whole response, or with `stream` its events. What a model for chat completions cannot be told is "
        "refused, by its name. Where all workers of its models take the request as it is, it goes to them so."
    ),
    _kept(
        *("GET", "", kept_responses.retrieve, ResponseObject),
        "A response that is kept, as it stands now; or with `stream` its events, from the first or behind `starting_after`, then "
        "as they come.",
        {
            "stream": Annotated[bool | Left, Query(description="its events")],
            "starting_after": Annotated[
                int | Left,
                Query(
                    ge=0, description="with `stream`: the `sequence_number` of the last event that was seen"
                ),
            ],
        },
    ),
    _kept(
        *("DELETE", "", kept_responses.delete, ResponseDeleted),
        "Deletes a response that is kept. One that runs is cancelled.",
    ),
    _kept(
        *("POST", "/cancel", kept_responses.cancel, ResponseObject),
        "Cancels a response in the background. One that has ended stays as it is.",
    ),
    _kept(
        *("GET", "/input_items", kept_responses.input_items, InputItems),
        "The items of a response's input, without those that it goes on from.",
        {
            "limit": Annotated[int | Left, Query(ge=1, le=MOST_OF_PAGE, description="of items, 20")],
            "order": Annotated[Literal["asc", "desc"] | Left, Query(description="newest first, `desc`")],
            "after": Annotated[Text, Query(description="the id of the item behind which the page begins")],
        },
    ),
)
