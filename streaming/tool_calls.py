"""Tool calls in the normal form (PROTOCOL.md): which call a piece belongs to, its id, its arguments as a string. Pure.

Read once, at the entrance of the log. Everything behind it goes by `index`.
"""

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct

from fairlane.streaming.jsontext import (
    EMPTY_STRING,
    as_text,
    items,
    json_string,
    kind_of,
    members,
    string_or_none,
)

MAX_CALLS = 1024
"""Of a choice; those beyond it are left out."""
MAX_HELD_BYTES = 64 * 1024
"""When a choice's calls have said more, arguments are shown although the name of their call is not known."""
_SIGNS = re.compile(r'\\(?:.|$)|["{}\[\]]', re.DOTALL)
_string = msgspec.json.Decoder(str).decode
_index = msgspec.json.Decoder(int, strict=False).decode
_OF_A_CALL = frozenset({"index", "id", "type"})


class Arguments:
    """Whether a JSON object that comes in pieces has ended."""

    __slots__ = ("_begun", "_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._begun = self._in_string = self._escaped = False

    def add(self, text: str) -> None:
        """Take the next piece."""
        if self._escaped and text:
            text, self._escaped = text[1:], False
        for found in _SIGNS.finditer(text):
            sign = found[0]
            if sign[0] == "\\":
                self._escaped = len(sign) == 1
            elif sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._begun = True
                self._depth += 1 if sign in "{[" else -1

    @property
    def whole(self) -> bool:
        """Return whether it has ended."""
        return self._begun and self._depth <= 0 and not self._in_string


class Place(Struct, gc=False):
    """A call delta in the normal form, as far as its index."""

    index: int


class _Body(Struct, gc=False):
    name: Raw = Raw(EMPTY_STRING)
    arguments: Raw = Raw(EMPTY_STRING)


class Piece(Place, gc=False):
    """A call delta in the normal form; `id` is empty but in a call's first."""

    id: Raw = Raw(b"")
    function: _Body = msgspec.field(default_factory=_Body)


read_place = msgspec.json.Decoder(Place).decode
read_pieces = msgspec.json.Decoder(list[Piece]).decode


class _Call:
    __slots__ = ("arguments", "at", "held", "id", "index", "kind", "name", "repeated")

    def __init__(self, at: int | None, name: bytes | None) -> None:
        self.at = at
        """Its index in the words of its worker."""
        self.id: bytes | None = None
        self.name = name
        self.index = -1
        """Among those of its choice that have been shown; -1 before the first piece with a name or arguments."""
        self.kind = ("function", "arguments")
        """Its member, and that member's with the arguments."""
        self.arguments = Arguments()
        self.held: str | None = ""
        """Arguments that are not shown yet: those before its name, and an initial `{}`, which the real ones may replace. None
        after the first that are shown."""
        self.repeated = False
        """Whether its name came once more, without arguments, behind whole ones: those that follow are another call's."""


class CallDeltas:
    """The call deltas of one choice of one attempt."""

    def __init__(self, task_id: str, choice: int) -> None:
        self._task_id = task_id
        self._choice = choice
        self._ids: set[bytes] = set()
        self._by_id: dict[bytes, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._latest: _Call | None = None
        self._calls: list[_Call] = []
        self._shown = 0
        self.said_bytes = 0
        """Of names and arguments so far."""

    def normal(self, deltas: bytes, *, whole: bool = False) -> bytes | None:
        """Return a list of call deltas in the normal form; None where it says nothing that can be shown yet. `whole`: each is
        another call."""
        pieces = []
        for number, raw in enumerate(items(deltas) or ()):
            found = members(raw) or {}
            piece = self._piece(found, number if whole else _place(found.get("index")), hold=not whole)
            if piece is not None:
                pieces.append(piece)
        return b"[%b]" % b",".join(pieces) if pieces else None

    def end(self) -> bytes | None:
        """Return what is held back, in the normal form; None if that is nothing."""
        pieces = []
        for call in self._calls:
            if call.held:
                pieces.append(self._delta(call, {call.kind[1]: Raw(json_string(call.held))}, {}))
                call.held = None
        return b"[%b]" % b",".join(pieces) if pieces else None

    def _piece(self, found: dict[str, Raw], place: int | None, *, hold: bool) -> bytes | None:
        kind, member = ("custom", "input") if "custom" in found else ("function", "arguments")
        body = members(found.pop(kind, None)) or {}
        call_id, name = _said(found.get("id")), _said(body.pop("name", None))
        arguments = _said(body.pop(member, None))
        call = self._find(place, call_id, name, arguments)
        if call is None:
            return None
        call.kind, call.name = (kind, member), call.name or name
        body = _others(body)
        if arguments is None:
            call.repeated = call.repeated or (name is not None and call.arguments.whole)
        text = _string(arguments) if arguments is not None else ""
        if _is_empty(call.held) and text.lstrip().startswith("{"):
            call.arguments, call.held = Arguments(), ""
        elif call.arguments.whole and (call_id or name):
            text = ""  # some servers say all of a call once more at its end
        call.arguments.add(text)
        self.said_bytes += len(text) if text.isascii() else len(text.encode())
        if call.held:
            text = call.held + text
            arguments = json_string(text)
        waits = call.name is None and self.said_bytes < MAX_HELD_BYTES
        if hold and call.held is not None and (waits or _is_empty(text)):
            call.held = text
        elif text:
            call.held, body[member] = None, Raw(arguments or EMPTY_STRING)
        pairs: dict[str, Any] = _others(found)
        begins = call.index < 0 and (call.name is not None or member in body)
        continues = call.index >= 0 and (body or pairs)
        return self._delta(call, body, pairs, found.get("type")) if begins or continues else None

    def _delta(
        self, call: _Call, body: dict[str, Any], pairs: dict[str, Any], type: Raw | None = None
    ) -> bytes:
        """Return a delta of a call: its first one has its id, type and name."""
        kind, member = call.kind
        if call.index < 0:
            call.index = self._shown
            self._shown += 1
            name = call.name or EMPTY_STRING
            self.said_bytes += len(name) - 2
            head = {
                "id": Raw(call.id or _made_id(self._task_id, self._choice, call.index)),
                "type": Raw(string_or_none(type) or json_string(kind)),
            }
            pairs = {**head, kind: {"name": Raw(name), member: Raw(EMPTY_STRING), **body}, **pairs}
        elif body:
            pairs[kind] = body
        return msgspec.json.encode({"index": call.index, **pairs})

    def _find(
        self, place: int | None, call_id: bytes | None, name: bytes | None, arguments: bytes | None
    ) -> _Call | None:
        """Return the call of a piece: that with its id; of a piece without one, that on its index, else the latest. A name that
        the call cannot have begins the next call, and so does an unknown id, unless it comes without a name on the index of a
        call. Return None for one too many."""
        on_index = None if place is None else self._by_index.get(place)
        if call_id is None:
            call = on_index or (None if name and place is not None else self._latest)
            if call is not None and call.repeated:
                name = name or call.name
        elif on_index is not None and on_index.id in (None, call_id):
            call = on_index
        else:
            call = self._by_id.get(call_id) or (None if name else on_index)
        if call is None or _begins_another(call, place, call_id, name, arguments):
            if len(self._calls) == MAX_CALLS:
                return None
            call = _Call(place, name)
            self._calls.append(call)
            if place is not None:
                self._by_index[place] = call
        if call_id is not None:
            if call.id is None and call_id not in self._ids:
                call.id = call_id
                self._ids.add(call_id)
            self._by_id[call_id] = call
        self._latest = call
        return call


def _begins_another(
    call: _Call, place: int | None, call_id: bytes | None, name: bytes | None, arguments: bytes | None
) -> bool:
    """Return whether a piece says by its name that it is of another call than the one that its id or its index name."""
    if name is None or call.name is None:
        return False
    if name != call.name:
        return True
    return call.arguments.whole and (
        place not in (None, call.at) or (call_id is None and arguments is not None)
    )


def _is_empty(arguments: str | None) -> bool:
    """Return whether these are an object without members."""
    return arguments is not None and arguments.strip() == "{}"


def whole_calls(listed: bytes | None, task_id: str, choice: int) -> list[bytes]:
    """Return the calls of a whole message in the normal form, without their indexes."""
    calls = CallDeltas(task_id, choice).normal(listed, whole=True) if listed is not None else None
    return [b"{" + call.partition(b",")[2] for call in items(calls) or ()]


def _made_id(task_id: str, choice: int, index: int) -> bytes:
    """Return an id for a call that has none: of the task, so that no other turn of a conversation has it; OpenAI takes at most
    40 characters, so a long number replaces the first digits of the task's id, which are a time."""
    number = b"%x" % (choice * MAX_CALLS + index)
    return b'"call_%b"' % (task_id.replace("-", "").encode() + number)[-35:]


def _place(raw: Raw | None) -> int | None:
    """Return an index, also one that is written as a string."""
    try:
        return _index(raw or b"null")
    except msgspec.MsgspecError:
        return None


def _said(raw: Raw | None) -> bytes | None:
    """Return a member as a JSON string; None where it is absent, null or empty. Other JSON is written into the string."""
    if raw is None or not kind_of(raw):
        return None
    text = as_text(raw)
    return None if text == EMPTY_STRING else text


def _others(found: dict[str, Raw]) -> dict[str, Raw]:
    """Return the further members that say something."""
    return {name: raw for name, raw in found.items() if name not in _OF_A_CALL and kind_of(raw)}
