"""Anthropic's Messages as folds: any worker, any reading, as the other surfaces show it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_folds import body, content, events, streamed
from streaming_logs import INFO, TASK, Log, call, calls_in_turns, fold, frames, text_and_calls, thoughts

from fairlane.queues.tasks import Place
from fairlane.streaming.views.chat import ChatBodyView
from fairlane.streaming.views.messages import MessagesStreamView

TEXT = {"type": "text", "text": "Hello"}
THOUGHT = {"type": "thinking", "thinking": "Let me see", "signature": ""}
SIGNED = {"type": "thinking", "thinking": "Let me see", "signature": "sig=="}
HIDDEN = {"type": "redacted_thinking", "data": "abc"}
CALL = {"type": "tool_use", "id": "call_a", "name": "weather", "input": {"city": "Oslo"}}
CLOCK = {"type": "tool_use", "id": "call_b", "name": "clock", "input": {}}
CHAT_CALL = {
    "id": "call_a",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}


def result(message: dict[str, Any], finish: str = "stop", **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}]}


@pytest.mark.parametrize(
    ("log", "blocks", "reason"),
    [
        (Log().start().text("Hel", "lo").done(), [TEXT], "end_turn"),
        (Log().start().done("Hello"), [TEXT], "end_turn"),
        (Log().start().done({"content": "Hello"}), [TEXT], "end_turn"),
        (Log().start().done(), [], "end_turn"),
        (Log().start().text("Hello").done(finish="length"), [TEXT], "max_tokens"),
        (Log().start().text("Hello").chunk("finish", "content_filter").done(), [TEXT], "refusal"),
        (Log().start().text("Hello").chunk("finish", "peculiar").done(), [TEXT], "end_turn"),
        (Log().start().chunk("refusal", "Hello").chunk("finish", "stop").done(), [TEXT], "refusal"),
        (Log().start().chunk("reasoning", "Let me ").chunk("reasoning", "see").text("Hello").done(), [THOUGHT, TEXT], "end_turn"),
        (
            Log().start().chunk("reasoning", "Let me see").chunk("extra", thoughts(SIGNED)).text("Hello").done(),
            [SIGNED, TEXT],
            "end_turn",
        ),
        (
            Log().start().chunk("extra", thoughts({**SIGNED, "thinking": ""}, HIDDEN)).text("Hello").done(),
            [{**SIGNED, "thinking": ""}, HIDDEN, TEXT],
            "end_turn",
        ),
        (
            Log()
            .start()
            .chunk("reasoning", "Let me see")
            .chunk("extra", thoughts({"type": "thinking", "thinking": "", "signature": "sig=="}))
            .done(),
            [SIGNED],
            "end_turn",
        ),
        (Log().start().done(result({"content": "Hello", "reasoning_content": "Let me see"})), [THOUGHT, TEXT], "end_turn"),
        (
            Log().start().done(
                result({"content": "Hello", "reasoning_content": "Let me see", "thinking_blocks": [SIGNED, HIDDEN]})
            ),
            [SIGNED, HIDDEN, TEXT],
            "end_turn",
        ),
        (Log().start().done(result({"content": None, "tool_calls": [CHAT_CALL]}, "tool_calls")), [CALL], "tool_use"),
        (Log().start().done(result({"content": None, "tool_calls": [CHAT_CALL]}, "stop")), [CALL], "tool_use"),
        (Log().start().done(result({"content": None, "refusal": "Hello"})), [TEXT], "refusal"),
        (text_and_calls(), [TEXT, CALL, CLOCK], "tool_use"),
        (calls_in_turns(), [CALL, CLOCK], "tool_use"),
        (  # one without arguments, and a text between
            Log()
            .start()
            .chunk("tool", [call(0, '{"city": "Oslo"}', id="call_a", name="weather")])
            .chunk("tool", [call(1, id="call_b", name="clock")])
            .done(),
            [CALL, CLOCK],
            "tool_use",
        ),
        (  # choices that no Messages request can have asked for
            Log().start().text("Hello").text("other", index=1).done(),
            [TEXT],
            "end_turn",
        ),
    ],
)  # fmt: skip
def test_stream_and_body_say_the_same(log: Log, blocks: list[Any], reason: str) -> None:
    whole, joined = body(log), streamed(log)
    assert content(whole) == content(joined) == blocks
    assert (whole.stop_reason, joined.stop_reason) == (reason, reason)
    assert whole.id == joined.id == f"msg_{TASK}"
    assert whole.usage == joined.usage


def test_a_text_within_the_arguments_of_a_call_waits_for_their_end() -> None:
    log = Log().start().chunk("tool", [call(0, '{"city": "', id="call_a", name="weather")]).text("Hel")
    log.chunk("reasoning", "Hm").chunk("extra", thoughts(HIDDEN)).chunk("tool", [call(0, 'Oslo"}')]).text(
        "lo"
    ).done()
    assert (
        content(body(log))
        == content(streamed(log))
        == [CALL, {**TEXT, "text": "Hel"}, {**THOUGHT, "thinking": "Hm"}, HIDDEN, {**TEXT, "text": "lo"}]
    )


def test_arguments_that_are_no_object_are_told_as_they_are() -> None:
    log = (
        Log()
        .start()
        .chunk("tool", [call(0, '{"city": "Os', id="call_a", name="weather")])
        .done(finish="length")
    )
    assert content(body(log)) == [{**CALL, "input": {"arguments": '{"city": "Os'}}]
    assert content(streamed(log)) == [{**CALL, "input": {}}]  # as the SDK reads a part
    assert body(log).stop_reason == "max_tokens"


def test_an_upstream_of_anthropics_keeps_its_words() -> None:
    why = {"native_finish_reason": "stop_sequence", "stop_reason": "###"}
    usage = {
        "prompt_tokens": 17,
        "completion_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_creation_tokens": 3},
    }
    log = Log().start().chunk("extra", {"response": {"id": "msg_theirs"}}).text("Hello")
    log.chunk("extra", why).chunk("finish", "stop").done(usage=usage)
    for message in (body(log), streamed(log)):
        assert (message.id, message.stop_reason, message.stop_sequence) == (
            "msg_theirs",
            "stop_sequence",
            "###",
        )
        counts = message.usage
        assert (counts.input_tokens, counts.cache_creation_input_tokens, counts.cache_read_input_tokens) == (
            10,
            3,
            4,
        )
        assert counts.output_tokens == 3
    paused = Log().start().text("Hello").chunk("extra", {"native_finish_reason": "pause_turn"}).done()
    assert body(paused).stop_reason == streamed(paused).stop_reason == "pause_turn"


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"inputTokens": 5, "outputTokens": 3}, (5, 3, 0, 0)),
        ({"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 9, "cache_creation_input_tokens": 2}, (5, 3, 9, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, (1, 3, 4, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, (0, 0, 9, 0)),
        (None, (0, 0, 0, 0)),
    ],
)  # fmt: skip
def test_usage_counts_input_that_a_cache_held_apart(usage: Any, counts: tuple[int, ...]) -> None:
    log = Log().start().text("Hello").done(usage=usage)
    for message in (body(log), streamed(log)):
        told = message.usage
        read_write = (told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0)
        assert (told.input_tokens, told.output_tokens, *read_write) == counts


def test_usage_that_is_known_stands_in_the_first_event_and_thinking_is_counted() -> None:
    log = Log().start().usage({"prompt_tokens": 7, "completion_tokens": 0}).text("Hello")
    usage = {"prompt_tokens": 7, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
    told = events(log.done(usage=usage))
    assert told[0]["message"]["usage"]["input_tokens"] == 7
    assert told[-2]["usage"]["output_tokens_details"] == {"thinking_tokens": 4}


@pytest.mark.parametrize(
    ("log", "kind", "code"),
    [
        (Log().start().text("x").error(code="MODEL_TOO_BUSY"), "overloaded_error", "MODEL_TOO_BUSY"),
        (Log().start().error(), "api_error", "UPSTREAM_ERROR"),
        (Log().start().error(code="CONTEXT_LENGTH"), "invalid_request_error", "CONTEXT_LENGTH"),
        (Log().start().error(code="TOTAL_TIMEOUT"), "timeout_error", "TOTAL_TIMEOUT"),
        (Log().start().text("x").cancelled(), "api_error", "CANCELLED"),
    ],
)
def test_a_failure_is_an_error_event_and_the_last(log: Log, kind: str, code: str) -> None:
    last = events(log.text("ignored"))[-1]
    assert (last["type"], last["error"]["type"], last["error"]["details"]) == (
        "error",
        kind,
        {"error_code": code},
    )
    assert last["error"]["message"].startswith("prompt is too long: ") == (code == "CONTEXT_LENGTH")


def test_a_stream_that_waits_tells_its_place_in_a_ping() -> None:
    view = MessagesStreamView(INFO)
    (waiting,) = frames(view.queue_chunk(Place(3, 900, 300, 2700)))
    assert waiting.event == "ping"
    assert waiting.json == {
        "type": "ping",
        "fairlane": {
            "queuePosition": 3,
            "estimatedWaitMs": 900,
            "estimatedWaitLowMs": 300,
            "estimatedWaitHighMs": 2700,
        },
    }
    (silent,) = frames(view.silence)
    assert (silent.event, silent.json) == ("ping", {"type": "ping"})
    (failed,) = frames(view.failed("Task timeout", "TOTAL_TIMEOUT"))
    assert failed.json["error"]["type"] == "timeout_error"


# ---- promises over any log ----------

WORD = st.text(max_size=8)
VALUES = st.integers() | WORD | st.lists(WORD, max_size=2) | st.dictionaries(WORD, WORD, max_size=2)
ARGUMENTS = st.dictionaries(WORD, VALUES, max_size=3)
SPOKEN = st.tuples(st.sampled_from(["text", "text", "reasoning", "refusal"]), WORD)


@st.composite
def calling(draw: Any) -> list[tuple[str, Any]]:
    """Deltas of some calls, which take turns."""
    left = {}
    for index in range(draw(st.integers(0, 3))):
        text = json.dumps(draw(ARGUMENTS), ensure_ascii=draw(st.booleans()))
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        left[index] = [
            call(index, id=f"call_{index}", name=f"tool-{index}"),
            *(call(index, piece) for piece in pieces),
        ]
    deltas = []
    while left:
        index = draw(st.sampled_from(sorted(left)))
        deltas.append(("tool", [left[index].pop(0)]))
        if not left[index]:
            del left[index]
    return deltas


@given(st.lists(SPOKEN, max_size=10), calling(), st.randoms(use_true_random=False))
def test_joined_events_are_the_body_are_what_chat_shows(
    spoken: list[Any], called: list[Any], rng: Any
) -> None:
    chunks, calls, words = [], list(called), list(spoken)
    while calls or words:
        source = calls if calls and (not words or rng.random() < 0.5) else words
        chunks.append(source.pop(0))
    log = Log().start()
    for kind, delta in chunks:
        log.chunk(kind, delta)
    log.done(usage={"prompt_tokens": 5, "completion_tokens": 3})
    whole, joined = body(log), streamed(log)
    chat = json.loads(fold(ChatBodyView(INFO), log.events).body())
    message = chat["choices"][0]["message"]

    def said(shown: Any, kind: str, member: str) -> str:
        return "".join(getattr(block, member) for block in shown.content if block.type == kind)

    def used(shown: Any) -> list[Any]:
        return sorted(
            (block.id, block.name, json.dumps(block.input))
            for block in shown.content
            if block.type == "tool_use"
        )

    for shown in (whole, joined):
        assert said(shown, "thinking", "thinking") == (message.get("reasoning_content") or "")
        assert used(shown) == sorted(
            (one["id"], one["function"]["name"], json.dumps(json.loads(one["function"]["arguments"])))
            for one in message.get("tool_calls", [])
        )
        assert (shown.usage.input_tokens, shown.usage.output_tokens) == (5, 3)
    texts = [delta for kind, delta in chunks if kind in ("text", "refusal")]
    for shown in (whole, joined):
        assert said(shown, "text", "text") == "".join(texts)
    assert whole.stop_reason == joined.stop_reason
