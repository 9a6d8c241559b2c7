"""Reads the body of a batch line as the request of its call, with the functions of the call itself."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from msgspec import Raw

from fairlane.gateway.core.bodies import Bodies, RawObject
from fairlane.gateway.core.spec import read_flag
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.openai.requests import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    Read,
    read_chat,
    read_completion,
    read_embedding,
)
from fairlane.gateway.responses.request.request import chat_of, read_storage_options
from fairlane.gateway.settings import Settings
from fairlane.streaming.views.responses import ResponsesBodyView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.task import TaskInfo


class Request(NamedTuple):
    """The request of a line, as its call reads it."""

    task_type: str
    payload: bytes
    fields: RawObject
    view: Callable[[TaskInfo], ResultView]
    """Makes the body of the answer."""
    needs: int = 0
    """Bytes of it that `view` holds."""


async def _plain(read: Read, body: Raw, bodies: Bodies, _: Settings) -> Request:
    fields = await bodies.parse(body)
    wanted = read(fields)
    if wanted.streamed is not None:
        raise _cannot_stream()
    return Request(wanted.task_type, bytes(body), fields, wanted.whole)


async def _responses(body: Raw, bodies: Bodies, settings: Settings) -> Request:
    fields = await bodies.parse(body)
    if read_flag(fields, "stream"):
        raise _cannot_stream()
    wishes = await bodies.run(len(body), read_storage_options, fields)
    for name, wish in (
        ("background", wishes.background),
        ("store", wishes.store),
        ("previous_response_id", wishes.previous),
    ):
        if wish:
            raise bad_request(f"{name} is not supported in a batch: its responses are not stored", name)
    read = partial(chat_of, most=settings.max_body_bytes, hosted_tools=settings.hosted_tools)
    asked = await bodies.run(len(body), read, fields)
    view = partial(ResponsesBodyView, echo=asked.echo)
    return Request("openaiLike", asked.payload, asked.fields, view, len(asked.echo))


def _cannot_stream() -> ApiError:
    return bad_request("A request of a batch cannot stream: leave stream out", "stream")


READERS: Final[Mapping[str, Callable[[Raw, Bodies, Settings], Awaitable[Request]]]] = {
    CHAT: partial(_plain, read_chat),
    COMPLETIONS: partial(_plain, read_completion),
    EMBEDDINGS: partial(_plain, read_embedding),
    RESPONSES: _responses,
}
"""By the path of the call. They raise the ApiError with which the call would reject the request."""
