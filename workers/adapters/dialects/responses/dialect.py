"""The call of OpenAI's Responses."""

from collections.abc import Collection

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.dialects.base import Call
from fairlane.workers.adapters.dialects.responses.answer import ResponsesReader
from fairlane.workers.adapters.dialects.responses.request import responses_request


def responses_call(members: dict[str, Raw], model: str, *, stream: bool, allowed: Collection[str]) -> Call:
    """The request for a task whose payload, a request of Responses, has these members. Raises `TaskError` for what callers may
    not ask for."""
    body = responses_request(members, model, stream=stream, allowed=allowed)
    return Call("/responses", msgspec.json.encode(body), ResponsesReader(), stream)
