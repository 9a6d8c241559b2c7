"""The output items of a response, and the parts of their content, as JSON. Pure."""

from collections.abc import Sequence

from fairlane.streaming.jsontext import EMPTY_STRING, items, json_string, members, one_line, string_or_none
from fairlane.streaming.views.choice import Choice, thoughts_of
from fairlane.streaming.views.responses.thoughts import sealed, signed, text_of
from fairlane.streaming.views.responses.tools import Tools

NO_ARGUMENTS = b'"{}"'
"""Those of a call that has none: clients read them as JSON."""
COMPLETED, INCOMPLETE, IN_PROGRESS = b"completed", b"incomplete", b"in_progress"


class Ids:
    """The ids of one response's items, `KIND_TASK_INDEX`: counted by their kinds, so that they do not depend on the order of
    items."""

    def __init__(self, task_id: str) -> None:
        self._task_id = task_id.encode()
        self._counts: dict[bytes, int] = {}

    def next(self, kind: bytes) -> bytes:
        """An id as JSON; `kind` is msg, rs, or that of a tool."""
        count = self._counts.get(kind, 0)
        self._counts[kind] = count + 1
        return b'"%b_%b_%d"' % (kind, self._task_id, count)


def text_part(text: bytes, logprobs: bytes = b"[]") -> bytes:
    return b'{"type":"output_text","text":%b,"annotations":[],"logprobs":%b}' % (text, logprobs)


def refusal_part(text: bytes) -> bytes:
    return b'{"type":"refusal","refusal":%b}' % text


def reasoning_part(text: bytes) -> bytes:
    return b'{"type":"reasoning_text","text":%b}' % text


def summary_part(text: bytes) -> bytes:
    return b'{"type":"summary_text","text":%b}' % text


def message(item_id: bytes, parts: Sequence[bytes], status: bytes) -> bytes:
    return b'{"id":%b,"type":"message","status":"%b","role":"assistant","content":[%b]}' % (
        item_id,
        status,
        b",".join(parts),
    )


def reasoning(item_id: bytes, parts: Sequence[bytes], seal: bytes, *, summarised: bool) -> bytes:
    """What was thought: as its content, or as the summary of it where that is asked for. `seal`: the same as it must come back, a
    JSON string, where that is another one."""
    told, seal = b",".join(parts), b',"encrypted_content":%b' % seal if seal else b""
    if summarised:
        return b'{"id":%b,"type":"reasoning","summary":[%b]%b}' % (item_id, told, seal)
    return b'{"id":%b,"type":"reasoning","summary":[],"content":[%b]%b}' % (item_id, told, seal)


def logprobs_of(found: bytes | None) -> list[bytes]:
    """The tokens of chat's log probabilities, each one line."""
    return [one_line(raw) for raw in items((members(found) or {}).get("content")) or ()]


def called(raw: bytes, number: int) -> tuple[bytes, bytes, bytes]:
    """Id, name and arguments of a chat's tool call, as JSON strings."""
    found = members(raw) or {}
    function = members(found.get("function")) or {}
    arguments = string_or_none(function.get("arguments")) or EMPTY_STRING
    return (
        one_line(string_or_none(found.get("id")) or b'"call_%d"' % number),
        one_line(string_or_none(function.get("name")) or EMPTY_STRING),
        NO_ARGUMENTS if arguments == EMPTY_STRING else one_line(arguments),
    )


def items_of(choice: Choice, task_id: str, last: bytes, tools: Tools, *, summarised: bool) -> list[bytes]:
    """A choice as items: thoughts, the message, calls; `last` is the status of the last of them."""
    ids, told = Ids(task_id), []
    thoughts = signed(thoughts_of(choice.message))
    text = said(choice.reasoning) or said(one_line(json_string("".join(map(text_of, thoughts)))))
    if thoughts or text:
        part = summary_part if summarised else reasoning_part
        parts = [part(text)] if text else []
        seal = sealed(thoughts) if thoughts else b""
        told.append(reasoning(ids.next(b"rs"), parts, seal, summarised=summarised))
    calls = [called(raw, number) for number, raw in enumerate(choice.tool_calls)]
    parts = []
    if text := said(choice.content):
        parts.append(text_part(text, b"[%b]" % b",".join(logprobs_of(choice.members.get("logprobs")))))
    if text := said(choice.refusal):
        parts.append(refusal_part(text))
    if parts:
        told.append(message(ids.next(b"msg"), parts, COMPLETED if calls else last))
    for number, (call_id, name, arguments) in enumerate(calls, 1):
        tool = tools.find(name)
        status, content = last if number == len(calls) else COMPLETED, tool.content_of(arguments)
        told.append(tool.call(ids.next(tool.id_kind), call_id, content, status))
    return told


def said(text: bytes | None) -> bytes:
    """A text that says something, one line; else nothing."""
    return b"" if text is None or text == EMPTY_STRING else one_line(text)
