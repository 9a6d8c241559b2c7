"""One of OpenAI's Responses requests as a chat request. Pure. What goes where is told in docs/responses.md."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from fairlane.gateway.calls.bodies import Members
from fairlane.gateway.calls.fixed import object_of
from fairlane.gateway.calls.outputs import MOST
from fairlane.gateway.calls.reading import (
    EMPTY,
    MOST_BYTES,
    NOT_HERE,
    Budget,
    is_null,
    read,
    refused,
    string,
    text,
)
from fairlane.gateway.calls.responses import shapes
from fairlane.gateway.calls.responses.items import Conversation
from fairlane.gateway.calls.responses.kept import kept_input
from fairlane.gateway.calls.responses.tools import Tools, read_choice, read_tools
from fairlane.gateway.errors import too_large
from fairlane.streaming.jsontext import NULL, join_object, json_string, kind_of, one_line
from fairlane.workers.adapters.dialects.chat import ANTHROPIC

_READ = frozenset(
    {
        *(
            "model",
            "input",
            "instructions",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "text",
            "reasoning",
        ),
        *(
            "max_output_tokens",
            "max_tool_calls",
            "temperature",
            "top_p",
            "presence_penalty",
            "frequency_penalty",
        ),
        *(
            "top_logprobs",
            "include",
            "truncation",
            "metadata",
            "stream",
            "stream_options",
            "store",
            "background",
        ),
        *("previous_response_id", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        "service_tier",
    }
)
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")
LOGPROBS = "message.output_text.logprobs"
INCLUDED = frozenset({LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url"})
"""What may be asked for beside the answer; the last two are told without being asked."""
MOST_LOGPROBS = 20
MOST_METADATA = 16
MOST_KEY = 64
MOST_VALUE = 512
MOST_ECHO = 512 * 1024
"""Bytes of what a response repeats: they are held for as long as it streams, and stand in four of its events."""
MOST_REFERENCES = 1000
"""Items that are looked up for one request."""
_MOST_ID = 256
_LONGEST_REFERENCE = 1024
"""Bytes of an item that refers to another one."""
_REFERENCE = re.compile(rb'item_reference|"id"')
_AS_THEY_ARE = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_TEXTS = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")
"""Members that chat has, too: what an upstream of OpenAI's is told, and others leave."""
_DEFAULTS: dict[str, bytes] = {
    "background": b"false",
    "frequency_penalty": b"0",
    "instructions": NULL,
    "max_output_tokens": NULL,
    "max_tool_calls": NULL,
    "metadata": b"{}",
    "parallel_tool_calls": b"true",
    "presence_penalty": b"0",
    "previous_response_id": NULL,
    "prompt_cache_key": NULL,
    "prompt_cache_retention": NULL,
    "reasoning": b'{"effort":null,"summary":null}',
    "safety_identifier": NULL,
    "service_tier": b'"default"',
    "store": b"false",
    "temperature": b"1",
    "text": b'{"format":{"type":"text"}}',
    "tool_choice": b'"auto"',
    "tools": b"[]",
    "top_logprobs": b"0",
    "top_p": b"1",
    "truncation": b'"disabled"',
    "user": NULL,
}
"""What a response repeats of its request, and what it says where that says nothing: as OpenAI's does."""

_number, _whole, _flag, _name = Decoder(float), Decoder(int), Decoder(bool), Decoder(str)
_names, _pairs, _raws = Decoder(list[str]), Decoder(dict[str, str]), Decoder(list[Raw])
_text, _format, _thinking, _options = (
    Decoder(shapes.Text),
    Decoder(shapes.Format),
    Decoder(shapes.Thinking),
    Decoder(shapes.StreamOptions),
)
_reference = Decoder(shapes.Kind)


class Wishes(NamedTuple):
    """What a request says of keeping, and of what was kept: to be looked up before it can be read."""

    store: bool | None
    """None: nothing."""
    background: bool
    previous: str | None
    """`previous_response_id`."""
    references: tuple[str, ...]
    """Ids of items of earlier responses that its input refers to (`item_reference`), each once."""


class Asked(NamedTuple):
    """What a Responses request asks for."""

    fields: Members
    """The chat request's members."""
    payload: bytes
    """The same as a body."""
    echo: bytes
    """What the response object repeats of its request, one line of JSON: an object, which the views are given."""
    input_items: bytes
    """The input as a list of items, one line of JSON: without the history, references as what they mean, ids only where the
    caller said some. Only of a response that is kept; else `[]`."""


def wishes_of(fields: Members) -> Wishes:
    """What is to be looked up for a request of these members. Raises ApiError(400)."""
    said = _said(fields)
    store = read(said["store"], _flag, "store") if "store" in said else None
    background = "background" in said and read(said["background"], _flag, "background")
    previous = None
    if "previous_response_id" in said:
        previous = read(said["previous_response_id"], _name, "previous_response_id")
        if not 0 < len(previous) <= _MOST_ID:
            raise refused("previous_response_id", f"must be an id of 1 to {_MOST_ID} characters")
    return Wishes(store, background, previous, _references(said))


