"""An OpenAI-compatible answer, chunk by chunk or whole, in the normal form. Pure."""

from typing import Any

import msgspec
from msgspec import Raw

from fairlane.workers.adapters.choices import MAX_CHOICES, REASONS, finish_of, read_message, usage_of
from fairlane.workers.adapters.dialects.base import Output
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.adapters.dialects.normal import TEXTS, NormalReader
from fairlane.workers.adapters.failures import UpstreamSaid, is_error
from fairlane.workers.adapters.lenient import check_size, encoded, lenient
from fairlane.workers.sdk.values import Delta

_OF_THE_ANSWER = ("id", "system_fingerprint", "service_tier")
_AT_END = ("timings", "citations", "search_results")
"""Members of the answer that may grow with each chunk: the speed of llama.cpp, and sources."""
_MADE = frozenset({"object", "choices", "usage"})
"""Members of a whole answer that are made."""
_CHANGED = frozenset({"delta", "response", "usage", "error"})
_RENAMED = frozenset({"reasoning", "thinking", "reasoning_text", "logprobs"})
"""Members of a choice, and of its message, that stand elsewhere in the normal form."""
_chunk = msgspec.json.Decoder().decode


class OpenAIReader(NormalReader):
    """Reads chat completions, or completions if it `completes`. `legacy`: the client asked for a `function_call`.
    `choices`: how many it asked for, if that is known; one by itself has the index 0 (Foundry Local counts its tokens there)."""

    def __init__(
        self, head: Head, *, completes: bool = False, legacy: bool = False, choices: int | None = None
    ) -> None:
        super().__init__(head)
        self._completes = completes
        self._legacy = legacy
        self._body: dict[str, Any] = {}
        self._one = choices == 1
        self._wanted = choices or 1
        self._whole: bytes | None = None
        self.normal = False
        """Whether it is a whole answer that is in the normal form."""

    def whole(self, body: bytes) -> list[Output]:
        self._whole = body
        return super().whole(body)

    def _result(self, body: bytes, deltas: list[Delta]) -> Raw:
        return Raw(body) if self.normal else super()._result(body, deltas)

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
        if not self._about_sent:
            self._about |= {name: value for name in _OF_THE_ANSWER if (value := chunk.get(name)) is not None}
        for name in _AT_END:
            if value := chunk.get(name):
                self._at_end[name] = value
        if not choices:
            return []
        if type(choices) is not list or len(choices) > MAX_CHOICES:
            raise ValueError(f"choices are not a list of at most {MAX_CHOICES}")
        self.normal = event is self._whole and self._is_normal(chunk)
        if self.normal:
            self._has_answer = True
            return []
        deltas: list[Delta] = []
        for place, choice in enumerate(choices):
            self._read_choice(deltas, place, choice, alone=self._one and len(choices) == 1)
        return deltas

    def _is_normal(self, answer: dict[str, Any]) -> bool:
        """Return whether a whole answer says nothing otherwise than the normal form does."""
        kind, usage = "text_completion" if self._completes else "chat.completion", self.usage
        counted = usage is None or None not in (usage.input_tokens, usage.output_tokens)
        return (
            not self._lenient
            and answer.get("object", kind) == kind
            and counted
            and encoded(answer.get("usage")) == encoded(usage and usage.details)
            and all(self._is_normal_choice(place, choice) for place, choice in enumerate(answer["choices"]))
        )

    def _is_normal_choice(self, place: int, choice: Any) -> bool:
        if type(choice) is not dict or type(choice.get("index")) is not int or choice["index"] != place:
            return False
        given, message = _given(choice), choice.get("message")
        reason = choice.get("finish_reason")
        if given & _CHANGED or type(reason) is not str or reason not in REASONS:
            return False
        if self._completes:
            return (
                "message" not in given and type(choice.get("text")) is str and finish_of(reason, ()) == reason
            )
        if "text" in given or type(message) is not dict or message.get("role") != "assistant":
            return False
        said = _given(message) - {"role"}
        texts = [message[name] for name in ("content", "reasoning_content", "refusal") if name in said]
        return (
            bool(said)
            and not said & _RENAMED
            and ("function_call" not in said or self._legacy)
            and ("reasoning_details" not in said or "reasoning_content" in said)
            and all(type(text) is str for text in texts)
            and ((len(said) == 1 and "content" in said) or "" not in [message[name] for name in said])
            and ("tool_calls" not in said or _are_normal_calls(message["tool_calls"]))
            and finish_of(reason, said) == reason
        )

    def _read_choice(self, deltas: list[Delta], place: int, choice: Any, *, alone: bool) -> None:
        if type(choice) is not dict:
            raise ValueError("a choice is not an object")
        index = choice.get("index")
        delta = Delta(index=place if index is None or alone else index)
        if type(delta.index) is not int:
            raise ValueError("a choice with an index that is not a number")
        extra: dict[str, Any] = {}
        reason = None
        for name, value in choice.items():
            if value is None or value == [] or name in ("index", "message", "response"):
                continue
            if name == "delta":
                if value == "":
                    continue
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
                    # its index may be another call's
                    if "\udc00" <= text[0] <= "\udfff" and key not in self._halves:
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


def _given(members: dict[str, Any]) -> set[str]:
    return {name for name, value in members.items() if value is not None and value != []}


def _are_normal_calls(calls: Any) -> bool:
    return type(calls) is list and all(
        type(call) is dict
        and call.get("index") is None
        and type(function := call.get("function")) is dict
        and type(function.get("arguments")) is str
        and function["arguments"] != ""
        for call in calls
    )
