"""OpenAI's Responses as folds: any worker, any reading, as the other surfaces show it; numbers that depend on the log alone."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from responses_folds import ECHO, SUMMARISED, body, events, streamed
from streaming_logs import INFO, TASK, TS, Log, call, calls_in_turns, fold, frames, text_and_calls, thoughts

from fairlane.gateway.responses.request.request import chat_of
from fairlane.queues.failures import FAILURES, failure_row
from fairlane.queues.tasks import Place
from fairlane.streaming import events as ev
from fairlane.streaming.views.chat import ChatBodyView
from fairlane.streaming.views.responses import (
    ResponsesBodyView,
    ResponsesStreamView,
    response_id,
    task_of_item,
    task_of_response,
)

CALL = {
    "id": f"fc_{TASK}_0",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_a",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
CLOCK = {**CALL, "id": f"fc_{TASK}_1", "call_id": "call_b", "name": "clock", "arguments": "{}"}
CHAT_CALL = {
    "id": "call_a",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
}
SIGNED = {"type": "thinking", "thinking": "Let me see", "signature": "sig=="}
HIDDEN = {"type": "redacted_thinking", "data": "abc"}
TOKEN = {"token": "Hello", "logprob": -0.5, "bytes": [72], "top_logprobs": []}


def said(*parts: Any, status: str = "completed", number: int = 0) -> dict[str, Any]:
    content = list(parts)
    return {
        "id": f"msg_{TASK}_{number}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def text(words: str, *logprobs: Any) -> dict[str, Any]:
    return {"type": "output_text", "text": words, "annotations": [], "logprobs": list(logprobs)}


def refusal(words: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": words}


def thought(*words: str, number: int = 0, **more: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": one} for one in words]
    return {"id": f"rs_{TASK}_{number}", "type": "reasoning", "summary": [], "content": content, **more}


def result(message: dict[str, Any], finish: str = "stop", **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}]}


@pytest.mark.parametrize("whole", [False, True])
def test_a_call_comes_back_as_the_tool_that_was_offered(whole: bool) -> None:
    tools = [
        {"type": "custom", "name": "patch"},
        {"type": "tool_search", "execution": "client"},
        {
            "type": "namespace",
            "name": "a",
            "description": "d",
            "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}],
        },
    ]
    echo = ECHO.replace(b'"tools":[]', b'"tools":%b' % json.dumps(tools, separators=(",", ":")).encode())
    said_ = [
        (
            "patch",
            '{"input": "a\\n\\u2028\\"b"}',
            {"type": "custom_tool_call", "name": "patch", "input": 'a\n\u2028"b'},
        ),
        ("patch", '{"inp', {"type": "custom_tool_call", "name": "patch", "input": '{"inp'}),
        (
            "tool_search",
            '{"query": 1}',
            {"type": "tool_search_call", "execution": "client", "arguments": {"query": 1}},
        ),
        ("tool_search", "", {"type": "tool_search_call", "execution": "client", "arguments": {}}),
        ("a__f", "", {"type": "function_call", "namespace": "a", "name": "f", "arguments": "{}"}),
        ("a__g", '{"input": ""}', {"type": "custom_tool_call", "namespace": "a", "name": "g", "input": ""}),
        ("f", "{}", {"type": "function_call", "name": "f", "arguments": "{}"}),
    ]
    log = Log().start()
    calls = []
    for index, (name, arguments, _) in enumerate(said_):
        calls.append(
            {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
        )
        if not whole:
            log.chunk("tool", [call(index, arguments[:4], id=f"c{index}", name=name)])
            log.chunk("tool", [call(index, arguments[4:])])
    log.done(result({"content": None, "tool_calls": calls}, "tool_calls") if whole else None)
    shown = streamed(log, echo=echo)["output"]
    kinds = {"custom_tool_call": "ctc", "tool_search_call": "tsc", "function_call": "fc"}
    assert [one["id"].split("_")[0] for one in shown] == [kinds[one["type"]] for _, _, one in said_]
    assert shown == [
        {"id": one["id"], "status": "completed", "call_id": f"c{index}", **expected}
        for index, (one, (_, _, expected)) in enumerate(zip(shown, said_, strict=True))
    ]
    view = ResponsesBodyView(INFO, echo)
    for event in log.events:
        view.feed(event)
    assert json.loads(view.body())["output"] == shown


def unsealed(item: dict[str, Any]) -> Any:
    """What goes back to the model of an item with sealed thoughts."""
    found = chat_of({"model": Raw(b'"m"'), "input": Raw(json.dumps([item]).encode())})
    return json.loads(found.payload)["messages"][0]["thinking_blocks"]


HELLO = said(text("Hello"))
THOUGHT = thought("Let me see")


@pytest.mark.parametrize(
    ("log", "output", "status"),
    [
        (Log().start().text("Hel", "lo").done(), [HELLO], "completed"),
        (Log().start().done("Hello"), [HELLO], "completed"),
        (Log().start().done({"content": "Hello"}), [HELLO], "completed"),
        (Log().start().done(), [], "completed"),
        (Log().start().text("").done(), [], "completed"),
        (Log().start().start(2).text("Hello").done(), [HELLO], "completed"),
        (Log().start().text("Hello").done(finish="length"), [{**HELLO, "status": "incomplete"}], "incomplete"),
        (Log().start().text("Hello").chunk("finish", "content_filter").done(), [{**HELLO, "status": "incomplete"}], "incomplete"),
        (Log().start().text("Hello").chunk("finish", "peculiar").done(), [HELLO], "completed"),
        (Log().start().chunk("refusal", "No").chunk("refusal", "pe").done(), [said(refusal("Nope"))], "completed"),
        (Log().start().text("Hello").chunk("refusal", "Nope").done(), [said(text("Hello"), refusal("Nope"))], "completed"),
        (Log().start().chunk("reasoning", "Let me ").chunk("reasoning", "see").done(), [THOUGHT], "completed"),
        (Log().start().chunk("reasoning", "Let me see").text("Hello").done(), [THOUGHT, HELLO], "completed"),
        (Log().start().chunk("reasoning", "Let me see").done(finish="length"), [THOUGHT], "incomplete"),
        (
            Log().start().chunk("extra", {"logprobs": {"content": [TOKEN]}}).text("Hello").done(),
            [said(text("Hello", TOKEN))],
            "completed",
        ),
        (Log().start().done(result({"content": "Hello", "reasoning_content": "Let me see"})), [THOUGHT, HELLO], "completed"),
        (
            Log().start().done(result({"content": "Hello"}, logprobs={"content": [TOKEN]})),
            [said(text("Hello", TOKEN))],
            "completed",
        ),
        (Log().start().done(result({"content": None, "tool_calls": [CHAT_CALL]}, "tool_calls")), [CALL], "completed"),
        (Log().start().done(result({"content": "Hello", "tool_calls": [CHAT_CALL]}, "stop")), [HELLO, CALL], "completed"),
        (
            Log().start().done(result({"content": "Hello", "tool_calls": [CHAT_CALL]}, "length")),
            [HELLO, {**CALL, "status": "incomplete"}],
            "incomplete",
        ),
        (Log().start().done(result({"content": None, "refusal": "Nope"})), [said(refusal("Nope"))], "completed"),
        (text_and_calls(), [HELLO, CALL, CLOCK], "completed"),
        (calls_in_turns(), [CALL, CLOCK], "completed"),
        (  # one without arguments
            Log()
            .start()
            .chunk("tool", [call(0, '{"city": "Oslo"}', id="call_a", name="weather")])
            .chunk("tool", [call(1, id="call_b", name="clock")])
            .done(),
            [CALL, CLOCK],
            "completed",
        ),
        (
            Log().start().text("Hel", "lo").error(),
            [{**HELLO, "status": "incomplete"}],
            "failed",
        ),
        (
            Log().start().text("Hello").cancelled("admin"),
            [{**HELLO, "status": "incomplete"}],
            "cancelled",
        ),
        (Log().cancelled(), [], "cancelled"),
    ],
)  # fmt: skip
def test_stream_and_body_say_the_same(log: Log, output: list[Any], status: str) -> None:
    whole, joined = body(log), streamed(log)
    assert whole == joined
    assert (whole["output"], whole["status"], whole["id"]) == (output, status, f"resp_{TASK}")
    assert whole["created_at"] == INFO.created
    assert whole["completed_at"] == (TS // 1000 if status == "completed" else None)
    reasons = {"incomplete": ["max_output_tokens", "content_filter"]}.get(status, [None])
    assert (whole["incomplete_details"] or {}).get("reason") in reasons
    assert (whole["error"] is None) == (status not in ("failed", "cancelled"))


def test_thoughts_that_are_asked_for_as_a_summary_are_told_as_one() -> None:
    log = Log().start().chunk("reasoning", "Let me ").chunk("reasoning", "see").text("Hello").done()
    summary = {
        "id": f"rs_{TASK}_0",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Let me see"}],
    }
    assert (
        streamed(log, echo=SUMMARISED)["output"] == body(log, echo=SUMMARISED)["output"] == [summary, HELLO]
    )
    kinds = [data["type"] for data in events(log, echo=SUMMARISED)[3:9]]
    assert kinds == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]


@pytest.mark.parametrize(
    ("log", "words", "blocks"),
    [
        (
            Log().start().chunk("reasoning", "Let me see").chunk("extra", thoughts(SIGNED)).text("Hello").done(),
            ["Let me see"],
            [SIGNED],
        ),
        (
            Log().start().chunk("extra", thoughts(SIGNED)).chunk("extra", thoughts(HIDDEN)).text("Hello").done(),
            ["Let me see"],
            [SIGNED, HIDDEN],
        ),
        (
            Log().start().chunk("extra", thoughts({**SIGNED, "thinking": ""}, HIDDEN)).text("Hello").done(),
            [],
            [{**SIGNED, "thinking": ""}, HIDDEN],
        ),
        (
            Log().start().done(
                result(
                    {"content": "Hello", "reasoning_content": "Let me see", "thinking_blocks": [SIGNED, HIDDEN]}
                )
            ),
            ["Let me see"],
            [SIGNED, HIDDEN],
        ),
    ],
)  # fmt: skip
def test_signed_thoughts_are_sealed_and_come_back(log: Log, words: list[str], blocks: list[Any]) -> None:
    item, message = streamed(log)["output"]
    assert message == HELLO
    assert item == thought(*words, encrypted_content=item["encrypted_content"])
    assert unsealed(item) == blocks
    (whole, _) = body(log)["output"]
    assert unsealed(whole) == blocks


def test_a_text_within_the_arguments_of_a_call_waits_for_their_end() -> None:
    log = Log().start().chunk("tool", [call(0, '{"city": "', id="call_a", name="weather")]).text("Hel")
    log.chunk("reasoning", "Hm").chunk("tool", [call(0, 'Oslo"}')]).text("lo").done()
    assert (
        body(log)["output"]
        == streamed(log)["output"]
        == [CALL, said(text("Hel")), thought("Hm"), said(text("lo"), number=1)]
    )


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (None, None),
        ({"cost": 1}, None),
        ({"inputTokens": 5, "outputTokens": 3}, (5, 0, 0, 3, 0)),
        (
            {
                "prompt_tokens": 17,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_creation_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            (17, 4, 3, 3, 2),
        ),
        (
            {
                "input_tokens": 5,
                "output_tokens": 3,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 2,
            },
            (11, 4, 2, 3, 0),
        ),
    ],
)
def test_usage_in_the_words_of_responses(usage: Any, told: Any) -> None:
    log = Log().start().text("Hello").done(usage=usage)
    found = body(log)["usage"]
    assert found == streamed(log)["usage"]
    if told is None:
        assert found is None
        return
    read, cached, written, wrote, thought_ = told
    assert found == {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": wrote,
        "output_tokens_details": {"reasoning_tokens": thought_},
        "total_tokens": read + wrote,
    }


@pytest.mark.parametrize("code", sorted(FAILURES))
def test_every_failure_is_told_with_its_code(code: str) -> None:
    log = Log().start().error("It failed", code)
    last = events(log)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["message"] == "It failed"
    row = failure_row(code)
    word = {429: "rate_limit_exceeded", 400: "invalid_prompt"}.get(row.openai, "server_error")
    assert (last["response"]["error"]["code"], last["response"]["error"]["error_code"]) == (word, row.code)


def test_a_response_that_never_began_is_not_told_to_be_in_progress() -> None:
    kinds = [data["type"] for data in events(Log().error("Task timeout", "QUEUE_TIMEOUT"))]
    assert kinds == ["response.created", "response.queued", "response.failed"]


def test_lost_events_end_the_stream_and_not_the_response() -> None:
    view = ResponsesStreamView(INFO, ECHO)
    shown = [view.feed(event) for event in Log().start().text("Hel").events]
    shown.append(view.feed(ev.gap_event(TASK, TS, "1-1", "lost")))
    assert view.ended
    told = [frame.json for frame in frames(b"".join(shown))]
    assert told[-1]["type"] == "error"
    assert (
        told[-1]["sequence_number"] == told[-2]["sequence_number"] == len(told) - 2
    )  # who resumes behind it misses nothing
    assert told[-1]["code"] == told[-1]["error"]["code"] == "EVENTS_LOST"
    assert told[-1]["message"] == told[-1]["error"]["message"]
    assert view.feed(Log().start().events[0]) == b""


@pytest.mark.parametrize(
    ("log", "status", "output"),
    [
        (Log(), "queued", []),
        (Log().start(), "in_progress", []),
        (Log().start().text("Hel"), "in_progress", [said(text("Hel"), status="in_progress")]),
    ],
)
def test_a_response_can_be_read_before_its_end(log: Log, status: str, output: list[Any]) -> None:
    told = body(log)
    assert (told["status"], told["output"], told["completed_at"], told["error"]) == (
        status,
        output,
        None,
        None,
    )


def test_the_model_that_took_over_is_told_from_the_start_on() -> None:
    told = events(Log().start().text("Hello").done(), replace(INFO, model="asked", has_fallback=True))
    models = [data["response"]["model"] for data in told if "response" in data]
    assert models == ["asked", "asked", "small-model", "small-model"]


# ---- what is drawn when ----------


def test_a_stream_that_waits_repeats_that_it_is_queued_with_its_place() -> None:
    view = ResponsesStreamView(INFO, ECHO)
    first, second = (
        frames(view.queue_chunk(Place(3, 900, 500, 2000))),
        frames(view.queue_chunk(Place(2, 400, 300, 900))),
    )
    assert [frame.event for frame in first] == ["response.created", "response.queued", "response.queued"]
    for (frame,), position in ((first[2:], 3), (second, 2)):
        assert frame.json["sequence_number"] == 1
        assert frame.json["fairlane"]["queuePosition"] == position
        assert frame.json["response"]["status"] == "queued"
    rest = b"".join(view.feed(event) for event in Log().start().text("Hello").done().events)
    assert [frame.json["sequence_number"] for frame in frames(rest)[:-1]] == list(range(2, 10))


CHUNK = st.tuples(st.sampled_from(["text", "text", "reasoning", "refusal"]), st.text(max_size=9))
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "index": st.integers(0, 2),
            "function": st.fixed_dictionaries(
                {"arguments": st.sampled_from(["", "{}", '{"a":', "1}", "x"]), "name": st.just("f")}
            ),
        }
    ),
    max_size=3,
)
OTHER = st.sampled_from(
    [
        ("extra", {"logprobs": {"content": [TOKEN]}}),
        ("extra", thoughts(SIGNED)),
        ("extra", thoughts(HIDDEN)),
        ("finish", "length"),
        ("finish", "stop"),
    ]
)
CHUNKS = st.lists(CHUNK | st.tuples(st.just("tool"), CALLS) | OTHER, max_size=15)
RESULTS = st.none() | st.text() | st.just(result({"content": "Hi", "tool_calls": [CHAT_CALL]}))
ENDINGS = st.sampled_from(["done", "error", "cancelled"])


def log_of(chunks: list[Any], end: str, found: Any) -> Log:
    log = Log().start()
    for kind, delta in chunks:
        log.chunk(kind, delta)
    return log.done(found) if end == "done" else getattr(log, end)()  # type: ignore[no-any-return]


@given(CHUNKS, ENDINGS, RESULTS, st.booleans())
def test_any_log_is_a_stream_in_order(chunks: list[Any], end: str, found: Any, summarised: bool) -> None:
    log = log_of(chunks, end, found)
    told = streamed(log, echo=SUMMARISED if summarised else ECHO)
    whole = body(log, echo=SUMMARISED if summarised else ECHO)
    assert {**told, "completed_at": None} == {**whole, "completed_at": None}


@given(CHUNKS, ENDINGS, RESULTS, st.integers(0, 20), st.integers(-1, 60))
def test_resuming_after_any_number_gives_the_exact_rest(
    chunks: list[Any], end: str, found: Any, opened_at: int, after: int
) -> None:
    """Whoever reads it, and whenever a reader is shown that it is queued."""
    log = log_of(chunks, end, found)
    uncut = ResponsesStreamView(INFO, ECHO)
    shown = b"".join(uncut.feed(event) for event in log.events)
    view = ResponsesStreamView(INFO, ECHO, starting_after=after)
    rest = b""
    for place, event in enumerate(log.events):
        if place == opened_at:
            rest += view.open()
        rest += view.feed(event)
    kept = [frame for frame in frames(shown)[:-1] if frame.json["sequence_number"] > after]
    assert frames(rest)[:-1] == kept
    assert view.ended
    assert shown.endswith(rest)


@given(CHUNKS, st.booleans())
def test_what_was_said_goes_back_as_chat_tells_it(chunks: list[Any], calls_first: bool) -> None:
    """Output items that are sent as input become the message that a chat client of the same task would send."""
    order = ["reasoning", *(["tool"] if calls_first else []), "text", "refusal", "tool", "finish"]
    spoken = [one for one in chunks if one[0] != "extra"]
    log = log_of(sorted(spoken, key=lambda one: order.index(one[0])), "done", None)
    output = fold(ResponsesBodyView(INFO, ECHO), log.events).output()
    chat = json.loads(fold(ChatBodyView(INFO), log.events).body())["choices"][0]["message"]
    if not output:
        return
    asked = chat_of({"model": Raw(b'"m"'), "input": Raw(b"[%b]" % b",".join(output))})
    (message,) = json.loads(asked.payload)["messages"]
    assert message.get("reasoning_content", "") == (chat.get("reasoning_content") or "")
    calls = [
        {**one, "function": {**one["function"], "arguments": one["function"]["arguments"] or "{}"}}
        for one in chat.get("tool_calls", ())
    ]
    assert message.get("tool_calls", []) == calls
    refused, said_ = chat["refusal"] or "", chat["content"] or ""
    if not refused:
        assert (message["content"] or "") == said_
    else:
        texts = [{"type": "text", "text": said_}] if said_ else []
        assert message["content"] == [*texts, {"type": "refusal", "refusal": refused}]


def test_ids_lead_to_their_task() -> None:
    assert task_of_response(response_id(TASK)) == TASK
    assert task_of_response(TASK) is None
    for item in (HELLO, THOUGHT, CALL):
        assert task_of_item(item["id"]) == TASK
    for other in ("msg_1", "item_2_a_0", f"msg_{TASK}_x", ""):
        assert task_of_item(other) is None
