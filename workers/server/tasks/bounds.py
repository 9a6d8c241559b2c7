"""How much the values may hold that a worker sends for one task: parts that the gateway takes apart, and levels. Pure.

Views take apart what callers read in pieces: the choices of a result and their messages, tool calls, vectors, usage, and the
members of deltas that are not known. Each part becomes objects of a hundred bytes and more, and takes some microseconds: a list
of 4 MiB of `[],` had a million. Everything else stays bytes, and may hold as many values as its bytes allow.
"""

import msgspec

from fairlane.streaming.jsontext import MAX_DEPTH, count_parts, items, kind_of, members, too_deep

MAX_USAGE = 16 * 1024
"""Bytes of the usage of a task."""
MAX_PARTS = 10_000
"""Of a result: its members, its choices, their members and tool calls, all together."""
MAX_ITEMS = 1024
"""Choices of a result, tool calls in one delta or message, and members of an `extra`."""
MAX_VECTORS = 8192
MAX_DIMENSIONS = 65_536
"""Numbers of a result that is one vector."""
MAX_NUMBERS = 2_000_000
"""Numbers of a result of embeddings, and its other values."""
EMBEDDING = "openaiEmbedding"


class _TooManyError(Exception):
    """Says of what."""


class _Budget:
    def __init__(self) -> None:
        self._left = MAX_PARTS

    def take(self, raw: bytes | None, most: int, what: str) -> None:
        """Count the parts of a list or an object."""
        count = count_parts(raw, min(most, self._left))
        if count > most:
            raise _TooManyError(f"more than {most} {what}")
        self._left -= count
        if self._left < 0:
            raise _TooManyError(f"more than {MAX_PARTS} parts")


def excess_of_result(result: bytes, task_type: str) -> str | None:
    """What a result has too much of, as the end of "The result has …"; None when it may pass."""
    if too_deep(result):
        return f"more than {MAX_DEPTH} levels"
    try:
        if task_type == EMBEDDING:
            _check_vectors(result)
        else:
            _check_choices(result)
    except _TooManyError as error:
        return str(error)
    return None


def excess_of_tools(tools: bytes) -> str | None:
    """What a delta's list of tool calls has too much of."""
    if len(tools) < MAX_ITEMS:  # it cannot have so many, and most are short
        return f"more than {MAX_DEPTH} levels" if too_deep(tools) else None
    if count_parts(tools, MAX_ITEMS) > MAX_ITEMS:
        return f"more than {MAX_ITEMS} tool calls"
    if too_deep(tools):
        return f"more than {MAX_DEPTH} levels"
    if tools.count(b":") > MAX_PARTS:
        budget = _Budget()
        try:
            for call in items(tools) or ():
                budget.take(call, MAX_ITEMS, "members of a tool call")
        except _TooManyError as error:
            return str(error)
    return None


def excess_of_extra(extra: bytes) -> str | None:
    """What the further members of a delta have too much of."""
    if too_deep(extra):
        return f"more than {MAX_DEPTH} levels"
    if extra.count(b":") <= MAX_ITEMS:
        return None
    budget = _Budget()
    try:
        budget.take(extra, MAX_ITEMS, "members")
        for inner in (members(extra) or {}).values():
            if kind_of(inner) == "{":
                budget.take(inner, MAX_ITEMS, "members of a member")
    except _TooManyError as error:
        return str(error)
    return None


def _check_choices(result: bytes) -> None:
    if kind_of(result) != "{" or result.count(b",") + result.count(b":") <= MAX_ITEMS:
        return
    budget = _Budget()
    budget.take(result, MAX_PARTS, "members")
    found = members(result) or {}
    _check_usage(found)
    _check_message(found, budget)
    choices = found.get("choices")
    if kind_of(choices) != "[":
        return
    budget.take(choices, MAX_ITEMS, "choices")
    for choice in items(choices) or ():
        if kind_of(choice) == "{":
            budget.take(choice, MAX_PARTS, "members of a choice")
            inside = members(choice) or {}
            _check_message(inside, budget)
            if kind_of(message := inside.get("message")) == "{":
                budget.take(message, MAX_PARTS, "members of a message")
                _check_message(members(message) or {}, budget)


def _check_usage(found: dict[str, msgspec.Raw]) -> None:
    usage = found.get("usage")
    if usage is not None and len(memoryview(usage)) > MAX_USAGE:
        raise _TooManyError(f"more than {MAX_USAGE} bytes of usage")


def _check_message(found: dict[str, msgspec.Raw], budget: _Budget) -> None:
    for name in ("tool_calls", "toolCalls"):
        if kind_of(calls := found.get(name)) == "[":
            budget.take(calls, MAX_ITEMS, "tool calls")
            for call in items(calls) or ():
                budget.take(call, MAX_PARTS, "members of a tool call")


def _check_vectors(result: bytes) -> None:
    if result.count(b",") > MAX_NUMBERS:
        raise _TooManyError(f"more than {MAX_NUMBERS} numbers")
    kind = kind_of(result)
    if kind == "[":
        if result.count(b"[") == 1 and result.count(b",") > MAX_DIMENSIONS:
            raise _TooManyError(f"more than {MAX_DIMENSIONS} numbers in a vector")
        if result.count(b"[") > MAX_VECTORS + 1 and count_parts(result, MAX_VECTORS) > MAX_VECTORS:
            raise _TooManyError(f"more than {MAX_VECTORS} vectors")
    elif kind == "{":
        if result.count(b":") > 8 * MAX_VECTORS or count_parts(result, MAX_ITEMS) > MAX_ITEMS:
            raise _TooManyError(f"more than {8 * MAX_VECTORS} members")
        found = members(result) or {}
        _check_usage(found)
        if count_parts(found.get("data"), MAX_VECTORS) > MAX_VECTORS:
            raise _TooManyError(f"more than {MAX_VECTORS} vectors")
