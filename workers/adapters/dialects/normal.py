"""One answer in the normal form (PROTOCOL.md, Output), whatever its API format: what its readers share. Pure."""

from abc import abstractmethod
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from fairlane.workers.adapters.choices import MAX_CHOICES, REASONS, finish_of
from fairlane.workers.adapters.dialects.base import Output, Reader
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.failures import UpstreamSaid
from fairlane.workers.adapters.lenient import (
    MAX_PARTS,
    NotJsonError,
    check_size,
    encoded,
    joined,
    lenient,
    without_nulls,
)
from fairlane.workers.sdk.values import Delta, Result

MAX_OF_THE_ANSWER = 64 * 1024
"""Bytes of the members of an answer as a whole; larger ones are left out."""
T = TypeVar("T")
TEXTS = ("content", "reasoning", "refusal")
OUTPUT = (*TEXTS, "tool_calls")


class ChoiceState:
    """What has come of one choice: `names` of texts, calls and unknown members, and by name what whole messages within a stream
    said. Its finish reason, with what came with it, is held back until the stream is over, as some servers continue after it."""

    __slots__ = ("extra", "names", "reason", "whole")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.whole: dict[str, str] = {}
        self.reason: str | None = None
        self.extra: dict[str, Any] = {}

    def note(self, delta: Delta, of_delta: dict[str, Any] | None) -> bool:
        """Note what a delta says; return whether it is output of the model's."""
        said = False
        for name in OUTPUT:
            if getattr(delta, name):
                self.names.add(name)
                said = True
        if of_delta:
            self.names.update(of_delta)
        return said

    def add_rest(self, delta: Delta, whole: Delta) -> None:
        """Add to a delta what a whole message says that deltas, or shorter messages before it, have not said."""
        for name in TEXTS:
            text = getattr(whole, name)
            known = self.whole.get(name, "")
            if text and (known or name not in self.names):
                grows = text.startswith(known)
                self.whole[name] = text if grows else known + text
                setattr(delta, name, (text[len(known) :] if grows else text) or None)
        if "tool_calls" not in self.names:
            delta.tool_calls = whole.tool_calls