def _references(said: Members) -> tuple[str, ...]:
    raw = said.get("input")
    if raw is None or kind_of(raw) != "[" or not _REFERENCE.search(memoryview(raw)):
        return ()
    found: dict[str, None] = {}
    for number, item in enumerate(Budget(MOST_BYTES).items(raw, _raws, "input")):
        if len(memoryview(item)) > _LONGEST_REFERENCE:
            continue
        kind = read(item, _reference, f"input[{number}]")
        if kind.id and (kind.type or ("" if kind.role else "item_reference")) == "item_reference":
            found[kind.id] = None
    if len(found) > MOST_REFERENCES:
        raise refused("input", f"refers to more than {MOST_REFERENCES} items; send the items themselves")
    return tuple(found)


def chat_of(fields: Members, *, stream: bool = False, **options: Any) -> Asked:
    """What `chat_steps` comes to, at once."""
    return next(asked for asked in chat_steps(fields, stream=stream, **options) if asked is not None)


def chat_steps(
    fields: Members,
    *,
    stream: bool,
    store: bool = False,
    most: int = MOST_BYTES,
    history: Sequence[bytes] = (),
    known: Mapping[str, bytes] | None = None,
) -> Iterator[Asked | None]:
    """The chat request of a Responses request, in steps, between which others may run: of a large request each takes a part of
    its time. The last one yields it.

    `store`: whether the response is kept, whatever the request says. `history`: items that come before its input, of
    `previous_response_id`: those of its input and of its output, oldest first. `known`: items by the ids that
    `Wishes.references` names.
    Raises ApiError: 400 that names what cannot be said, 413 for more than `most` bytes.
    """
    said, known = _said(fields), known or {}
    for name, raw in said.items():
        if name not in _READ and bytes(raw).strip() not in EMPTY:
            raise refused(name, NOT_HERE)
    echo = {**_DEFAULTS, "store": b"true" if store else b"false"}
    chat: Members = {}
    if "model" in said:
        chat["model"] = said["model"]
    budget = Budget(most)
    conversation = Conversation(budget, known)
    if "instructions" in said:
        conversation.add_instructions(said["instructions"])
    yield from conversation.add(history, "previous_response_id")
    if "input" not in said:
        raise refused("input", "is missing")
    yield from conversation.add_input(said["input"])
    conversation.end()
    if not conversation.messages:
        raise refused("input", "at least one item is needed")
    chat["messages"] = Raw(b"[%b]" % b",".join(conversation.messages))
    extended = conversation.extended
    del conversation
    yield None
    _settings(said, chat, echo)
    tools = read_tools(said["tools"], budget) if "tools" in said else Tools({}, {})
    read_choice(said.get("tool_choice"), tools, chat, echo)
    if "parallel_tool_calls" in said:
        read(said["parallel_tool_calls"], _flag, "parallel_tool_calls")
        if "tools" in chat:
            chat["parallel_tool_calls"] = said["parallel_tool_calls"]
    _output(said, chat, echo)
    _included(said, chat)
    if stream:
        chat["stream"] = Raw(b"true")
        chat["stream_options"] = Raw(b'{"include_usage":true}')
    if extended:
        chat[ANTHROPIC] = Raw(b"{}")
    for name in echo.keys() & said.keys() & _REPEATED:
        echo[name] = one_line(bytes(said[name]))
    _check_echo(echo)
    yield None
    payload = object_of(chat)
    if len(payload) > most:
        raise too_large(most)
    kept = b"[%b]" % b",".join(kept_input(said["input"], known)) if store else b"[]"
    yield Asked(chat, payload, join_object(echo.items()), kept)


