"""The hot calls: raw ASGI, found and carried out before FastAPI, which describes them in its document. One file per surface."""

from typing import Any

from pydantic import TypeAdapter

from fairlane.gateway.api.hot import files, media, messages, native, openai, permits, responses
from fairlane.gateway.api.hot.describing import json_text
from fairlane.gateway.api.models.base import REF
from fairlane.gateway.api.models.messages import MessageEvent
from fairlane.gateway.api.models.openai import ChatCompletionChunk
from fairlane.gateway.api.models.responses import ResponseEvent

ROUTES = (
    *openai.ROUTES,
    *responses.ROUTES,
    *media.ROUTES,
    *messages.ROUTES,
    *native.ROUTES,
    *permits.ROUTES,
    *files.ROUTES,
)
"""In the order in which patterns are tried."""


def stream_schemas() -> dict[str, Any]:
    """The parts of the document on what streams hold."""
    from fairlane.gateway.api.events import NativeEvent  # noqa: PLC0415 - its models are made for the document alone

    events, definitions = TypeAdapter.json_schemas(
        [
            ("NativeEvent", "serialization", TypeAdapter(NativeEvent)),
            ("ChatCompletionChunk", "serialization", TypeAdapter(ChatCompletionChunk)),
            ("MessageEvent", "serialization", TypeAdapter(MessageEvent)),
            ("ResponseEvent", "serialization", TypeAdapter(ResponseEvent)),
        ],
        ref_template=REF,
    )
    schemas: dict[str, Any] = definitions["$defs"]
    for schema in schemas.values():
        members = schema.get("properties", {})
        if "event" in members:  # a frame's data is text, which is JSON
            members["data"] = json_text(members["data"])
    return {**schemas, "NativeEvent": events["NativeEvent", "serialization"]}
