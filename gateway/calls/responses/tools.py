"""The tools of a Responses request, which are functions, and which of them is to be called. Pure."""

from typing import NamedTuple

from msgspec import Raw
from msgspec.json import Decoder

from fairlane.gateway.calls.bodies import RawObject
from fairlane.gateway.calls.responses import shapes
from fairlane.gateway.calls.shapes import NOT_HERE, Typed, check_callers, invalid, is_null, read, string
from fairlane.streaming.jsontext import NULL, join_object, json_string, kind_of, one_line

CHOICES = ("auto", "none", "required")
_raws, _typed, _name = Decoder(list[Raw]), Decoder(Typed), Decoder(str)
_tool, _choice, _named = Decoder(shapes.Tool), Decoder(shapes.Choice), Decoder(shapes.Named)


class Tools(NamedTuple):
    """Functions as chat has them, and as the response repeats them, by their names."""

    chat: dict[str, bytes]
    echoed: dict[str, bytes]


def read_tools(raw: Raw) -> Tools:
    """Return the tools of a request. Raise ApiError(400)."""
    tools = Tools({}, {})
    raws = read(raw, _raws, "tools")
    for number, one in enumerate(raws):
        place = f"tools[{number}]"
        kind = read(one, _typed, place).type
        if kind != "function":
            raise invalid(f"{place}.type", f"{str(kind)[:100]!r} is not run here: only functions are known")
        tool = read(one, _tool, place)
        name = string(tool.name, f"{place}.name")
        known_as = read(name, _name, f"{place}.name")
        if known_as in tools.chat:
            raise invalid(f"{place}.name", "there is another one of that name")
        tools.chat[known_as], tools.echoed[known_as] = _function(name, tool, place)
    return tools


def _function(name: bytes, tool: shapes.Tool, place: str) -> tuple[bytes, bytes]:
    if tool.defer_loading:
        raise invalid(f"{place}.defer_loading", "tools are not searched here")
    if tool.is_async:
        raise invalid(f"{place}.async", NOT_HERE)
    check_callers(tool.allowed_callers, f"{place}.allowed_callers")
    if not is_null(tool.output_schema):
        raise invalid(f"{place}.output_schema", NOT_HERE)
    function = [("name", name)]
    description = NULL if is_null(tool.description) else string(tool.description, f"{place}.description")
    if description != NULL:
        function.append(("description", description))
    parameters = bytes(NULL if is_null(tool.parameters) else tool.parameters)
    if parameters != NULL:
        if kind_of(parameters) != "{":
            raise invalid(f"{place}.parameters", "must be a JSON schema, an object")
        function.append(("parameters", parameters))
    if tool.strict:
        function.append(("strict", b"true"))
    strict = NULL if tool.strict is None else b"true" if tool.strict else b"false"
    echo = [("type", b'"function"'), ("name", name), ("description", description), ("parameters", parameters)]
    chat = join_object([("type", b'"function"'), ("function", join_object(function))])
    return chat, one_line(join_object([*echo, ("strict", strict)]))


def read_choice(raw: Raw | None, tools: Tools, chat: RawObject, echo: dict[str, bytes]) -> None:
    """Write the tools and the choice to the chat request, and their echo. Raise ApiError(400)."""
    echo["tools"] = b"[%b]" % b",".join(tools.echoed.values())
    offered = list(tools.chat.values())
    wanted: bytes | None = None
    if raw is not None:
        echo["tool_choice"] = one_line(bytes(raw))
        if kind_of(raw) == '"':
            wanted = bytes(raw)
            if read(raw, _name, "tool_choice") not in CHOICES:
                raise invalid("tool_choice", f"must be one of {', '.join(CHOICES)}, or an object")
        else:
            wanted, offered = _chosen(raw, tools)
    if offered:
        chat["tools"] = Raw(b"[%b]" % b",".join(offered))
        if wanted is not None:
            chat["tool_choice"] = Raw(wanted)
    elif wanted not in (None, b'"auto"', b'"none"'):
        raise invalid("tool_choice", "there are no tools")


def _chosen(raw: Raw, tools: Tools) -> tuple[bytes, list[bytes]]:
    """Return the choice that an object makes, and the tools that the model sees: with `allowed_tools` only these."""
    kind = read(raw, _typed, "tool_choice").type
    if kind not in ("function", "allowed_tools"):
        raise invalid("tool_choice.type", f"{str(kind)[:100]!r} is not known here: function or allowed_tools")
    choice = read(raw, _choice, "tool_choice")
    if kind == "function":
        name = json_string(_known(choice.name, tools, "tool_choice.name"))
        return b'{"type":"function","function":{"name":%b}}' % name, list(tools.chat.values())
    if choice.mode not in ("auto", "required"):
        raise invalid("tool_choice.mode", "must be auto or required")
    allowed: dict[str, bytes] = {}
    listed = () if is_null(choice.tools) else read(choice.tools, _raws, "tool_choice.tools")
    for number, one in enumerate(listed):
        place = f"tool_choice.tools[{number}]"
        tool = read(one, _named, place)
        if tool.type != "function":
            raise invalid(f"{place}.type", "must be function")
        name_of = _known(tool.name, tools, f"{place}.name")
        allowed[name_of] = tools.chat[name_of]
    if not allowed:
        raise invalid("tool_choice.tools", "at least one tool is needed")
    return json_string(choice.mode), list(allowed.values())


def _known(name: str | None, tools: Tools, place: str) -> str:
    """Return the name of a known tool. Raise ApiError(400)."""
    if name is None:
        raise invalid(place, "is missing")
    if name not in tools.chat:
        raise invalid(place, f"there is no tool {name[:100]!r}")
    return name
