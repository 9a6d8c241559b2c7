"""One of OpenAI's Responses requests as a chat request. Pure. docs/http-api.md has the table."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Raw
from msgspec.json import Decoder

from fairlane.gateway.core.bodies import RawObject, encode_members
from fairlane.gateway.errors import too_large
from fairlane.gateway.openai.shapes import (
    MAX_BYTES,
    NOT_HERE,
    HostedTools,
    SizeLimit,
    invalid,
    is_empty,
    read,
)
from fairlane.gateway.responses.request import shapes
from fairlane.gateway.responses.request.echo import DEFAULTS, new_echo, whole_echo
from fairlane.gateway.responses.request.items import Conversation
from fairlane.gateway.responses.request.settings import read_included, read_output, read_settings
from fairlane.gateway.responses.request.stored_input import stored_items
from fairlane.gateway.responses.request.tools import Tools, read_choice
from fairlane.streaming.jsontext import kind_of
from fairlane.workers.adapters.dialects.chat import ANTHROPIC
from fairlane.workers.adapters.lenient import given_members

_READ = frozenset({"model", "input", "include", "stream", "stream_options", *DEFAULTS})
_IGNORED = frozenset({"access_programs", "client_metadata", "prompt_cache_options"})
"""Bookkeeping: nothing of an answer depends on it."""
MAX_REFERENCES = 1000
"""Items that are looked up for one request."""
_MAX_ID = 256
_LONGEST_REFERENCE = 1024
"""Bytes of an item that refers to another one."""
_REFERENCES = (b"item_reference", b'"id"')
_flag, _name, _raws = Decoder(bool), Decoder(str), Decoder(list[Raw])
_reference = Decoder(shapes.Kind)


class StorageOptions(NamedTuple):
    """The storage options of a request, which are read before the rest."""

    store: bool | None
    """None: nothing."""
    background: bool
    previous: str | None
    """`previous_response_id`."""
    references: tuple[str, ...]
    """Ids of items of earlier responses that its input refers to (`item_reference`), each once."""

    @property
    def needs_storage(self) -> bool:
        """Whether the request requires storage."""
        return self.background or self.store is True


WORDS = {
    "response_format.json_schema.schema": "text.format.schema",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
}
"""The names here of members of chat that errors can name."""


class ResponsesRequest(NamedTuple):
    """A Responses request, converted to a chat request."""

    fields: RawObject
    """The members of the chat request, which a worker gets."""
    payload: bytes
    """The chat request as a body."""
    echo: bytes
    """The members that the response object repeats, a JSON object on one line, for the views."""
    input_items: bytes
    """The input as a list of items, one line of JSON: without the history, references as what they mean, ids only where the
    caller said some. Only of a response that is kept; else `[]`."""


def read_storage_options(fields: RawObject) -> StorageOptions:
    """Return what is to be looked up for a request of these members. Raise ApiError(400)."""
    given = given_members(fields)
    store = read(given["store"], _flag, "store") if "store" in given else None
    background = "background" in given and read(given["background"], _flag, "background")
    previous = None
    if "previous_response_id" in given:
        previous = read(given["previous_response_id"], _name, "previous_response_id")
        if not 0 < len(previous) <= _MAX_ID:
            raise invalid("previous_response_id", f"must be an id of 1 to {_MAX_ID} characters")
    references: dict[str, None] = {}
    raw = given.get("input")
    if raw is not None and kind_of(raw) == "[" and any(mark in bytes(raw) for mark in _REFERENCES):
        _find_references(raw, references)
    return StorageOptions(store, background, previous, tuple(references))


def _find_references(raw: Raw, found: dict[str, None]) -> None:
    listed = read(raw, _raws, "input")
    for number, item in enumerate(listed):
        if len(memoryview(item)) > _LONGEST_REFERENCE:
            continue
        kind = read(item, _reference, f"input[{number}]")
        if kind.id and (kind.type or ("" if kind.role else "item_reference")) == "item_reference":
            found[kind.id] = None
    if len(found) > MAX_REFERENCES:
        raise invalid("input", f"refers to more than {MAX_REFERENCES} items; send the items themselves")


def chat_of(
    fields: RawObject,
    *,
    stream: bool = False,
    store: bool = False,
    most: int = MAX_BYTES,
    history: Sequence[bytes] = (),
    known: Mapping[str, bytes] | None = None,
    hosted_tools: HostedTools = "reject",
) -> ResponsesRequest:
    """Return the chat request of a Responses request.

    `store`: whether the response is kept, whatever the request says. `history`: items that come before its input, of
    `previous_response_id`: those of its input and of its output, oldest first. `known`: items by the ids that
    `StorageOptions.references` names. `hosted_tools`: the setting. Raise ApiError: 400 that names what cannot be said, 413 for
    more than `most` bytes.
    """
    given, known = given_members(fields), known or {}
    for name, raw in given.items():
        if name not in _READ and name not in _IGNORED and not is_empty(raw):
            raise invalid(name, NOT_HERE)
    echo = new_echo(given, store=store)
    chat: RawObject = {}
    if "model" in given:
        chat["model"] = given["model"]
    budget = SizeLimit(most)
    tools = Tools(hosted_tools)
    if "tools" in given:
        tools.add(given["tools"], "tools")
    conversation = Conversation(budget, known, tools)
    if "instructions" in given:
        conversation.add_instructions(given["instructions"])
    conversation.add_history(history, "previous_response_id")
    if "input" not in given:
        raise invalid("input", "is missing")
    conversation.add_input(given["input"])
    conversation.flush()
    if not conversation.messages:
        raise invalid("input", "at least one item is needed")
    chat["messages"] = Raw(b"[%b]" % b",".join(conversation.messages))
    extended = conversation.extended
    del conversation
    read_settings(given, chat, echo)
    read_choice(given.get("tool_choice"), tools, chat, echo)
    if "parallel_tool_calls" in given:
        read(given["parallel_tool_calls"], _flag, "parallel_tool_calls")
        if "tools" in chat:
            chat["parallel_tool_calls"] = given["parallel_tool_calls"]
    read_output(given, chat, echo)
    read_included(given, chat)
    if stream:
        chat["stream"] = Raw(b"true")
        chat["stream_options"] = Raw(b'{"include_usage":true}')
    if extended:
        chat[ANTHROPIC] = Raw(b"{}")
    echoed = whole_echo(echo)
    payload = encode_members(chat)
    if len(payload) > most:
        raise too_large(most)
    kept = stored_items(given["input"], known) if store else []
    return ResponsesRequest(chat, payload, echoed, b"[%b]" % b",".join(kept))
