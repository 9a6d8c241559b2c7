"""The tools of a Responses request as functions of chat, and which of them is to be called. Pure."""

from msgspec import Raw
from msgspec.json import Decoder

from fairlane.gateway.core.bodies import RawObject
from fairlane.gateway.openai.shapes import (
    NOT_HERE,
    HostedTools,
    Typed,
    check_callers,
    check_hosted,
    invalid,
    is_null,
    read,
    string,
    text,
)
from fairlane.gateway.responses.request import shapes
from fairlane.streaming.jsontext import NULL, join_object, json_string, kind_of, one_line
from fairlane.streaming.views.responses.tools import INPUT, SEARCH, function_name

CHOICES = ("auto", "none", "required")
_INPUT_SCHEMA = (
    b'{"type":"object","properties":{"%b":{"type":"string"}},"required":["%b"],"additionalProperties":false}'
    % (INPUT.encode(), INPUT.encode())
)
_raws, _typed, _name = Decoder(list[Raw]), Decoder(Typed), Decoder(str)
_tool, _choice, _named = Decoder(shapes.Tool), Decoder(shapes.Choice), Decoder(shapes.Named)
_custom, _format, _namespace, _search, _web = (
    Decoder(shapes.Custom),
    Decoder(shapes.CustomFormat),
    Decoder(shapes.Namespace),
    Decoder(shapes.Search),
    Decoder(shapes.WebSearch),
)


class Tools:
    """The tools that a model is offered. `hosted`: what happens to tools that only their provider can run."""

    def __init__(self, hosted: HostedTools = "reject") -> None:
        self._hosted = hosted
        self.functions: dict[str, bytes] = {}
        """As chat has them, by their names there."""
        self.echoed: list[bytes] = []
        """As the response repeats them."""

    def add(self, raw: Raw, place: str) -> list[str]:
        """Add a list of tools, except those that an earlier list had. Return the names of its functions. Raise ApiError(400)."""
        names: list[str] = []
        listed = read(raw, _raws, place)
        for number, one in enumerate(listed):
            at = f"{place}[{number}]"
            found = self._read(one, at)
            for name, _ in found:
                if name in names:
                    raise invalid(f"{at}.name", "another tool has this name")
                names.append(name)
            new = [(name, function) for name, function in found if name not in self.functions]
            if new:
                self.functions.update(new)
                self.echoed.append(_echo(one))
        return names

    def _read(self, raw: Raw, place: str) -> list[tuple[str, bytes]]:
        """Return the functions that stand for a tool, with their names; none if it is dropped."""
        kind = read(raw, _typed, place).type
        if kind == "namespace":
            group = read(raw, _namespace, place)
            within = f"{place}.tools"
            listed = read(group.tools, _raws, within)
            return [_function(one, f"{within}[{number}]", group.name) for number, one in enumerate(listed)]
        if kind in ("function", "custom"):
            return [_function(raw, place)]
        if kind == SEARCH:
            search = read(raw, _search, place)
            if search.execution == "client":
                return [(SEARCH, _of_chat(SEARCH, search.description, search.parameters, place))]
            return []  # all tools are offered, also those with `defer_loading`
        if read(raw, _web, place).external_web_access is not False:
            check_hosted(kind, f"{place}.type", self._hosted)
        return []


def _function(raw: Raw, place: str, namespace: str = "") -> tuple[str, bytes]:
    """Return the name and the function of a function or a custom tool."""
    kind = read(raw, _typed, place).type
    if kind not in ("function", "custom"):
        raise invalid(f"{place}.type", "must be function or custom")
    tool = read(raw, _tool, place) if kind == "function" else read(raw, _custom, place)
    if tool.is_async:
        raise invalid(f"{place}.async", NOT_HERE)
    check_callers(tool.allowed_callers, f"{place}.allowed_callers")
    name = function_name(read(string(tool.name, f"{place}.name"), _name, f"{place}.name"), namespace)
    if isinstance(tool, shapes.Tool):
        return name, _of_chat(name, tool.description, tool.parameters, place, strict=bool(tool.strict))
    return name, _of_chat(name, _described(tool, place), Raw(_INPUT_SCHEMA), place)


