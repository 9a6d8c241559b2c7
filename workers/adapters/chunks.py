"""One chunk of an OpenAI-compatible stream, as deltas. Pure."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw

from fairlane.workers.protocol import Index
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.values import Delta, Usage

_NULL = Raw(b"null")


class Answer(msgspec.Struct):
    """The members of a whole answer that matter here."""

    usage: Raw = _NULL
    error: Raw = _NULL


class Chunk(Answer):
    """Those of a chunk."""

    choices: list[dict[str, Raw]] | None = None
    id: Raw = _NULL
    system_fingerprint: Raw = _NULL
    service_tier: Raw = _NULL
    timings: Raw = _NULL


class _EndedChoice(msgspec.Struct):
    finish_reason: str | None = None


class _Ended(msgspec.Struct):
    choices: list[_EndedChoice] | None = None


LARGE = 1 << 20
MAX_COLONS = 250_000
"""In a large event: at least as many as the members that it would become."""
MAX_CHOICES = 1024
MAX_USAGE = 16 * 1024
OF_THE_ANSWER = ("id", "system_fingerprint", "service_tier")
"""Members that are the same in each chunk: sent with the first output only."""
MAX_OF_THE_ANSWER = 4096
"""Bytes of a member of the answer; larger ones are left out."""
_FAILED = frozenset({"insufficient_system_resource", "network_error", "abort", "error"})
"""Finish reasons of DeepSeek, GLM, SGLang and vLLM: the server gave up."""
_FINISHES = {"sensitive": "content_filter"}
"""GLM's."""
_chunk = msgspec.json.Decoder(Chunk)
_members = msgspec.json.Decoder(dict[str, Raw] | None)
_items = msgspec.json.Decoder(list[Raw])
_value = msgspec.json.Decoder()
_index = msgspec.json.Decoder(Index)


class ChunkReader:
    """Turns the events of one stream into deltas, and remembers its usage and which choices have ended."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.done = False
        """Whether the stream has said that it is over."""
        self._timings: Raw | None = None
        self._told: set[str] = set()
        self._open: set[int] = set()
        self._ended: set[int] = set()

    @property
    def complete(self) -> bool:
        """Return whether the stream has ended by `[DONE]`, or each choice by its finish reason."""
        return self.done or (bool(self._ended) and self._open <= self._ended)

    def last(self) -> Delta | None:
        """Return the upstream's last report of its speed (llama.cpp)."""
        return None if self._timings is None else Delta(extra=of_the_answer({"timings": self._timings}))

    def read(self, event: bytes) -> list[Delta]:
        """The deltas of one event.

        Raise `StreamError` for an `error` object, `ValueError` if unreadable, `TaskError` for an end that is a failure.
        """
        if event.strip() == b"[DONE]":
            self.done = True
            return []
        check_event(event)
        chunk = _chunk.decode(event)
        if chunk.choices is not None and len(chunk.choices) > MAX_CHOICES:
            raise ValueError(f"an event of more than {MAX_CHOICES} choices")
        if not is_null(chunk.error):
            raise StreamError(chunk.error)
        if not is_null(chunk.usage):
            self.usage = usage_of(chunk.usage) or self.usage
        deltas = []
        for choice in chunk.choices or ():
            delta = delta_of(choice)
            self._open.add(delta.index)
            if delta.finish_reason is not None:
                delta.finish_reason = finish_of(delta.finish_reason)
                self._ended.add(delta.index)
            if not _says_nothing(delta):
                deltas.append(delta)
        if not is_null(chunk.timings) and len(bytes(chunk.timings)) <= MAX_OF_THE_ANSWER:
            self._timings = Raw(bytes(chunk.timings))  # not the whole event
        if deltas and len(self._told) < len(OF_THE_ANSWER):
            self._tell(chunk, deltas[0])
        return deltas

    def _tell(self, chunk: Chunk, delta: Delta) -> None:
        """Put new members of the whole answer into a delta. A delta of their own would be output, which rules out a retry."""
        new = {
            name: raw
            for name in OF_THE_ANSWER
            if name not in self._told and not is_null(raw := getattr(chunk, name))
        }
        self._told.update(new)
        new = {name: raw for name, raw in new.items() if len(bytes(raw)) <= MAX_OF_THE_ANSWER}
        if new:
            delta.extra = of_the_answer(new, None if delta.extra is UNSET else delta.extra)


def check_event(event: bytes) -> None:
    """Raise `ValueError` for an event that is not UTF-8, or that would become too many objects."""
    if not event.isascii():
        event.decode()  # strings are passed on unparsed, and nothing else would look into them
    if len(event) > LARGE and max(event.count(b":"), event.count(b"{")) > MAX_COLONS:
        raise ValueError(f"an event of more than {MAX_COLONS} members")


def finish_of(reason: str) -> str:
    """Return OpenAI's name of a finish reason. Raise `TaskError` for one that means a failure."""
    if reason in _FAILED:
        raise TaskError("UPSTREAM_ERROR", f"The upstream broke its answer off: {reason}.", retryable=True)
    return _FINISHES.get(reason, reason)


