"""One of Anthropic's Messages requests as a chat request. Pure. docs/http-api.md has the table."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from fairlane.gateway.core.bodies import RawObject, encode_members
from fairlane.gateway.core.output_size import MAX_OUTPUT_TOKENS
from fairlane.gateway.errors import NO_THREADS, too_large
from fairlane.gateway.messages import shapes
from fairlane.gateway.messages.content import Conversation
from fairlane.gateway.openai.shapes import (
    MAX_BYTES,
    NOT_HERE,
    NULL,
    HostedTools,
    SizeLimit,
    Typed,
    check_callers,
    check_hosted,
    invalid,
    is_empty,
    is_null,
    read,
    text,
)
from fairlane.streaming.jsontext import join_object, kind_of
from fairlane.workers.adapters.dialects.chat import ANTHROPIC
from fairlane.workers.adapters.lenient import given_members

EFFORTS = ("low", "medium", "high", "xhigh", "max")
_BUDGETS = ((4096, "low"), (16_384, "medium"))
"""Up to how many tokens of thinking it is which effort; beyond, `high`."""
MIN_BUDGET = 1024
_READ = frozenset(
    {
        *("model", "messages", "max_tokens", "stream", "system", "temperature", "top_p", "top_k"),
        *("stop_sequences", "metadata", "tools", "tool_choice", "thinking", "output_config", "output_format"),
        *("context_management", "speed"),
    }
)
_ONLY_THERE = ("cache_control", "service_tier")
"""Members that mean something at Anthropic alone, and change nothing of what an answer is."""
_IGNORED = frozenset({"diagnostics", *_ONLY_THERE})
_EDITS = frozenset({"clear_thinking_20251015", "clear_tool_uses_20250919"})
"""Edits that clear a long conversation: they save cost, and may be ignored."""
INLINE_TOKENS = 1600
"""Estimated tokens of an image or a file: those of the largest image at Anthropic."""


_number, _whole, _text, _texts, _raws = (
    Decoder(float),
    Decoder(int),
    Decoder(str),
    Decoder(list[str]),
    Decoder(list[Raw]),
)
_metadata, _typed, _tool_shape, _choice = (
    Decoder(shapes.Metadata),
    Decoder(Typed),
    Decoder(shapes.Tool),
    Decoder(shapes.ToolChoice),
)
_thinking, _config, _format = (
    Decoder(shapes.ThinkingConfig),
    Decoder(shapes.OutputConfig),
    Decoder(shapes.Format),
)
_management, _edits = Decoder(shapes.ContextManagement), Decoder(list[shapes.Edit])


_SCHEMA = "response_format.json_schema.schema"
WORDS = {
    form: {_SCHEMA: f"{form}.schema", "response_format": form, "max_completion_tokens": "max_tokens"}
    for form in ("output_config.format", "output_format")
}
"""The names here of members of chat that errors can name, by where the format of the answer is."""


class MessagesRequest(NamedTuple):
    """A Messages request, converted to a chat request."""

    fields: RawObject
    """The chat request's members."""
    payload: bytes
    """The chat request as a body."""
    estimated_input: int
    """Tokens: a quarter of the payload's bytes, as the scheduler reckons, but for images and files."""
    words: Mapping[str, str]
    """The names here of members of chat that errors can name."""


