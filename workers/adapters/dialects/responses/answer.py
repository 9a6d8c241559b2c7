"""OpenAI's responses, streamed or whole, as deltas. Pure.

A whole response is read as if it had been streamed: its items one after the other, so that there is one order for both. What chat
has no word for stands in pieces (`RESPONSE_ITEMS`) at the place where it came.
"""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from fairlane.workers.adapters.chunks import MOST_CHOICES, StreamError, check_event, is_null, usage_of
from fairlane.workers.adapters.dialects.base import Output
from fairlane.workers.adapters.dialects.chat import calls_delta, usage_from
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.values import Delta, Usage

RESPONSE_ITEMS = "response_items"
"""The member of a delta's `extra.delta` with these pieces: workers/PROTOCOL.md says what each means."""
MOST_ITEM = 8 << 20
"""Bytes of an item that is passed on as it came: a picture that the upstream drew."""
MOST_SEALED = 1 << 20
"""Characters of sealed thoughts; longer ones are shown, but cannot be sent back."""
_BETWEEN = "\n\n"
_NULL = Raw(b"null")
_REASONS = {"content_filter": "content_filter"}
"""Why a response is incomplete, as chat says it; all else is that it became too long."""
_THOUGHTS = {
    "response.reasoning_summary_text.delta": "summary",
    "response.reasoning_text.delta": "content",
    "response.reasoning.delta": "content",
}
_SAYINGS = frozenset({"response.output_text.delta", "response.refusal.delta"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _Part(Struct):
    text: str = ""
    refusal: str = ""
    annotations: Raw = _NULL
    logprobs: Raw = _NULL


class _Kind(Struct):
    type: str = ""


class _Message(Struct):
    content: list[_Part] | None = None
    phase: str | None = None


class _Call(Struct):
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Reasoning(Struct):
    summary: list[_Part] | None = None
    content: list[_Part] | None = None
    encrypted_content: str | None = None


class _Why(Struct):
    reason: str = ""


class _Response(Struct):
    status: str = ""
    output: list[Raw] = []
    incomplete_details: _Why | None = None
    usage: Raw = _NULL
    error: Raw = _NULL


class _Whole(_Response, kw_only=True):
    output: list[Raw]


class _Event(Struct):
    type: str = ""
    output_index: int = 0
    content_index: int = 0
    summary_index: int = 0
    delta: Any = None
    item: Raw = _NULL
    part: _Part | UnsetType = UNSET
    logprobs: Raw = _NULL
    response: _Response | UnsetType = UNSET
    error: Raw = _NULL


_event = msgspec.json.Decoder(_Event)
_kind = msgspec.json.Decoder(_Kind)


class _Open:
    """An item that has begun."""

    def __init__(self, call: int = -1) -> None:
        self.call = call
        """Of a function call, which it is."""
        self.empty = True
        """It has no arguments yet."""
        self.said: set[int] = set()
        """Parts of a message that were told as they came."""
        self.noted: set[int] = set()
        """Those of which the annotations were told."""
        self.thinks = ""
        """Thoughts are told as a summary, or as they are: whichever comes first."""
        self.part = 0
        self.done = False

    def says(self, part: int) -> None:
        """Something of this part of a message has come, be it nothing. Raises ValueError where there are too many parts: events
        that say nothing are no output, and so nothing else bounds them."""
        if len(self.said) >= MOST_CHOICES and part not in self.said:
            raise ValueError(f"an item of more than {MOST_CHOICES} parts")
        self.said.add(part)


class ResponsesReader:
    """Reads one response. See `Reader`."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.done = False
        self._items: dict[int, _Open] = {}
        self._calls = 0
        self._begun = False

    @property
    def complete(self) -> bool:
        return self.done

    def last(self) -> Delta | None:
        return None

    def read(self, event: bytes) -> list[Delta]:
        return self._marked(self._read(event))

    def _read(self, event: bytes) -> list[Delta]:
        if event.strip() == b"[DONE]":
            return []  # behind the last event; without that one it is no whole stream
        check_event(event)
        said = _event.decode(event)
        if said.type == "error":
            raise StreamError(Raw(event) if is_null(said.error) else said.error)
        if not said.type and not is_null(said.error):
            raise StreamError(said.error)
        at = said.output_index
        if said.type in _SAYINGS and isinstance(said.delta, str):
            self._item(at).says(said.content_index)
            if said.type == "response.refusal.delta":
                return [Delta(refusal=said.delta)] if said.delta else []
            return _text(said.delta, said.logprobs)
        if (thinks := _THOUGHTS.get(said.type)) and isinstance(said.delta, str):
            part = said.summary_index if thinks == "summary" else said.content_index
            return self._think(self._item(at), thinks, part, said.delta)
        if said.type == "response.function_call_arguments.delta" and isinstance(said.delta, str):
            return self._argue(self._item(at), said.delta)
        if said.type == "response.output_item.added":
            return self._begin(at, said.item)
        if said.type == "response.content_part.done" and said.part is not UNSET:
            return self._note(self._item(at), said.content_index, said.part)
        if said.type == "response.output_item.done":
            return self._finish(at, said.item)
        if said.type in _ENDS and said.response is not UNSET:
            return self._end(said.response)
        return []

    def whole(self, body: bytes) -> list[Output]:
        check_event(body)
        response = msgspec.json.decode(body, type=_Whole)
        deltas = self._marked(self._end(response))
        return [*deltas, *([] if self.usage is None else [self.usage])]

    def _marked(self, deltas: list[Delta]) -> list[Delta]:
        """The first ones begin with one that says that their order is to be kept."""
        if not deltas or self._begun:
            return deltas
        self._begun = True
        return [_pieces(), *deltas]

    # ---- items ----------

    def _item(self, at: int) -> _Open:
        opened = self._items.get(at)
        if opened is None:
            if len(self._items) >= MOST_CHOICES:
                raise ValueError(f"more than {MOST_CHOICES} items")
            opened = self._items[at] = _Open()
        return opened

    def _begin(self, at: int, raw: Raw) -> list[Delta]:
        kind, opened = _kind.decode(raw).type, self._item(at)
        if kind == "function_call" and opened.call < 0:
            opened.call, self._calls = self._calls, self._calls + 1
            call = msgspec.json.decode(raw, type=_Call)
            return [Delta(tool_calls=calls_delta(opened.call, call.call_id, call.name, ""))]
        if kind == "message" and (phase := msgspec.json.decode(raw, type=_Message).phase):
            return [_pieces({"type": "message", "phase": phase})]
        return []

    def _finish(self, at: int, raw: Raw) -> list[Delta]:
        """An item is whole: what was not told of it as it came."""
        new = at not in self._items
        opened = self._item(at)
        if opened.done:
            return []
        kind = _kind.decode(raw).type
        deltas = self._begin(at, raw) if new else []
        opened.done = True
        if kind == "message":
            for index, part in enumerate(msgspec.json.decode(raw, type=_Message).content or ()):
                if index not in opened.said:
                    deltas += _text(part.text, part.logprobs) if part.text else []
                    deltas += [Delta(refusal=part.refusal)] if part.refusal else []
                deltas += self._note(opened, index, part)
        elif kind == "function_call":
            deltas += self._begin(at, raw) if opened.call < 0 else []
            if opened.empty:
                arguments = msgspec.json.decode(raw, type=_Call).arguments
                deltas += self._argue(opened, arguments or "{}")
        elif kind == "reasoning":
            deltas += self._thought(opened, msgspec.json.decode(raw, type=_Reasoning))
        elif kind:
            if len(bytes(raw)) > MOST_ITEM:
                raise ValueError(f"an item of more than {MOST_ITEM} bytes")
            deltas.append(_pieces(raw))
        return deltas

    def _argue(self, opened: _Open, arguments: str) -> list[Delta]:
        if opened.call < 0 or not arguments:
            return []
        opened.empty = False
        call = {"index": opened.call, "function": {"arguments": arguments}}
        return [Delta(tool_calls=Raw(msgspec.json.encode([call])))]

    def _think(self, opened: _Open, thinks: str, part: int, text: str) -> list[Delta]:
        if not text or opened.thinks not in ("", thinks):
            return []
        between = _BETWEEN if opened.thinks and part != opened.part else ""
        opened.thinks, opened.part = thinks, part
        return [Delta(reasoning=between + text)]

    def _thought(self, opened: _Open, item: _Reasoning) -> list[Delta]:
        """The end of what was thought at one time, and how it is sealed."""
        deltas: list[Delta] = []
        if not opened.thinks:
            texts = [part.text for part in item.summary or item.content or () if part.text]
            deltas = [Delta(reasoning=_BETWEEN.join(texts))] if texts else []
        piece = {"type": "reasoning"}
        if item.encrypted_content and len(item.encrypted_content) <= MOST_SEALED:
            piece["encrypted_content"] = item.encrypted_content
        return [*deltas, _pieces(piece)]

    def _note(self, opened: _Open, index: int, part: _Part) -> list[Delta]:
        """The annotations of a text that is whole; of none they would be taken for those of the text before."""
        if is_null(part.annotations) or bytes(part.annotations).strip() == b"[]" or index in opened.noted:
            return []
        if not part.text:
            return []
        if index not in opened.said and not opened.done:
            return []  # its text comes with the whole item
        opened.noted.add(index)
        return [_pieces({"type": "output_text", "annotations": part.annotations})]

    # ---- the end ----------

    def _end(self, response: _Response) -> list[Delta]:
        if not is_null(response.usage):
            self.usage = _usage(response.usage) or self.usage
        if response.status == "failed" or not is_null(response.error):
            failed = b'{"message":"the response failed"}' if is_null(response.error) else response.error
            raise StreamError(Raw(bytes(failed)))
        if response.status not in ("completed", "incomplete"):
            raise TaskError(
                "UPSTREAM_ERROR",
                f"The upstream ended its response as {response.status[:40]!r}.",
                retryable=True,
            )
        deltas: list[Delta] = []
        if not self._items:  # nothing was told as it came
            for at, raw in enumerate(response.output):
                deltas += self._finish(at, raw)
        self.done = True
        reason = "tool_calls" if self._calls else "stop"
        if response.status == "incomplete":
            why = "" if response.incomplete_details is None else response.incomplete_details.reason
            reason = _REASONS.get(why, "length")
        return [*deltas, Delta(finish_reason=reason)]


def _text(text: str, logprobs: Raw) -> list[Delta]:
    if not text:
        return []
    if is_null(logprobs) or bytes(logprobs).strip() == b"[]":
        return [Delta(content=text)]
    return [Delta(content=text, extra=Raw(msgspec.json.encode({"logprobs": {"content": logprobs}})))]


def _pieces(*pieces: Any) -> Delta:
    return Delta(extra=Raw(msgspec.json.encode({"delta": {RESPONSE_ITEMS: pieces}})))


def _usage(raw: Raw) -> Usage | None:
    """Usage in chat's words."""
    told = usage_of(raw)
    if told is None or (told.input_tokens is None and told.output_tokens is None):
        return None
    return usage_from(
        told.input_tokens or 0,
        told.output_tokens or 0,
        cached=_inner(told.details, "input_tokens_details", "cached_tokens"),
        reasoning=_inner(told.details, "output_tokens_details", "reasoning_tokens"),
    )


def _inner(members: dict[str, Any], name: str, inner: str) -> int:
    found = members.get(name)
    count = found.get(inner) if isinstance(found, dict) else None
    return count if isinstance(count, int) and count > 0 else 0
