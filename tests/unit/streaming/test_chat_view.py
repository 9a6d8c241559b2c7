import json
from typing import Any

import pytest
from msgspec.structs import replace
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from streaming_logs import INFO, TASK, TS, Log, fold, frames, read

from fairlane.queues.tasks import Place
from fairlane.streaming import events as ev
from fairlane.streaming.views.chat import ChatBodyView, ChatStreamView
from fairlane.streaming.views.result import ResultView
from fairlane.streaming.views.sse import DONE

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}


def chunks(log: Log, include_usage: bool = False) -> list[Any]:
    """The stream's chunks, each checked with OpenAI's types; it must end with `[DONE]`."""
    *shown, last = frames(read(ChatStreamView(INFO, include_usage), log.events))
    assert last.data == "[DONE]"
    for frame in shown:
        ChatCompletionChunk.model_validate(frame.json)
    return [frame.json for frame in shown]


def deltas(log: Log) -> list[Any]:
    return [choice["delta"] for chunk in chunks(log) for choice in chunk["choices"]]


def body(log: Log) -> Any:
    shown = json.loads(fold(ChatBodyView(INFO), log.events).body())
    ChatCompletion.model_validate(shown)
    return shown


def test_a_stream_begins_with_a_role_and_ends_with_a_finish_reason_and_done() -> None:
    log = Log().start().text("Hi").done()
    view = ChatStreamView(INFO)
    head = f'{{"id":"chatcmpl-{TASK}","object":"chat.completion.chunk",'
    head += '"created":1763690000,"model":"small-model",'
    shown = [view.feed(event) for event in log.events]
    role, text = (
        f'data: {head}"choices":[{{"index":0,"delta":{{{delta}}},"finish_reason":null}}]}}\n\n'
        for delta in ('"role":"assistant","content":""', '"content":"Hi"')
    )
    finish = f'data: {head}"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}\n\n'
    assert [part.decode() for part in shown] == ["", role + text, finish + DONE.decode()]
    assert view.ended
    assert view.feed(log.events[-1]) == b""


def test_usage_comes_last_if_asked_for_and_other_chunks_say_null() -> None:
    log = Log().start().text("Hi").done(usage={"inputTokens": 3, "outputTokens": 4})
    *others, last = chunks(log, include_usage=True)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert all(chunk["usage"] is None for chunk in others)
    assert all("usage" not in chunk for chunk in chunks(log))


def test_each_choice_gets_its_role_and_its_finish_reason() -> None:
    log = Log().start().text("a", index=1).text("b").chunk("finish", "length", index=1).text("c").done()
    roles = [c["choices"][0]["index"] for c in chunks(log) if "role" in c["choices"][0]["delta"]]
    reasons = [(c["choices"][0]["index"], c["choices"][0]["finish_reason"]) for c in chunks(log)]
    assert roles == [1, 0]
    assert [reason for reason in reasons if reason[1]] == [(1, "length"), (0, "stop")]
    shown = body(log)["choices"]
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in shown] == [
        (0, "bc", "stop"),
        (1, "a", "length"),
    ]


def test_reasoning_is_shown_beside_the_content() -> None:
    log = Log().start().chunk("reasoning", "hm").chunk("reasoning", ", so").text("42").done()
    assert deltas(log)[1:4] == [{"reasoning_content": "hm"}, {"reasoning_content": ", so"}, {"content": "42"}]
    message = body(log)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm, so", "42")
    assert json.loads(fold(ResultView(INFO), log.events).result_json()) == {
        "id": TASK,
        "content": "42",
        "reasoning": "hm, so",
    }


def test_tool_calls_stream_one_object_per_chunk_and_come_together_in_the_body() -> None:
    piece = {"index": 0, "function": {"arguments": '{"a"'}}
    rest = [{"index": 0, "function": {"arguments": ":1}"}}, {**CALL, "index": 1, "id": "c2"}]
    log = Log().start().chunk("tool", [CALL, piece]).chunk("tool", rest).done()
    assert [delta["tool_calls"] for delta in deltas(log)[1:-1]] == [[CALL], [piece], [rest[0]], [rest[1]]]
    assert chunks(log)[-1]["choices"][0]["finish_reason"] == "tool_calls"
    choice = body(log)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    native = json.loads(fold(ResultView(INFO), log.events).result_json())
    assert native["toolCalls"] == choice["message"]["tool_calls"]


def test_members_we_do_not_know_pass_through_and_add_up() -> None:
    def token(text: str) -> dict[str, Any]:
        return {"token": text, "bytes": None, "logprob": -0.5, "top_logprobs": []}

    log = Log().start()
    for text in ("a", "b"):
        audio = {"audio": {"id": "au", "data": text}}
        extra = {"logprobs": {"content": [token(text)]}, "stop_reason": text, "delta": audio}
        log.chunk("extra", extra).text(text)
    log.done()
    shown = [chunk["choices"][0] for chunk in chunks(log)]
    extras = [choice for choice in shown if "logprobs" in choice]
    assert [extra["logprobs"]["content"][0]["token"] for extra in extras] == ["a", "b"]
    assert [extra["delta"] for extra in extras] == [{"content": text} for text in "ab"]
    audios = [choice["delta"]["audio"] for choice in shown if "audio" in choice["delta"]]
    assert audios == [{"id": "au", "data": text} for text in "ab"]
    choice = json.loads(fold(ChatBodyView(INFO), log.events).body())["choices"][0]
    assert choice["logprobs"]["content"] == [token("a"), token("b")]
    assert (choice["stop_reason"], choice["message"]["content"]) == ("b", "ab")
    assert choice["message"]["audio"] == {"id": "au", "data": "ab"}
    native = json.loads(fold(ResultView(INFO), log.events).result_json())
    assert native["extra"]["delta"]["audio"]["data"] == "ab"