class NormalReader(Reader):
    """Knows whether an answer is complete: it has a choice that says something or has a finish reason, and has ended."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self._head = head
        self._max_parts = MAX_PARTS
        self._choices: dict[int, ChoiceState] = {}
        self._has_answer = False
        self._wanted = 1
        """How many choices must have ended where nothing marks the end of the answer."""
        self._about: dict[str, Any] = {}
        """Members of the answer as a whole: its first output has them, as a delta of their own would rule out a retry."""
        self._about_sent = False
        """Whether it had them."""
        self._at_end: dict[str, Any] = {}
        """Those that are sent behind everything else, as they may change."""
        self._top: dict[str, Any] = {}
        """Further members of a whole answer."""
        self._lenient = False
        self._halves: dict[tuple[int, str], str] = {}
        """The first halves of surrogate pairs, whose other halves are to come, by choice and text."""

    @property
    def complete(self) -> bool:
        if self.done or not self._has_answer:
            return self._has_answer
        ended = [state.reason is not None for state in self._choices.values()]
        return all(ended) and len(ended) >= self._wanted

    def read(self, event: bytes) -> list[Delta]:
        if not event.startswith(b"{"):
            event = event.strip()
            self.done = self.done or event == b"[DONE]"
            if event in (b"", b"null", b"[DONE]") or event.startswith(b":"):
                return []
        try:
            return self._read(event)
        except NotJsonError:
            lines = event.strip().split(b"\n")
            if len(lines) == 1:
                raise
        return [delta for line in lines for delta in self.read(line)]

    @abstractmethod
    def _read(self, event: bytes) -> list[Delta]:
        """Return the output of one event, which is JSON or raises NotJsonError."""

    def _as(self, event: bytes, type: type[T]) -> T:
        """Return the value of an event as a `type`. Of JSON that must be read leniently, members that are null are absent."""
        check_size(event, self._max_parts)
        try:
            return msgspec.json.decode(event, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._lenient = True
            value = lenient(event)
        if not isinstance(value, dict):
            raise UpstreamSaid(event)
        return msgspec.convert(without_nulls(value), type)

    def whole(self, body: bytes) -> list[Output]:
        self._max_parts = 4 * MAX_PARTS
        deltas = self.read(body)
        self.done = True
        if not self.complete:
            return []
        result = Result(self._result(body, deltas))
        return [result] if self.usage is None else [self.usage, result]

    def _result(self, body: bytes, deltas: list[Delta]) -> Raw:  # noqa: ARG002
        """Return a complete answer in the normal form."""
        return encoded(self.folded([*deltas, *self.end()]))

    def end(self) -> list[Delta]:
        deltas: list[Delta] = []
        self._flush(deltas)
        for index, state in self._choices.items():
            if state.reason is not None or state.names:
                finish = finish_of(state.reason or "stop", state.names)
                if state.reason is not None and state.reason not in REASONS:
                    state.extra.setdefault("native_finish_reason", state.reason)
                deltas.append(_with(Delta(index=index, finish_reason=finish), state.extra))
        about = {**({} if self._about_sent else self._about), **self._at_end}
        if about and len(bytes(encoded(about))) <= MAX_OF_THE_ANSWER:
            deltas.append(_with(Delta(index=next(iter(self._choices), 0)), {"response": about}))
        return deltas

    def _state(self, index: int) -> ChoiceState:
        state = self._choices.get(index)
        if state is None:
            if not 0 <= index < MAX_CHOICES:
                raise ValueError(f"a choice with the index {index}")
            state = self._choices[index] = ChoiceState()
        return state

    def _say(
        self,
        deltas: list[Delta],
        delta: Delta,
        extra: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> None:
        """Append a delta, without its finish reason, and unless it says nothing."""
        state = self._state(delta.index)
        if self._lenient:
            if self._halves and any(getattr(delta, name) for name in OUTPUT):
                self._flush(deltas, delta)
            self._join(delta)
        said = state.note(delta, extra.get("delta") if extra else None)
        if said and state.reason is not None:
            state.reason = None
            extra = {**state.extra, **(extra or {})}
        if reason:
            finish_of(reason, state.names)
            self._has_answer = True
            if state.reason is None:
                state.reason = reason
                if not said:
                    state.extra, extra = extra or {}, None
        if said or extra:
            self._has_answer = self._has_answer or said or bool(extra and extra.get("delta"))
            if self._about and not self._about_sent:
                extra, self._about_sent = {**(extra or {}), "response": self._about}, True
            deltas.append(_with(delta, extra))

    def _join(self, delta: Delta) -> None:
        for name in TEXTS:
            if text := getattr(delta, name):
                setattr(delta, name, self._joined(delta.index, name, text))

    def _flush(self, deltas: list[Delta], other: Delta | None = None) -> None:
        """Say the halves of characters that nothing continues: all, or those of a choice whose next delta has another text."""
        for index, name in [*self._halves]:
            if name in TEXTS and (other is None or (index == other.index and not getattr(other, name))):
                del self._halves[index, name]
                deltas.append(Delta(index=index))
                setattr(deltas[-1], name, "\ufffd")

    def _joined(self, index: int, name: str, text: str) -> str | None:
        """Return a text with the half of a surrogate pair that the one before it ended with, and without one at its end."""
        text = self._halves.pop((index, name), "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._halves[index, name] = text[-1]
            text = text[:-1]
        return joined(text) or None

    def folded(self, deltas: list[Delta]) -> dict[str, Any]:
        """Return a whole answer of all its deltas."""
        answer = {
            "id": f"chatcmpl-{self._head.task_id}",
            "object": "chat.completion",
            "created": self._head.created,
        }
        answer |= {"model": self._head.model, **self._top}
        choices: dict[int, dict[str, Any]] = {}
        for delta in deltas:
            message: dict[str, Any] = {"role": "assistant", "content": None}
            choice = choices.setdefault(delta.index, {"index": delta.index, "message": message})
            message = choice["message"]
            for name in TEXTS:
                if text := getattr(delta, name):
                    shown = "reasoning_content" if name == "reasoning" else name
                    message[shown] = (message.get(shown) or "") + text
            if delta.tool_calls is not UNSET:
                _add_calls(message.setdefault("tool_calls", []), msgspec.json.decode(delta.tool_calls))
            if delta.finish_reason is not None:
                choice["finish_reason"] = delta.finish_reason
            extra = {} if delta.extra is UNSET else msgspec.json.decode(delta.extra)
            answer |= extra.pop("response", {})
            for name, value in extra.pop("delta", {}).items():
                message[name] = [*message.get(name, ()), *value] if isinstance(value, list) else value
            choice |= extra
        for choice in choices.values():
            if len(choice["message"]) == 2 and choice["message"]["content"] is None:
                choice["message"]["content"] = ""  # null is for what has something else
            for call in choice["message"].get("tool_calls", ()):
                if "function" in call:
                    call["function"]["arguments"] = call["function"].get("arguments") or "{}"
        answer["choices"] = [choices[at] for at in sorted(choices)]
        usage = self.usage
        if usage is None or usage.input_tokens is None or usage.output_tokens is None:
            return answer  # the gateway adds what it counts
        return {**answer, "usage": usage.details}


def _add_calls(calls: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Add pieces of calls, whose indexes are their places."""
    for piece in pieces:
        at = piece.pop("index", None)
        if type(at) is int and at < len(calls) and "function" in piece:
            calls[at]["function"]["arguments"] += piece["function"].get("arguments") or ""
        else:
            calls.append(piece)


def _with(delta: Delta, extra: dict[str, Any] | None) -> Delta:
    if extra:
        delta.extra = encoded(extra)
    return delta