def ended(body: bytes) -> bytes:
    """A whole answer with its finish reasons by OpenAI's names. Raise `TaskError` like `finish_of`."""
    if not any(b'"%b"' % reason.encode() in body for reason in (*_FAILED, *_FINISHES)):
        return body
    try:
        reasons = [choice.finish_reason for choice in msgspec.json.decode(body, type=_Ended).choices or ()]
    except msgspec.DecodeError:
        return body  # no choices of OpenAI's
    if [finish_of(reason) for reason in reasons if reason is not None] == reasons:
        return body
    answer = msgspec.json.decode(body, type=dict[str, Raw])
    choices = msgspec.json.decode(answer["choices"], type=list[dict[str, Raw]])
    for choice, reason in zip(choices, reasons, strict=True):
        if reason is not None:
            choice["finish_reason"] = Raw(msgspec.json.encode(finish_of(reason)))
    return msgspec.json.encode({**answer, "choices": choices})


class StreamError(Exception):
    """The stream carries an `error` object instead of a chunk."""

    def __init__(self, error: Raw) -> None:
        super().__init__("error object in the stream")
        self.error = error


def delta_of(choice: dict[str, Raw]) -> Delta:
    """Return one choice as a delta. Unknown members go into `extra`, those of its delta into `extra.delta`. None is named
    `response`, which holds members of the whole answer."""
    delta = Delta()
    extra: dict[str, Any] = {}
    for name, raw in choice.items():
        if name == "delta":
            unknown = _read_delta(delta, _members.decode(raw) or {})
            if unknown:
                extra["delta"] = unknown
        elif name == "index":
            delta.index = _index.decode(raw)
        elif name == "finish_reason":
            delta.finish_reason = msgspec.json.decode(raw, type=str | None)
        elif name == "text":
            delta.content = msgspec.json.decode(raw, type=str | None) or None
        elif name != "response" and not is_null(raw):
            extra[name] = raw
    if extra:
        delta.extra = Raw(msgspec.json.encode(extra))
    return delta


def of_the_answer(new: dict[str, Raw], extra: Raw | None = None) -> Raw:
    """The `extra` of a delta, with these members of the answer as a whole."""
    known: dict[str, Raw] = {} if extra is None else _members.decode(extra) or {}
    return Raw(msgspec.json.encode({**known, "response": new}))


def usage_of(raw: Raw) -> Usage | None:
    """An upstream's `usage`, our names added to its own members; None when it is no object, ValueError when it is too large."""
    if len(bytes(raw)) > MAX_USAGE:
        raise ValueError(f"usage has more than {MAX_USAGE} bytes")
    members = _value.decode(raw)
    if not isinstance(members, dict):
        return None
    return Usage(
        input_tokens=_count(members, "prompt_tokens", "input_tokens"),
        output_tokens=_count(members, "completion_tokens", "output_tokens"),
        details=members,
    )


def reported_usage(body: bytes) -> list[Usage]:
    """Return the usage of a whole answer, if it has one. Raise `StreamError` for an error object, `ValueError` if unreadable."""
    body.decode()  # strings are passed on unparsed
    answer = msgspec.json.decode(body, type=Answer)
    if not is_null(answer.error):
        raise StreamError(answer.error)
    usage = usage_of(answer.usage)
    return [] if usage is None else [usage]


def is_null(raw: Raw) -> bool:
    """Whether a member is absent or null."""
    return bytes(raw) == b"null"


def _read_delta(delta: Delta, members: dict[str, Raw]) -> dict[str, Raw]:
    """Fill in what has a place of its own; the rest, without nulls."""
    unknown: dict[str, Raw] = {}
    for name, raw in members.items():
        if name == "content":
            delta.content = _text(name, raw, unknown)
        elif name in ("reasoning_content", "reasoning"):  # some send both, with the same text
            delta.reasoning = delta.reasoning or _text(name, raw, unknown)
        elif name == "refusal":
            delta.refusal = _text(name, raw, unknown)
        elif name == "tool_calls":
            if bytes(raw)[:1] not in (b"[", b"n"):
                raise ValueError("tool_calls is no list")
            if bytes(raw).count(b"{") > MAX_CHOICES and len(_items.decode(raw)) > MAX_CHOICES:
                raise ValueError(f"tool_calls has more than {MAX_CHOICES} items")
            if not is_null(raw) and bytes(raw) != b"[]":
                delta.tool_calls = raw
        elif name != "role" and not is_null(raw):
            unknown[name] = raw
    return unknown


def _text(name: str, raw: Raw, unknown: dict[str, Raw]) -> str | None:
    """Return a text, or None for an empty one. A value that is not a text (some send lists) becomes an unknown member."""
    value = _value.decode(raw)
    if isinstance(value, str):
        return value or None
    if value is not None:
        unknown[name] = raw
    return None


def _says_nothing(delta: Delta) -> bool:
    return delta == Delta(index=delta.index)


def _count(members: dict[str, Any], *names: str) -> int | None:
    for name in names:
        value = members.get(name)
        if isinstance(value, int) and value >= 0:
            return value
    return None