_REPEATED = frozenset(
    {
        *(
            "background",
            "instructions",
            "max_output_tokens",
            "max_tool_calls",
            "metadata",
            "parallel_tool_calls",
        ),
        *("previous_response_id", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
        *("service_tier", "top_logprobs", "truncation", "user", *_AS_THEY_ARE),
    }
)
"""What is repeated as it came."""


def _check_echo(echo: Mapping[str, bytes]) -> None:
    """See whether what each answer repeats is not too much. Raises ApiError(400) that names the largest part of it."""
    if sum(map(len, echo.values())) > MOST_ECHO:
        most = max(echo, key=lambda name: len(echo[name]))
        raise refused(
            most, f"instructions, tools and text may take {MOST_ECHO} bytes together: a response repeats them"
        )


def _said(fields: Members) -> Members:
    return {name: raw for name, raw in fields.items() if not is_null(raw)}


def _settings(said: Members, chat: Members, echo: dict[str, bytes]) -> None:
    """What chat says in the same words, or another one; what is only repeated; and what must have its one value."""
    for name in said.keys() & set(_AS_THEY_ARE):
        read(said[name], _number, name)
        chat[name] = said[name]
    for name in said.keys() & set(_TEXTS):
        text(said[name], name)
        chat[name] = said[name]
    for name, word in (("max_output_tokens", "max_completion_tokens"), ("max_tool_calls", "")):
        if name in said:
            if not 1 <= read(said[name], _whole, name) <= MOST:
                raise refused(name, f"must be a whole number from 1 to {MOST}")
            if word:
                chat[word] = said[name]
    if "truncation" in said and read(said["truncation"], _name, "truncation") != "disabled":
        raise refused(
            "truncation", "must be disabled: nothing is left out of an input here; send fewer items"
        )
    if "metadata" in said:
        _check_metadata(read(said["metadata"], _pairs, "metadata"))
    if (
        "stream_options" in said
        and read(said["stream_options"], _options, "stream_options").include_obfuscation
    ):
        raise refused(
            "stream_options.include_obfuscation", "events are not padded here; leave it out, or false"
        )
    if "reasoning" in said:
        _reasoning(read(said["reasoning"], _thinking, "reasoning"), chat, echo)


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > MOST_METADATA:
        raise refused("metadata", f"may have at most {MOST_METADATA} members")
    for name, value in metadata.items():
        if len(name) > MOST_KEY or len(value) > MOST_VALUE:
            raise refused(
                f"metadata.{name[:MOST_KEY]}",
                f"names may have {MOST_KEY} characters at most, values {MOST_VALUE}",
            )


def _reasoning(thinking: shapes.Thinking, chat: Members, echo: dict[str, bytes]) -> None:
    """How much is thought; a summary is what was thought, as nobody here makes it shorter."""
    if thinking.effort is not None:
        if thinking.effort not in EFFORTS:
            raise refused("reasoning.effort", f"must be one of {', '.join(EFFORTS)}")
        chat["reasoning_effort"] = Raw(json_string(thinking.effort))
    for name, value in (("summary", thinking.summary), ("generate_summary", thinking.generate_summary)):
        if value not in (None, *SUMMARIES):
            raise refused(f"reasoning.{name}", f"must be one of {', '.join(SUMMARIES)}")
    if thinking.context not in (None, "auto"):
        raise refused("reasoning.context", NOT_HERE)
    if thinking.mode not in (None, "standard"):
        raise refused("reasoning.mode", NOT_HERE)
    summary = thinking.summary or thinking.generate_summary
    echo["reasoning"] = msgspec.json.encode({"effort": thinking.effort, "summary": summary})


def _output(said: Members, chat: Members, echo: dict[str, bytes]) -> None:
    """What form the text has."""
    if "text" not in said:
        return
    wanted = read(said["text"], _text, "text")
    told = [("format", b'{"type":"text"}')]
    if not is_null(wanted.format):
        form = read(wanted.format, _format, "text.format")
        if form.type == "json_schema":
            schema = _schema(form)
            chat["response_format"] = Raw(named_schema(schema))
            told = [("format", join_object([("type", b'"json_schema"'), *_all_of(schema)]))]
        elif form.type == "json_object":
            told = [("format", b'{"type":"json_object"}')]
            chat["response_format"] = Raw(b'{"type":"json_object"}')
        elif form.type != "text":
            raise refused("text.format.type", "must be text, json_object or json_schema")
    if wanted.verbosity is not None:
        if wanted.verbosity not in VERBOSITIES:
            raise refused("text.verbosity", f"must be one of {', '.join(VERBOSITIES)}")
        chat["verbosity"] = Raw(json_string(wanted.verbosity))
        told.append(("verbosity", json_string(wanted.verbosity)))
    echo["text"] = one_line(join_object(told))


def _schema(form: shapes.Format) -> dict[str, bytes]:
    """The members of a schema that are said."""
    if kind_of(form.json_schema) != "{":
        raise refused("text.format.schema", "must be a JSON schema, an object")
    schema = {"name": string(form.name, "text.format.name")}
    if not is_null(form.description):
        schema["description"] = string(form.description, "text.format.description")
    if form.strict is not None:
        schema["strict"] = b"true" if form.strict else b"false"
    return {**schema, "schema": bytes(form.json_schema)}


def named_schema(schema: Mapping[str, bytes]) -> bytes:
    """A schema as chat's `response_format`."""
    return join_object([("type", b'"json_schema"'), ("json_schema", join_object(schema.items()))])


def _all_of(schema: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """A schema as a response tells it: with what was not said."""
    return list({"description": NULL, "strict": b"false", **schema}.items())


def _included(said: Members, chat: Members) -> None:
    """What is to be told beside the answer."""
    included = read(said["include"], _names, "include") if "include" in said else []
    for number, name in enumerate(included):
        if name not in INCLUDED:
            raise refused(f"include[{number}]", f"{name[:100]!r} is not told here; leave it out")
    top = read(said["top_logprobs"], _whole, "top_logprobs") if "top_logprobs" in said else 0
    if not 0 <= top <= MOST_LOGPROBS:
        raise refused("top_logprobs", f"must be a whole number from 0 to {MOST_LOGPROBS}")
    if LOGPROBS in included:
        chat["logprobs"] = Raw(b"true")
        if top:
            chat["top_logprobs"] = Raw(b"%d" % top)
    elif top:
        raise refused("top_logprobs", f"is told only with {LOGPROBS!r} in include")
