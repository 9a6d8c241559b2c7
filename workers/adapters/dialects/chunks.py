"""An OpenAI-compatible answer, chunk by chunk or whole, in the normal form. Pure."""

from typing import Any

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.choices import MAX_CHOICES, read_message, usage_of
from fairlane.workers.adapters.dialects.base import Output
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.dialects.normal import TEXTS, NormalReader
from fairlane.workers.adapters.failures import UpstreamSaid, is_error
from fairlane.workers.adapters.lenient import check_size, encoded, lenient, without_nulls
from fairlane.workers.sdk.values import Delta, Result

_OF_THE_ANSWER = ("id", "system_fingerprint", "service_tier")
_AT_END = ("timings", "citations", "search_results")
"""Members of the answer that may grow with each chunk: the speed of llama.cpp, and sources."""
_MADE = frozenset({"object", "choices", "usage"})
"""Members of a whole answer that are made."""
_chunk = msgspec.json.Decoder().decode


class OpenAIReader(NormalReader):
    """Reads chat completions, or completions if it `completes`. `legacy`: the client asked for a `function_call`."""

    def __init__(self, head: Head, *, completes: bool = False, legacy: bool = False) -> None:
        super().__init__(head)
        self._completes = completes
        self._legacy = legacy
        self._body: dict[str, Any] = {}

    def whole(self, body: bytes) -> list[Output]:
        """Return an answer that is in the normal form as it came, else the one that is made of its output. Raise as `Reader`."""
        output = super().whole(body)
        if output and not self._lenient and isinstance(result := output[-1], Result):
            made = msgspec.json.decode(result.value)
            alike = [
                without_nulls(answer)
                for answer in (self._body, {name: made.get(name) for name in self._body})
            ]
            if len({msgspec.json.encode(answer, order="sorted") for answer in alike}) == 1:
                output[-1] = Result(Raw(body))
        return output

    def _read(self, event: bytes) -> list[Delta]:
        check_size(event, self._max_parts)
        try:
            chunk = _chunk(event)
        except (msgspec.DecodeError, UnicodeDecodeError):
            chunk = lenient(event)
            self._lenient = True
        choices = chunk.get("choices") if type(chunk) is dict else None
        if type(chunk) is not dict or is_error(chunk, answers=bool(choices)):
            raise UpstreamSaid(event)
        self._body = chunk
        if chunk.get("usage"):
            self.usage = usage_of(chunk["usage"]) or self.usage
        if type(more := chunk.get("x_groq")) is dict:
            if more.get("error"):
                raise UpstreamSaid(event)
            self.usage = usage_of(more.get("usage")) or self.usage
        if not self._told:
            self._about |= {name: value for name in _OF_THE_ANSWER if (value := chunk.get(name)) is not None}
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
        if type(delta.index) is not int:
            raise ValueError("a choice with an index that is not a number")
        extra: dict[str, Any] = {}
        reason = None
        for name, value in choice.items():
            if value is None or value == [] or name in ("index", "message", "response"):
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
                    key = delta.index, f"tool_calls {call.get('index')}"
                    if (
                        "\udc00" <= text[0] <= "\udfff" and key not in self._halves
                    ):  # its index may be another call's
                        key = next(
                            (one for one in self._halves if one[0] == key[0] and one[1] not in TEXTS), key
                        )
                    whole = self._joined(*key, text)
                    call["function"] = {**function, "arguments": whole or ""}
        delta.tool_calls = encoded(calls)

    def folded(self, deltas: list[Delta]) -> dict[str, Any]:
        self._top = {name: value for name, value in self._body.items() if name not in _MADE}
        answer = super().folded(deltas)
        if self._completes:
            answer["object"] = "text_completion"
            for choice in answer["choices"]:
                choice["text"] = choice.pop("message")["content"] or ""
        return answer
