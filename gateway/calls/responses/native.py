"""One of OpenAI's Responses requests as it is, for workers whose upstream has Responses. Pure.

What the gateway does itself is taken out (who keeps responses, goes on from them, runs in the background), and what was kept is
put in front. All else stays as it came: what it means is for the upstream to know, and what callers may ask for is for the worker
to say, as its operator does.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from fairlane.gateway.calls.bodies import Members
from fairlane.gateway.calls.fixed import object_of
from fairlane.gateway.calls.reading import LARGE, MOST_AT_ONCE, MOST_BYTES, Budget, read, refused
from fairlane.gateway.calls.responses import shapes
from fairlane.gateway.calls.responses.echo import new_echo, whole_echo
from fairlane.gateway.calls.responses.kept import kept_steps
from fairlane.gateway.calls.responses.request import Asked, check_names, said_of
from fairlane.gateway.calls.responses.settings import check_include, read_settings
from fairlane.gateway.errors import too_large
from fairlane.streaming.jsontext import count_parts, join_object, kind_of, members, one_line
from fairlane.streaming.views.responses.thoughts import unsealed
from fairlane.workers.tasktypes import RESPONSES

_OURS = frozenset({"background", "metadata", "previous_response_id", "store", "stream", "stream_options"})
"""Members that are the gateway's matter."""
_OF_UPSTREAM = frozenset({"reasoning", "truncation"})
"""Settings that are not looked at: an upstream may have other values than chat."""
MOST_MEMBERS = 100
"""Of an item, and of a tool: each is taken apart."""
_SECRET = ("authorization", "headers")
"""Members of a tool that a response does not repeat: with them the upstream gets in elsewhere."""
_NOT_BACK = frozenset(
    {
        *("file_search_call", "code_interpreter_call", "image_generation_call"),
        *("mcp_list_tools", "mcp_call", "mcp_approval_request"),
    }
)
"""What tools of the upstream's did, which it takes back by its own ids alone: of an upstream that keeps nothing they are gone."""


class _Thinking(Struct):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class _Kind(Struct):
    type: str | None = None
    role: str | None = None
    id: str | None = None
    encrypted_content: str | None = None
    content: Raw = Raw(b"null")
    output: Raw = Raw(b"null")


_kind, _raws, _objects = Decoder(_Kind), Decoder(list[Raw]), Decoder(list[dict[str, Raw]])
_thinking = Decoder(_Thinking)


def native_steps(
    fields: Members,
    *,
    stream: bool,
    store: bool = False,
    most: int = MOST_BYTES,
    history: Sequence[bytes] = (),
    known: Mapping[str, bytes] | None = None,
    kept_input: Raw | None = None,
    files: int = 0,
) -> Iterator[Asked | None]:
    """A Responses request as a worker gets it that takes it as it is, in steps, as `chat_steps` has them: with the same options,
    and raising likewise. `kept_input`: the input as it is kept, where that is another one (files by their ids)."""
    said, known = said_of(fields), known or {}
    check_names(said)
    echo = new_echo(said, store=store)
    budget = Budget(most, files)
    if "input" not in said:
        raise refused("input", "is missing")
    listed: list[bytes] = []
    yield from _add(history, "previous_response_id", budget, known, listed)
    if kind_of(said["input"]) == '"':
        listed.append(b'{"role":"user","content":%b}' % bytes(said["input"]))
    elif kind_of(said["input"]) == "[":
        items = budget.items(said["input"], _raws, "input")
        yield from _add(items, "input", budget, known, listed)
    else:
        raise refused("input", "must be a text or a list of items")
    if not listed:
        raise refused("input", "at least one item is needed")
    read_settings({name: raw for name, raw in said.items() if name not in _OF_UPSTREAM}, {}, echo)
    check_include(said)
    _repeat(said, echo, budget)
    told = whole_echo(echo)
    yield None
    asked: Members = {name: raw for name, raw in said.items() if name not in _OURS}
    asked["input"] = Raw(b"[%b]" % b",".join(listed))
    asked["store"] = Raw(b"false")
    if stream:
        asked["stream"] = Raw(b"true")
    payload = object_of(asked)
    if len(payload) + files > most:
        raise too_large(most)
    kept: list[bytes] = []
    if store:
        yield from kept_steps(said["input"] if kept_input is None else kept_input, known, kept)
    yield Asked(asked, payload, told, b"[%b]" % b",".join(kept), RESPONSES)


