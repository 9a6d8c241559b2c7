"""Gemini's content, streamed or whole, as OpenAI's deltas. Pure."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from fairlane.workers.adapters.chunks import MAX_CHOICES, StreamError, check_event, is_null
from fairlane.workers.adapters.dialects.base import Output
from fairlane.workers.adapters.dialects.chat import Head, calls_delta, completion_of, told_once, usage_from
from fairlane.workers.sdk.errors import TaskError
from fairlane.workers.sdk.values import Delta, Result, Usage

FINISHES = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"),
        "content_filter",
    ),
    **dict.fromkeys(
        ("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "IMAGE_OTHER", "NO_IMAGE"),
        "content_filter",
    ),
}
"""All others (MALFORMED_FUNCTION_CALL, UNEXPECTED_TOOL_CALL, TOO_MANY_TOOL_CALLS, OTHER, …) are failures."""


class _Said(Struct, rename="camel"):
    pass


class _Call(_Said):
    name: str = ""
    id: str | None = None
    args: Raw = Raw(b"{}")


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


class _Counts(_Said):
    prompt_token_count: int | None = None
    cached_content_token_count: int | None = None
    candidates_token_count: int | None = None
    tool_use_prompt_token_count: int | None = None
    thoughts_token_count: int | None = None


class _Event(_Said):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: _Counts | None = None
    response_id: str | None = None
    model_version: str | None = None
    error: Raw = Raw(b"null")


class _Choice:
    """The state of one candidate."""

    def __init__(self) -> None:
        self.calls = 0
        self.images = 0
        self.signature: str | None = None
        self.ended = False


class GeminiReader:
    """Reads one answer. See `Reader`. With `one_call`, only the first tool call of a candidate is reported."""

    def __init__(self, head: Head, *, one_call: bool = False) -> None:
        self.usage: Usage | None = None
        self.done = False
        self._head = head
        self._most_calls = 1 if one_call else MAX_CHOICES
        self._choices: dict[int, _Choice] = {}
        self._told = False
        self._model = head.model

    @property
    def complete(self) -> bool:
        return bool(self._choices) and all(choice.ended for choice in self._choices.values())

    def last(self) -> Delta | None:
        return None

    def read(self, event: bytes) -> list[Delta]:
        check_event(event)
        said = msgspec.json.decode(event, type=_Event)
        if not is_null(said.error):
            raise StreamError(said.error)
        self._count(said.usage_metadata)
        self._model = said.model_version or self._model
        blocked = None if said.prompt_feedback is None else said.prompt_feedback.block_reason
        if blocked and not said.candidates and not self._choices:
            raise TaskError("CONTENT_FILTERED", f"The upstream did not take the prompt: {blocked}.")
        deltas = [delta for candidate in said.candidates or () for delta in self._read(candidate)]
        if deltas and said.response_id and not self._told:
            told_once(deltas[0], said.response_id)
            self._told = True
        return deltas

    def whole(self, body: bytes) -> list[Output]:
        deltas = self.read(body)
        if not self.complete:
            raise ValueError("it has no candidate that has ended")
        head = Head(self._head.task_id, self._model, self._head.created)
        answer = Result(completion_of(deltas, self.usage, head))
        return [answer] if self.usage is None else [self.usage, answer]

    def _read(self, candidate: _Candidate) -> list[Delta]:
        index = candidate.index
        if not 0 <= index < MAX_CHOICES:
            raise ValueError(f"a candidate with the index {index}")
        choice = self._choices.setdefault(index, _Choice())
        parts = None if candidate.content is None else candidate.content.parts
        deltas = [delta for part in parts or () for delta in self._part(index, choice, part)]
        reason = candidate.finish_reason
        if reason is None or reason == "FINISH_REASON_UNSPECIFIED":
            return deltas
        if reason not in FINISHES:
            what = f"{reason}: {candidate.finish_message}" if candidate.finish_message else reason
            raise TaskError("UPSTREAM_ERROR", f"The upstream broke its answer off: {what}.", retryable=True)
        choice.ended = True
        extra: dict[str, Any] = {"native_finish_reason": reason}
        if choice.signature is not None:
            extra["delta"] = {"extra_content": {"google": {"thought_signature": choice.signature}}}
        finish = "tool_calls" if reason == "STOP" and choice.calls else FINISHES[reason]
        return [*deltas, Delta(index=index, finish_reason=finish, extra=Raw(msgspec.json.encode(extra)))]

    def _part(self, index: int, choice: _Choice, part: _Part) -> list[Delta]:
        signature = part.thought_signature
        if part.function_call is not None:
            if choice.calls >= self._most_calls:
                return []
            call = part.function_call
            more = {"extra_content": {"google": {"thought_signature": signature}}} if signature else None
            call_id = call.id or f"call_{self._head.task_id}_{index}_{choice.calls}"
            arguments = bytes(call.args).decode() if not is_null(call.args) else "{}"
            choice.calls += 1
            return [
                Delta(
                    index=index, tool_calls=calls_delta(choice.calls - 1, call_id, call.name, arguments, more)
                )
            ]
        if signature:
            choice.signature = signature
        if part.inline_data is not None:
            url = f"data:{part.inline_data.mime_type};base64,{part.inline_data.data}"
            image = {"type": "image_url", "image_url": {"url": url}, "index": choice.images}
            choice.images += 1
            return [Delta(index=index, extra=Raw(msgspec.json.encode({"delta": {"images": [image]}})))]
        if not part.text:
            return []
        return [
            Delta(index=index, reasoning=part.text) if part.thought else Delta(index=index, content=part.text)
        ]

    def _count(self, counts: _Counts | None) -> None:
        if counts is None:
            return
        prompt = (counts.prompt_token_count or 0) + (counts.tool_use_prompt_token_count or 0)
        thoughts = counts.thoughts_token_count or 0
        self.usage = usage_from(
            prompt,
            (counts.candidates_token_count or 0) + thoughts,
            cached=counts.cached_content_token_count or 0,
            reasoning=thoughts,
        )