def _described(tool: shapes.Custom, place: str) -> Raw:
    """Return the description of the function that stands for a custom tool: with the grammar of its input."""
    parts = [] if is_null(tool.description) else [text(tool.description, f"{place}.description")]
    parts.append(b"The argument `input` is the whole text that this tool takes.")
    if not is_null(tool.format):
        form = read(tool.format, _format, f"{place}.format")
        if form.type == "grammar":
            grammar = text(form.definition, f"{place}.format.definition")
            parts.append(b"The text must match this grammar (%b):\\n%b" % (form.syntax.encode(), grammar))
    return Raw(b'"%b"' % rb"\n\n".join(parts))


def _of_chat(name: str, description: Raw, parameters: Raw, place: str, *, strict: bool = False) -> bytes:
    """Return a function of chat."""
    function = [("name", json_string(name))]
    if not is_null(description):
        function.append(("description", string(description, f"{place}.description")))
    if not is_null(parameters):
        if kind_of(parameters) != "{":
            raise invalid(f"{place}.parameters", "must be a JSON schema, an object")
        function.append(("parameters", bytes(parameters)))
    if strict:
        function.append(("strict", b"true"))
    return join_object([("type", b'"function"'), ("function", join_object(function))])


def _echo(raw: Raw) -> bytes:
    """Return a tool as the response repeats it: a function with all of its members."""
    if read(raw, _typed, "").type != "function":
        return one_line(bytes(raw))
    tool = read(raw, _tool, "")
    strict = NULL if tool.strict is None else b"true" if tool.strict else b"false"
    shown = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    pairs = [("type", b'"function"'), *((name, bytes(value)) for name, value in shown.items())]
    return one_line(join_object([*pairs, ("strict", strict)]))


def read_choice(raw: Raw | None, tools: Tools, chat: RawObject, echo: dict[str, bytes]) -> None:
    """Write the tools and the choice to the chat request, and their echo. Raise ApiError(400)."""
    echo["tools"] = b"[%b]" % b",".join(tools.echoed)
    offered = list(tools.functions.values())
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
    if kind not in ("function", "custom", "allowed_tools"):
        raise invalid(
            "tool_choice.type", f"{str(kind)[:100]!r} is not supported; use function, custom or allowed_tools"
        )
    choice = read(raw, _choice, "tool_choice")
    if kind != "allowed_tools":
        name = json_string(_known(choice, tools, "tool_choice"))
        return b'{"type":"function","function":{"name":%b}}' % name, list(tools.functions.values())
    if choice.mode not in ("auto", "required"):
        raise invalid("tool_choice.mode", "must be auto or required")
    allowed: dict[str, bytes] = {}
    listed = () if is_null(choice.tools) else read(choice.tools, _raws, "tool_choice.tools")
    for number, one in enumerate(listed):
        place = f"tool_choice.tools[{number}]"
        tool = read(one, _named, place)
        if tool.type not in ("function", "custom"):
            raise invalid(f"{place}.type", "must be function or custom")
        name_of = _known(tool, tools, place)
        allowed[name_of] = tools.functions[name_of]
    if not allowed:
        raise invalid("tool_choice.tools", "at least one tool is needed")
    return json_string(choice.mode), list(allowed.values())


def _known(chosen: shapes.Named, tools: Tools, place: str) -> str:
    """Return the function of a chosen tool. Raise ApiError(400)."""
    if chosen.name is None:
        raise invalid(f"{place}.name", "is missing")
    name = function_name(chosen.name, chosen.namespace or "")
    if name not in tools.functions:
        raise invalid(f"{place}.name", f"there is no tool {name[:100]!r}")
    return name
