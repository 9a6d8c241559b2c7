"""An OpenAI-compatible answer, chunk by chunk or whole, in the normal form. Pure."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from fairlane.workers.adapters.choices import MAX_CHOICES, finish_of, read_message, usage_of
from fairlane.workers.adapters.dialects.base import Output
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.dialects.normal import NormalReader
from fairlane.workers.adapters.failures import UpstreamSaid, is_error
from fairlane.workers.adapters.lenient import check_size, encoded, lenient
from fairlane.workers.protocol import Index
from fairlane.workers.sdk.values import Delta, Result

_OF_THE_ANSWER = ("id", "system_fingerprint", "service_tier")
_AT_END = ("timings", "citations", "search_results")
"""Members of the answer that may grow with each chunk: the speed of llama.cpp, and sources."""
_MADE = frozenset({"object", "choices", "usage", "x_groq"})
"""Members of a whole answer that are made."""
_HALF = re.compile(rb"(?i)\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2}")
"""The escape of half a surrogate pair."""
_chunk = msgspec.json.Decoder().decode


class OpenAIReader(NormalReader):
    """Reads chat completions, or completions if it `completes`. `legacy`: the client asked for a `function_call`."""

    def __init__(self, head: Head, *, completes: bool = False, legacy: bool = False) -> None:
        super().__init__(head)
        self._completes = completes
        self._legacy = legacy

    def whole(self, body: bytes) -> list[Output]:
        """Return an answer in the normal form as it came, else one that is made of its output. Raise as `Reader`."""
        answer = _normal(body, _completion if self._completes else _chat_completion)
        if answer is None:
            return super().whole(body)
        self.done = self._has_answer = True
        self.usage = usage_of(answer.usage)
        result = Result(Raw(body))
        return [result] if self.usage is None else [self.usage, result]

    def _read(self, event: bytes) -> list[Delta]:
        check_size(event)
        try:
            chunk = _chunk(event)
        except (msgspec.DecodeError, UnicodeDecodeError):
            chunk = lenient(event)
            self._lenient = True
        choices = chunk.get("choices") if type(chunk) is dict else None
        if type(chunk) is not dict or is_error(chunk, answers=bool(choices)):
            raise UpstreamSaid(event)
        self._top = chunk
        if chunk.get("usage"):
            self.usage = usage_of(chunk["usage"]) or self.usage
        if type(more := chunk.get("x_groq")) is dict:
            if more.get("error"):
                raise UpstreamSaid(event)
            self.usage = usage_of(more.get("usage")) or self.usage
        if len(self._about) < len(_OF_THE_ANSWER):
            for name in _OF_THE_ANSWER:
                self._learn(name, chunk.get(name))
        for name in _AT_END:
            if value := chunk.get(name):
                self._at_end[name] = value
        if not choices:
            return []
        if type(choices) is not list or len(choices) > MAX_CHOICES:
            raise ValueError(f"choices are not a list of at most {MAX_CHOICES}")
        deltas: list[Delta] = []
        for place, choice in enumerate(choices):
            self._read_choice(deltas, place, choice)
        return deltas

    def _read_choice(self, deltas: list[Delta], place: int, choice: Any) -> None:
        if type(choice) is not dict:
            raise ValueError("a choice is not an object")
        index = choice.get("index")
        delta = Delta(index=place if index is None else index)
        extra: dict[str, Any] = {}
        reason = None
        for name, value in choice.items():
            if value is None or name in ("index", "message", "response"):
                continue
            if name == "delta":
                unknown = read_message(delta, value, legacy=self._legacy)
                if "tool_calls" in unknown:
                    self._take_calls(delta, unknown)
                if unknown:
                    extra["delta"] = unknown
            elif name == "finish_reason":
                reason = value if isinstance(value, str) else None
            elif name == "text":
                read_message(delta, {"content": value}, legacy=False)
            elif name == "usage":
                self.usage = usage_of(value) or self.usage
            elif name == "error" and value:
                raise UpstreamSaid(bytes(encoded(choice)))
            else:
                extra[name] = value
        if message := choice.get("message"):
            state = self._state(delta.index)
            state.note(delta, extra.get("delta"))
            whole = Delta()
            unknown = read_message(whole, message, legacy=self._legacy, is_whole=True)
            if "tool_calls" in unknown:
                self._take_calls(whole, unknown)
            state.add_rest(delta, whole)
            if unknown := {name: value for name, value in unknown.items() if name not in state.names}:
                extra["delta"] = {**extra.get("delta", {}), **unknown}
        if "delta" in extra and "logprobs" in extra["delta"]:
            extra.setdefault("logprobs", extra["delta"].pop("logprobs"))
        self._say(deltas, delta, extra, reason)

    def _take_calls(self, delta: Delta, unknown: dict[str, Any]) -> None:
        """Move calls into a delta; pieces of arguments may end within a character, too."""
        calls = unknown.pop("tool_calls")
        if self._lenient:
            for call in calls:
                function = call.get("function", {})
                if text := function.get("arguments"):
                    whole = self._joined(delta.index, f"tool_calls {call.get('index')}", text)
                    call["function"] = {**function, "arguments": whole or ""}
        delta.tool_calls = encoded(calls)

    def folded(self, deltas: list[Output]) -> dict[str, Any]:
        self._top = {name: value for name, value in self._top.items() if name not in _MADE}
        answer = super().folded(deltas)
        if self._completes:
            answer["object"] = "text_completion"
            for choice in answer["choices"]:
                choice["text"] = choice.pop("message")["content"] or ""
        return answer


_Said = Annotated[str, Meta(min_length=1)]


class _Function(Struct):
    name: _Said
    arguments: _Said


class _Call(Struct):
    id: _Said
    type: Literal["function"]
    function: _Function


class _Message(Struct):
    content: str | None = None
    reasoning_content: _Said | None = None
    refusal: _Said | None = None
    tool_calls: list[_Call] | None = None
    reasoning: None = None
    reasoning_details: None = None
    reasoning_text: None = None
    thinking: None = None
    function_call: None = None


class _Choice(Struct, kw_only=True):
    index: Index
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    usage: None = None
    error: None = None

    @property
    def calls(self) -> list[_Call]:
        return []


class _TextChoice(_Choice, kw_only=True):
    text: str


class _ChatChoice(_Choice, kw_only=True):
    message: _Message

    @property
    def calls(self) -> list[_Call]:
        return self.message.tool_calls or []


class _Whole(Struct, kw_only=True):
    usage: dict[str, Any] | None = None
    error: None = None
    x_groq: Any = None


class _Completion(_Whole):
    choices: Annotated[list[_TextChoice], Meta(min_length=1, max_length=MAX_CHOICES)]


class _ChatCompletion(_Whole):
    choices: Annotated[list[_ChatChoice], Meta(min_length=1, max_length=MAX_CHOICES)]


_Answer = _Completion | _ChatCompletion
_completion = msgspec.json.Decoder(_Completion)
_chat_completion = msgspec.json.Decoder(_ChatCompletion)


def _normal(body: bytes, decoder: Any) -> _Answer | None:
    """Return a whole answer that is in the normal form; None for any other."""
    try:
        body.decode()  # what is passed on unparsed, too
        answer: _Answer = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    ids = [call.id for choice in answer.choices for call in choice.calls]
    reasons = ((choice.finish_reason, {"tool_calls"} if choice.calls else ()) for choice in answer.choices)
    alike = (
        len(ids) == len(set(ids))
        and len({choice.index for choice in answer.choices}) == len(answer.choices)
        and all(finish_of(reason, said) == reason for reason, said in reasons)
        and _is_normal(answer.usage or (answer.x_groq and {}))
        and not _HALF.search(body)
    )
    return answer if alike else None


def _is_normal(usage: dict[str, Any] | None) -> bool:
    known = usage_of(usage)
    if known is None or known.input_tokens is None or known.output_tokens is None:
        return usage is None
    return encoded(known.details) == encoded(usage)