def chat_of(
    fields: RawObject,
    *,
    stream: bool,
    bounded: bool = True,
    most: int = MAX_BYTES,
    hosted_tools: HostedTools = "reject",
) -> MessagesRequest:
    """Return the chat request of a Messages request with these members. `bounded`: it must bound its output, unless its
    tokens are only counted. `hosted_tools`: the setting. Raise ApiError: 400 that names an unsupported member, 413 for more
    than `most` bytes."""
    given = given_members(fields)
    for name, raw in given.items():
        if name not in _READ and name not in _IGNORED and not is_empty(raw):
            error = invalid(name, NOT_HERE)
            if name == "thread":
                error.code = NO_THREADS
            raise error
    chat: RawObject = {}
    if "model" in given:
        chat["model"] = given["model"]
    budget = SizeLimit(most)
    conversation = Conversation(budget)
    conversation.add_system(given.get("system", NULL))
    if "messages" not in given:
        raise invalid("messages", "is missing")
    conversation.add(given["messages"])
    chat["messages"] = Raw(b"[%b]" % b",".join(conversation.messages))
    conversation.messages.clear()
    if bounded or "max_tokens" in given:
        chat["max_completion_tokens"] = _bound(given.get("max_tokens"))
    _pass_on(given, chat)
    only_there = {name: bytes(given[name]) for name in _ONLY_THERE if name in given}
    extended = _tools(given, chat, hosted_tools) or conversation.extended
    _user(given, chat)
    only_there |= _output(given, chat)
    if stream:
        chat["stream"] = Raw(b"true")
        chat["stream_options"] = Raw(b'{"include_usage":true}')
    if extended or only_there:
        chat[ANTHROPIC] = Raw(join_object(only_there.items()))
    payload = encode_members(chat)
    if len(payload) > most:
        raise too_large(most)
    inline = INLINE_TOKENS * conversation.inline
    estimated = (len(payload) - conversation.inline_bytes) // 4 + inline
    words = WORDS["output_format" if "output_format" in given else "output_config.format"]
    return MessagesRequest(chat, payload, max(estimated, 1), words)


def _bound(raw: Raw | None) -> Raw:
    if raw is None:
        raise invalid("max_tokens", "is missing; it is required, as in Anthropic's API")
    most = read(raw, _whole, "max_tokens")
    if not 1 <= most <= MAX_OUTPUT_TOKENS:
        raise invalid("max_tokens", f"must be an integer from 1 to {MAX_OUTPUT_TOKENS}")
    return raw


def _pass_on(given: RawObject, chat: RawObject) -> None:
    """Pass on members that chat has under the same or another name."""
    kinds: dict[str, Decoder[Any]] = {"temperature": _number, "top_p": _number, "top_k": _whole}
    for name in given.keys() & kinds:
        read(given[name], kinds[name], name)
        chat[name] = given[name]
    if "stop_sequences" in given:
        if read(given["stop_sequences"], _texts, "stop_sequences"):
            chat["stop"] = given["stop_sequences"]
    if "speed" in given and read(given["speed"], _text, "speed") != "standard":
        raise invalid("speed", "must be standard")
    if "context_management" in given:
        managed = read(given["context_management"], _management, "context_management")
        place = "context_management.edits"
        edits = () if is_null(managed.edits) else read(managed.edits, _edits, place)
        for number, edit in enumerate(edits):
            if edit.type not in _EDITS:
                raise invalid(f"{place}[{number}].type", f"{edit.type[:100]!r} is not supported")


def _user(given: RawObject, chat: RawObject) -> None:
    if "metadata" in given:
        metadata = read(given["metadata"], _metadata, "metadata")
        if metadata.user_id is not None:
            chat["user"] = Raw(msgspec.json.encode(metadata.user_id))


def _tools(given: RawObject, chat: RawObject, hosted: HostedTools) -> bool:
    """Write the tools and the choice among them. Return whether a tool has members that chat lacks."""
    extended = False
    raws: list[Raw] = []
    if "tools" in given:
        raws = read(given["tools"], _raws, "tools")
    tools = []
    for number, raw in enumerate(raws):
        tool = _tool(raw, f"tools[{number}]", hosted)
        if tool is None:
            continue
        extended = extended or not is_null(tool.cache_control)
        tools.append(_function(tool, f"tools[{number}]"))
    if tools:
        chat["tools"] = Raw(b"[%b]" % b",".join(tools))
    if "tool_choice" in given:
        _choose(read(given["tool_choice"], _choice, "tool_choice"), chat)
    return extended


def _tool(raw: Raw, place: str, hosted: HostedTools) -> shapes.Tool | None:
    """Return a tool; None for one of Anthropic's own that is dropped."""
    kind = read(raw, _typed, place).type
    if kind not in (None, "custom"):
        check_hosted(kind, f"{place}.type", hosted)
        return None
    tool = read(raw, _tool_shape, place)
    check_callers(tool.allowed_callers, f"{place}.allowed_callers")
    if not is_empty(tool.input_examples):
        raise invalid(f"{place}.input_examples", "is not supported; put examples into the description")
    return tool


