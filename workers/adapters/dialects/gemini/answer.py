"""Gemini's content, streamed or whole, as OpenAI's deltas. Pure."""

from collections import Counter
from typing import Any

from msgspec import Struct

from fairlane.workers.adapters.choices import MAX_CHOICES
from fairlane.workers.adapters.dialects.chat import Head, calls_delta, usage_from
from fairlane.workers.adapters.dialects.normal import NormalReader
from fairlane.workers.adapters.failures import UpstreamSaid, is_error
from fairlane.workers.adapters.lenient import count, encoded, lenient
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.values import Delta

_COUNTS = (
    *("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount"),
    *("thoughtsTokenCount", "cachedContentTokenCount"),
)


class _Said(Struct, rename="camel"):
    pass


class _Call(_Said):
    name: str = ""
    id: str | None = None
    args: Any = None


class _Blob(_Said):
    mime_type: str = ""
    data: str = ""


class _Part(_Said):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _Call | None = None
    inline_data: _Blob | None = None


class _Content(_Said):
    parts: list[_Part] | None = None


class _Candidate(_Said):
    index: int = 0
    content: _Content | None = None
    finish_reason: str | None = None
    finish_message: str | None = None


class _Feedback(_Said):
    block_reason: str | None = None


class _Event(_Said):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: Any = None
    response_id: str | None = None
    model_version: str | None = None


class GeminiReader(NormalReader):
    """Reads one answer. See `Reader`. With `one_call`, only the first tool call of a candidate is reported."""

    def __init__(self, head: Head, *, one_call: bool = False) -> None:
        super().__init__(head)
        self._most_calls = 1 if one_call else MAX_CHOICES
        self._calls: Counter[int] = Counter()
        self._images: Counter[int] = Counter()
        self._signatures: dict[int, str] = {}

    def _read(self, event: bytes) -> list[Delta]:
        said = self._as(event, _Event)
        if said.candidates is None and is_error(lenient(event), answers=False):
            raise UpstreamSaid(event)
        self._count(said.usage_metadata)
        self._top["model"] = said.model_version or self._top.get("model", self._head.model)
        blocked = None if said.prompt_feedback is None else said.prompt_feedback.block_reason
        if blocked and not said.candidates and not self._choices:
            raise TaskError("CONTENT_FILTERED", f"The upstream rejected the prompt: {blocked}.")
        if said.response_id and not self._about_sent:
            self._about = {"id": said.response_id}
        deltas: list[Delta] = []
        for candidate in said.candidates or ():
            self._candidate(deltas, candidate)
        return deltas

    def _candidate(self, deltas: list[Delta], candidate: _Candidate) -> None:
        index = candidate.index
        self._state(index)
        parts = None if candidate.content is None else candidate.content.parts
        for part in parts or ():
            self._part(deltas, index, part)
        reason = candidate.finish_reason
        if reason is None or reason == "FINISH_REASON_UNSPECIFIED":
            return
        extra: dict[str, Any] = {}
        if signature := self._signatures.get(index):
            extra["delta"] = {"extra_content": {"google": {"thought_signature": signature}}}
        self._say(deltas, Delta(index=index), extra, reason)

    def _part(self, deltas: list[Delta], index: int, part: _Part) -> None:
        signature = part.thought_signature
        extra: dict[str, Any] = {}
        if part.function_call is not None:
            at = self._calls[index]
            if at >= self._most_calls:
                return
            self._calls[index] += 1
            call = part.function_call
            more = {"extra_content": {"google": {"thought_signature": signature}}} if signature else None
            arguments = bytes(encoded(call.args or {})).decode()
            delta = Delta(index=index, tool_calls=calls_delta(at, call.id, call.name, arguments, more))
        else:
            if signature:
                self._signatures[index] = signature
            said = part.text or None
            delta = Delta(index=index, reasoning=said) if part.thought else Delta(index=index, content=said)
            if part.inline_data is not None:
                url = f"data:{part.inline_data.mime_type};base64,{part.inline_data.data}"
                image = {"type": "image_url", "image_url": {"url": url}, "index": self._images[index]}
                self._images[index] += 1
                extra["delta"] = {"images": [image]}
        self._say(deltas, delta, extra)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict) and count(usage.get("promptTokenCount")) is not None:
            prompt, tools, output, thoughts, cached = (count(usage.get(name)) or 0 for name in _COUNTS)
            self.usage = usage_from(prompt + tools, output + thoughts, cached=cached, reasoning=thoughts)
