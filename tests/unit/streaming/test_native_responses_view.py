"""Any answer of an upstream's Responses, as its reader tells it: one log, and all surfaces show the same of it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET
from responses_folds import ECHO, SUMMARISED, body, check_order, events, streamed
from streaming_logs import INFO, TASK, Log, fold, frames
from tests.support.responses_upstream import SEAL, call, message, refusal, response, thought, transcript

from fairlane.streaming.views import (
    ChatBodyView,
    ChatStreamView,
    MessagesBodyView,
    MessagesStreamView,
    ResponsesBodyView,
    ResponsesStreamView,
    ResultView,
)
from fairlane.streaming.views.choice import ITEMS
from fairlane.streaming.views.responses import stream
from fairlane.workers.adapters.dialects.responses.answer import RESPONSE_ITEMS, ResponsesReader
from fairlane.workers.sdk import Delta, Usage

SEARCHED = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "q"},
}
CITED = {"type": "url_citation", "url": "https://e.x", "title": "T", "start_index": 0, "end_index": 1}
TEXT = st.text(max_size=12)
ITEM = st.one_of(
    st.builds(thought, TEXT, st.sampled_from("abc")),
    st.builds(
        lambda texts, cited: message(*texts, annotations=[CITED] * cited),
        st.lists(TEXT, max_size=3),
        st.integers(0, 2),
    ),
    st.builds(
        lambda text, phase: message(text, phase=phase), TEXT, st.sampled_from(["commentary", "final_answer"])
    ),
    st.builds(refusal, TEXT.filter(bool)),
    st.builds(call, st.sampled_from(["f", "g"]), st.just('{"a": "é"}'), st.sampled_from(["c1", "c2", "c3"])),
    st.just(SEARCHED),
)
ANSWERS = st.lists(ITEM, max_size=7).map(
    lambda items: [
        {**item, "call_id": f"c{number}"} if "call_id" in item else item for number, item in enumerate(items)
    ]
)


def log_of(items: list[Any], *, cut: int = 3, end: str = "done") -> Log:
    """The log of an answer, streamed in pieces of so many characters; `cut` 0: of one that came whole."""
    reader = ResponsesReader()
    if cut:
        told: list[Any] = [
            delta for event in transcript(items, cut=cut) for delta in reader.read(json.dumps(event).encode())
        ]
    else:
        told = [one for one in reader.whole(json.dumps(response(items)).encode()) if isinstance(one, Delta)]
    log = Log().start()
    for delta in told:
        _add(log, delta)
    assert isinstance(reader.usage, Usage)
    if end != "done":
        return getattr(log, end)()  # type: ignore[no-any-return]
    return log.done(None, json.loads(bytes(reader.usage.as_json())))


def _add(log: Log, delta: Delta) -> None:
    """As an attempt logs it."""
    if delta.extra is not UNSET:
        log.chunk("extra", msgspec.json.decode(delta.extra))
    for kind, text in (("text", delta.content), ("reasoning", delta.reasoning), ("refusal", delta.refusal)):
        if text is not None:
            log.chunk(kind, text)
    if delta.tool_calls is not UNSET:
        log.chunk("tool", msgspec.json.decode(delta.tool_calls))
    if delta.finish_reason is not None:
        log.chunk("finish", delta.finish_reason)


def texts(output: list[Any], kind: str, member: str = "text") -> str:
    return "".join(
        part[member]
        for item in output
        for part in [*(item.get("content") or ()), *(item.get("summary") or ())]
        if part["type"] == kind
    )


def seals(output: list[Any]) -> list[str]:
    return [item["encrypted_content"] for item in output if "encrypted_content" in item]


def calls(output: list[Any]) -> list[Any]:
    return [
        (one["call_id"], one["name"], one["arguments"]) for one in output if one["type"] == "function_call"
    ]


def test_both_sides_mean_the_same_member() -> None:
    assert RESPONSE_ITEMS == ITEMS


@given(ANSWERS, st.integers(0, 4), st.booleans())
@example([message("a"), message("", annotations=[CITED])], 0, False)
def test_the_caller_sees_what_the_upstream_said(items: list[Any], cut: int, summarised: bool) -> None:
    log = log_of(items, cut=cut)
    echo = SUMMARISED if summarised else ECHO
    told = streamed(log, echo=echo)
    assert body(log, echo=echo) == told
    output = told["output"]
    assert texts(output, "output_text") == texts(items, "output_text")
    assert texts(output, "refusal", "refusal") == texts(items, "refusal", "refusal")
    assert calls(output) == calls(items)
    assert seals(output) == seals(items)
    whole = [item["type"] for item in items if item["type"] == "web_search_call"]
    assert [item["type"] for item in output if item["type"] == "web_search_call"] == whole
    assert all(item["id"].split("_")[1] == TASK for item in output)
    cited = [
        len(part["annotations"])
        for item in output
        for part in item.get("content") or ()
        if "annotations" in part
    ]
    assert sum(cited) == sum(
        len(part["annotations"])
        for item in items
        if item["type"] == "message"
        for part in item["content"]
        if part.get("text") and "annotations" in part
    )
    assert [item["phase"] for item in output if "phase" in item] == [
        item["phase"] for item in items if "phase" in item
    ]


@given(ANSWERS, st.integers(0, 4))
def test_every_surface_shows_the_same_text_calls_and_usage(items: list[Any], cut: int) -> None:
    log = log_of(items, cut=cut)
    told = body(log)
    chat = json.loads(fold(ChatBodyView(INFO), log.events).body())
    said, text = chat["choices"][0]["message"], texts(told["output"], "output_text")
    assert (said["content"] or "") == text
    assert (said.get("refusal") or "") == texts(told["output"], "refusal", "refusal")
    assert (said.get("reasoning_content") or "") == texts(told["output"], "reasoning_text")
    made = [
        (one["id"], one["function"]["name"], one["function"]["arguments"])
        for one in said.get("tool_calls", [])
    ]
    assert made == calls(told["output"])
    native = json.loads(fold(ResultView(INFO), log.events).result_json())
    assert native["content"] == text
    blocks = json.loads(fold(MessagesBodyView(INFO), log.events).body())["content"]
    if not said.get("refusal"):
        assert "".join(block["text"] for block in blocks if block["type"] == "text") == text
    assert (
        chat["usage"]["prompt_tokens"]
        == told["usage"]["input_tokens"]
        == native["usage"]["prompt_tokens"]
        == 11
    )
    assert ITEMS not in said
    streams = ChatStreamView(INFO, include_usage=True), MessagesStreamView(INFO)
    for view in streams:
        drawn = b"".join(view.feed(event) for event in log.events).decode()
        assert ITEMS not in drawn
        assert SEAL not in drawn


@given(ANSWERS, st.integers(0, 4), st.integers(-1, 40))
def test_resuming_after_any_number_gives_the_exact_rest(items: list[Any], cut: int, after: int) -> None:
    log = log_of(items, cut=cut)
    uncut, view = ResponsesStreamView(INFO, ECHO), ResponsesStreamView(INFO, ECHO, starting_after=after)
    shown = b"".join(uncut.feed(event) for event in log.events)
    rest = b"".join(view.feed(event) for event in log.events)
    assert frames(rest)[:-1] == [one for one in frames(shown)[:-1] if one.json["sequence_number"] > after]


@pytest.mark.parametrize("end", ["error", "cancelled"])
@given(ANSWERS, st.integers(1, 4))
def test_one_that_fails_is_told_as_far_as_it_came(end: str, items: list[Any], cut: int) -> None:
    log = log_of(items, cut=cut, end=end)
    told = events(log)
    check_order(told)
    assert body(log)["output"] == told[-1]["response"]["output"]


def test_pieces_that_are_none_say_nothing() -> None:
    log = Log().start().chunk("extra", {"delta": {ITEMS: []}})
    pieces: list[Any] = [
        7,
        {},
        {"type": 7},
        {"type": "reasoning"},
        {"type": "output_text", "annotations": [CITED]},
    ]
    log.chunk("extra", {"delta": {ITEMS: pieces}}).text("Hi")
    log.chunk("extra", {"delta": {ITEMS: [{}] * 5000}}).chunk("extra", {"delta": {ITEMS: "x"}})
    log.chunk(
        "extra", {"delta": {ITEMS: [{"type": "odd", "id": "no id at all", "type\n": "a\u2028b"}]}}
    ).done()
    told = events(log)
    output = told[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "odd"]
    assert output[1]["id"] == f"item_{TASK}_0"


def test_an_answer_has_so_many_pieces_and_each_so_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_IN_ALL", 5)
    monkeypatch.setattr(stream, "MOST_MEMBERS", 3)
    wide = {"type": "wide", **{f"m{number}": 1 for number in range(3)}}
    log = Log().start().chunk("extra", {"delta": {ITEMS: []}})
    for _ in range(3):
        log.chunk("extra", {"delta": {ITEMS: [{"type": "odd"}, wide]}})
    log.text("Hi").done()
    told = events(log)[-1]["response"]
    assert [item["type"] for item in told["output"]] == ["odd", "odd", "odd", "message"]
    whole = json.loads(fold(ResponsesBodyView(INFO, ECHO), log.events).body())
    assert whole["output"] == told["output"]


def test_what_a_result_says_is_shown_instead_of_pieces() -> None:
    log = Log().start().chunk("extra", {"delta": {ITEMS: []}}).text("Hel").done({"content": "Other"})
    assert texts(body(log)["output"], "output_text") == "Other"