def _function(tool: shapes.Tool, place: str) -> bytes:
    text(tool.name, f"{place}.name")
    if kind_of(tool.input_schema) != "{":
        raise invalid(f"{place}.input_schema", "must be a JSON schema, an object")
    function = [("name", bytes(tool.name))]
    if not is_null(tool.description):
        text(tool.description, f"{place}.description")
        function.append(("description", bytes(tool.description)))
    function.append(("parameters", bytes(tool.input_schema)))
    if tool.strict:
        function.append(("strict", b"true"))
    pairs = [("type", b'"function"'), ("function", join_object(function))]
    if not is_null(tool.cache_control):
        pairs.append(("cache_control", bytes(tool.cache_control)))
    return join_object(pairs)


def _choose(choice: shapes.ToolChoice, chat: RawObject) -> None:
    if choice.type in ("auto", "none") and "tools" not in chat:
        return
    if "tools" not in chat:
        raise invalid("tool_choice", "there are no tools")
    if choice.type == "tool":
        if choice.name is None:
            raise invalid("tool_choice.name", "is missing")
        wanted: Any = {"type": "function", "function": {"name": choice.name}}
    elif choice.type in ("auto", "any", "none"):
        wanted = "required" if choice.type == "any" else choice.type
    else:
        raise invalid("tool_choice.type", "must be auto, any, tool or none")
    chat["tool_choice"] = Raw(msgspec.json.encode(wanted))
    if choice.disable_parallel_tool_use:
        chat["parallel_tool_calls"] = Raw(b"false")


def _output(given: RawObject, chat: RawObject) -> dict[str, bytes]:
    """Set reasoning effort and answer format. Return Anthropic's own members for workers that know them."""
    only_there: dict[str, bytes] = {}
    effort = None
    if "output_config" in given:
        config = read(given["output_config"], _config, "output_config")
        effort = config.effort
        if effort is not None and effort not in EFFORTS:
            raise invalid("output_config.effort", f"must be one of {', '.join(EFFORTS)}")
        if not is_null(config.format):
            _form(config.format, "output_config.format", chat)
        if effort is not None:
            only_there["output_config"] = msgspec.json.encode({"effort": effort})
    if "output_format" in given:
        if "response_format" in chat:
            raise invalid("output_format", "output_config.format already sets the format")
        _form(given["output_format"], "output_format", chat)
    if "thinking" in given:
        thinking = read(given["thinking"], _thinking, "thinking")
        if thinking.type == "disabled":
            effort = None
        elif thinking.type == "enabled":
            effort = effort or _effort(thinking)
        elif thinking.type != "adaptive":
            raise invalid("thinking.type", "must be enabled, disabled or adaptive")
        only_there["thinking"] = bytes(given["thinking"])
    if effort is not None:
        chat["reasoning_effort"] = Raw(b'"%b"' % ("xhigh" if effort == "max" else effort).encode())
    return only_there


def _effort(thinking: shapes.ThinkingConfig) -> str:
    """Return the effort of a budget of thinking tokens."""
    budget = thinking.budget_tokens
    if budget is None or not MIN_BUDGET <= budget <= MAX_OUTPUT_TOKENS:
        raise invalid("thinking.budget_tokens", f"must be an integer from {MIN_BUDGET} on")
    return next((effort for most, effort in _BUDGETS if budget < most), "high")


def _form(raw: Raw, place: str, chat: RawObject) -> None:
    form = read(raw, _format, place)
    if form.type != "json_schema":
        raise invalid(f"{place}.type", "must be json_schema")
    if kind_of(form.json_schema) != "{":
        raise invalid(f"{place}.schema", "must be a JSON schema, an object")
    schema = join_object([("name", b'"answer"'), ("strict", b"true"), ("schema", bytes(form.json_schema))])
    chat["response_format"] = Raw(join_object([("type", b'"json_schema"'), ("json_schema", schema)]))
