"""What the descriptions of several surfaces have in common."""

from typing import Annotated, Any

from fastapi import Header

from fairlane.gateway.api.models.base import REF, Left
from fairlane.gateway.api.models.openai import OpenAIHeaders

SUBMIT = (400, 401, 403, 404, 408, 410, 413, 415, 422, 429, 499, 500, 502, 503, 504)
READ = (400, 401, 403, 404, 429, 503)
Text = str | Left
VERSION = Annotated[
    Text, Header(alias="anthropic-version", description="any: the answer is as Anthropic's clients want it")
]
OURS = {"ours": Annotated[OpenAIHeaders, Header()]}
AS_IT_CAME = "\n\nThe body goes to the worker as it came; what Fairlane needs to know stands in headers."
LEFT = {
    "limit": "the limit of which least is left",
    "remaining": "how much of it is left",
    "reset": "until all of it is back, as 12ms, 1.5s, 6m0s",
}
LIMIT_HEADERS = {
    f"x-ratelimit-{name}-{counts}": {
        "schema": {"type": "string"},
        "description": f"Where there is a limit: {says}",
    }
    for counts in ("requests", "tokens")
    for name, says in LEFT.items()
}


def with_limits(responses: dict[int | str, dict[str, Any]]) -> dict[int | str, dict[str, Any]]:
    """Each answer to a caller says what is left of his limits."""
    told = {status: {"headers": LIMIT_HEADERS} for status in (200, *responses) if status not in (401, 403)}
    return {status: {**responses.get(status, {}), **told.get(status, {})} for status in (*responses, *told)}


def json_text(schema: dict[str, Any]) -> dict[str, Any]:
    """A text that is JSON of this schema."""
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}


def stream_of(item: dict[str, Any]) -> dict[str, Any]:
    """An answer of server-sent events, of which each is an `item`."""
    return {"text/event-stream": {"itemSchema": item}}


def named_events(name: str) -> dict[str, Any]:
    """Events that are named by their types."""
    data = json_text({"$ref": REF.format(model=name)})
    members = {"event": {"type": "string"}, "data": data}
    return stream_of({"type": "object", "required": ["event", "data"], "properties": members})