@pytest.mark.parametrize(
    "extra",
    [
        {"index": 9, "finish_reason": "x", "text": "y", "delta": {"content": "z", "role": "tool"}},
        {"logprobs": None},
    ],
)
def test_extra_members_cannot_pass_for_output(extra: dict[str, Any]) -> None:
    log = Log().start().chunk("extra", extra).text("Hi").done()
    assert deltas(log) == [{"role": "assistant", "content": ""}, {"content": "Hi"}, {}]
    assert body(log)["choices"][0]["message"]["content"] == "Hi"


def test_a_result_with_everything_becomes_a_whole_stream() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "reasoning": "hm",
        "tool_calls": [call],
        "x": 1,
    }
    choices = [
        {"index": 0, "message": message, "logprobs": {"content": []}, "finish_reason": "tool_calls"},
        {"index": 1, "text": "a completion", "finish_reason": "length"},
    ]
    log = Log().start().done({"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    shown = chunks(log, include_usage=True)
    first = [chunk["choices"][0] for chunk in shown[:-1] if chunk["choices"][0]["index"] == 0]
    assert [choice["delta"] for choice in first] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"content": "Hi"},
        {"tool_calls": [{"index": 0, **call}]},
        {"x": 1},
        {},
    ]
    assert first[2]["logprobs"] == {"content": []}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in shown[:-1]]
    assert [reason for reason in reasons if reason] == ["tool_calls", "length"]
    assert shown[-1]["usage"]["total_tokens"] == 2


def test_a_stream_has_one_id_also_if_it_waited() -> None:
    log = Log().start().chunk("extra", {"response": {"id": "chatcmpl-up", "service_tier": "default"}})
    log.text("Hi").chunk("extra", {"response": {"system_fingerprint": "fp"}}).text("!").done()
    for waited, expected in ((False, "chatcmpl-up"), (True, f"chatcmpl-{TASK}")):
        view = ChatStreamView(INFO)
        waiting = view.queue_chunk(Place(1, 0, 0, 0)) if waited else b""
        *shown, _ = frames(waiting + b"".join(view.feed(event) for event in log.events))
        assert {frame.json["id"] for frame in shown} == {expected}
        assert shown[-1].json["system_fingerprint"] == "fp"


def test_a_waiting_stream_gets_chunks_that_clients_can_parse() -> None:
    for include_usage, place in ((False, Place(3, 2000, 900, 4000)), (True, Place(1, 0, 0, 0))):
        (frame,) = frames(ChatStreamView(INFO, include_usage).queue_chunk(place))
        ChatCompletionChunk.model_validate(frame.json)
        assert frame.json["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        assert frame.json["fairlane"] == {
            "queuePosition": place.position,
            "estimatedWaitMs": place.wait_ms,
            "estimatedWaitLowMs": place.low_ms,
            "estimatedWaitHighMs": place.high_ms,
        }


@pytest.mark.parametrize(
    "event",
    [ev.gap_event(TASK, TS, "1-7", "lost"), ev.restart_event(TASK, TS, "lost")],
    ids=["gap", "restart"],
)
def test_lost_events_end_a_chat_stream_with_an_error(event: ev.Event) -> None:
    view = ChatStreamView(INFO)
    (frame,) = frames(view.feed(event))
    assert (frame.json["error"]["code"], view.ended) == ("EVENTS_LOST", True)
    assert view.feed(Log().text("late").events[0]) == b""


def test_model_names_and_texts_are_escaped() -> None:
    info = replace(INFO, model='a"b\n')
    log = Log().start().text('"\n\u2028\\').done()
    *shown, _ = frames(read(ChatStreamView(info), log.events))
    assert shown[0].json["model"] == 'a"b\n'
    assert shown[1].json["choices"][0]["delta"]["content"] == '"\n\u2028\\'


@pytest.mark.parametrize("include_usage", [False, True])
def test_members_of_the_upstreams_answer_are_kept(include_usage: bool) -> None:
    told = {"id": "chatcmpl-up", "system_fingerprint": "fp_1"}
    log = Log().start().chunk("extra", {"response": told}).text("Hi").chunk("finish", "stop")
    log.chunk("extra", {"response": {"timings": {"ms": 5}}}).done(usage={"inputTokens": 1, "outputTokens": 1})
    shown = chunks(log, include_usage)
    assert {(chunk["id"], chunk["system_fingerprint"]) for chunk in shown} == {("chatcmpl-up", "fp_1")}
    assert [chunk.get("timings") for chunk in shown] == [None] * (len(shown) - 1) + [{"ms": 5}]
    assert [bool(chunk["choices"]) for chunk in shown][-1] is not include_usage
    whole = body(log)
    assert (whole["id"], whole["system_fingerprint"], whole["timings"]) == ("chatcmpl-up", "fp_1", {"ms": 5})
    assert "response" not in whole["choices"][0]
