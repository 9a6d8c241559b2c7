"""What an upstream of Anthropic's answers is what a Messages client reads: through the worker's deltas, the log and the folds."""

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from messages_folds import body, content, streamed
from msgspec import UNSET
from streaming_logs import Log
from tests.support.upstreams import anthropic_events, anthropic_message

from fairlane.streaming.views.messages import OWN_REASONS
from fairlane.workers.adapters.dialects.anthropic.answer import AnthropicReader
from fairlane.workers.adapters.dialects.chat import Head
from fairlane.workers.sdk import Delta, Result, Usage

HEAD = Head("t", "m", 1)
WORD = st.text(min_size=1, max_size=9)
INPUTS = st.dictionaries(WORD, WORD | st.integers(), max_size=3)


def _block(kind: str, **members: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **members})


THOUGHTS = _block("thinking", thinking=WORD, signature=WORD) | _block("redacted_thinking", data=WORD)
TEXTS = _block("text", text=WORD)
USES = st.lists(WORD, unique=True, max_size=3).flatmap(
    lambda ids: st.tuples(*[_block("tool_use", id=st.just(one), name=WORD, input=INPUTS) for one in ids])
)
ANSWERS = st.builds(
    lambda thoughts, text, uses: [*thoughts, *text, *uses],
    st.lists(THOUGHTS, max_size=3),
    st.lists(TEXTS, max_size=1),
    USES,
)
STOPS = st.sampled_from(sorted(OWN_REASONS))


def log_of(deltas: list[Delta], usage: Usage | None) -> Log:
    """The log of a task whose worker sends these deltas, as an attempt writes it."""
    log = Log().start()
    for delta in deltas:
        if delta.extra is not UNSET:
            log.chunk("extra", json.loads(bytes(delta.extra)))
        if delta.content is not None:
            log.chunk("text", delta.content)
        if delta.reasoning is not None:
            log.chunk("reasoning", delta.reasoning)
        if delta.tool_calls is not UNSET:
            log.chunk("tool", json.loads(bytes(delta.tool_calls)))
        if delta.finish_reason is not None:
            log.chunk("finish", delta.finish_reason)
    return log.done(usage=None if usage is None else json.loads(bytes(usage.as_json())))


def told(message: dict[str, Any]) -> tuple[Any, ...]:
    usage = message["usage"]
    counts = (usage[name] for name in ("input_tokens", "output_tokens"))
    cached = (usage.get(name) or 0 for name in ("cache_read_input_tokens", "cache_creation_input_tokens"))
    return (message["id"], message["stop_reason"], message["stop_sequence"], *counts, *cached)


@given(ANSWERS, STOPS, st.integers(1, 9))
def test_an_answer_comes_through_as_it_was(answer: list[Any], stop: str, cut: int) -> None:
    calls = any(one["type"] == "tool_use" for one in answer)
    if calls and stop == "end_turn":  # who calls tools is told to wait for their results
        stop = "tool_use"
    original = anthropic_message(answer, stop)
    reader = AnthropicReader(HEAD)
    events = anthropic_events(answer, stop, cut)
    deltas = [delta for event in events for delta in reader.read(msgspec.json.encode(event))]
    log = log_of([*deltas, *reader.end()], reader.usage)
    assert content(streamed(log)) == answer
    assert told(streamed(log).model_dump()) == told(body(log).model_dump()) == told(original)

    outputs = AnthropicReader(HEAD).whole(msgspec.json.encode(original))
    (result,) = [msgspec.json.decode(one.value) for one in outputs if isinstance(one, Result)]
    whole = Log().start().done(result)
    assert content(body(whole)) == content(streamed(whole)) == answer
    assert told(body(whole).model_dump()) == told(streamed(whole).model_dump()) == told(original)