def _add(
    items: Sequence[bytes | Raw], place: str, budget: Budget, known: Mapping[str, bytes], listed: list[bytes]
) -> Iterator[None]:
    held = 0
    for number, raw in enumerate(items, 1):
        item = _item(raw, f"{place}[{number - 1}]", budget, known)
        if item is not None:
            listed.append(item)
        held += len(memoryview(raw))
        if held >= LARGE or number % MOST_AT_ONCE == 0:
            held = 0
            yield


def _item(raw: bytes | Raw, place: str, budget: Budget, known: Mapping[str, bytes]) -> bytes | None:
    """An item as an upstream takes it that keeps nothing: without the id, which it would look for. None: it cannot go back."""
    budget.grow(len(memoryview(raw)))
    kind = read(raw, _kind, place)
    item_type = kind.type or ("message" if kind.role is not None else "item_reference")
    if item_type == "item_reference":
        found = known.get(kind.id or "")
        if found is None:
            named = (kind.id or "")[:100]
            raise refused(f"{place}.id", f"no item {named!r} is kept here; send the item itself")
        return _item(found, place, budget, {})
    for name, parts in (("content", kind.content), ("output", kind.output)):
        if kind_of(parts) == "[":
            budget.items(parts, _raws, f"{place}.{name}")
    if item_type == "message":
        _check_message(kind, place)
    if item_type == "mcp_approval_response":
        raise refused(f"{place}.type", "the tools of MCP servers are not asked for their approval here")
    if item_type in _NOT_BACK:
        return None
    _check_members(raw, place)
    left_out = {"id"}
    if item_type == "reasoning":
        if not kind.encrypted_content or unsealed(kind.encrypted_content) is not None:
            return None  # of another model: nobody there can read it
        left_out.add("content")
    found_members = members(raw) or {}
    if not left_out & found_members.keys():
        return one_line(bytes(raw))
    return one_line(
        join_object((name, bytes(value)) for name, value in found_members.items() if name not in left_out)
    )


def _check_members(raw: bytes | Raw, place: str) -> None:
    if count_parts(raw, MOST_MEMBERS) > MOST_MEMBERS:
        raise refused(place, f"may have at most {MOST_MEMBERS} members")


def _check_message(kind: _Kind, place: str) -> None:
    if kind.role not in shapes.ROLES:
        raise refused(f"{place}.role", f"must be one of {', '.join(shapes.ROLES)}")
    if kind_of(kind.content) not in ('"', "["):
        raise refused(f"{place}.content", "must be a text or a list of parts")


def _repeat(said: Members, echo: dict[str, bytes], budget: Budget) -> None:
    """Tell the response what it repeats otherwise than it came."""
    if "tools" in said:
        for number, tool in enumerate(budget.items(said["tools"], _raws, "tools")):
            _check_members(tool, f"tools[{number}]")
        tools = read(said["tools"], _objects, "tools")
        shown = [
            join_object((n, bytes(raw)) for n, raw in tool.items() if n not in _SECRET) for tool in tools
        ]
        echo["tools"] = one_line(b"[%b]" % b",".join(shown))
    for name, form in (("text", "{"), ("tool_choice", '"{')):
        if name in said:
            if kind_of(said[name]) not in form:
                raise refused(name, "must be an object")
            echo[name] = one_line(bytes(said[name]))
    if "reasoning" in said:
        thinking = read(said["reasoning"], _thinking, "reasoning")
        summary = thinking.summary or thinking.generate_summary
        echo["reasoning"] = msgspec.json.encode({"effort": thinking.effort, "summary": summary})
