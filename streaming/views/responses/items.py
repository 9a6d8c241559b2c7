"""The output items of a response, and the parts of their content, as JSON. Pure."""

from collections.abc import Sequence

from fairlane.streaming.jsontext import items, members, one_line

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
