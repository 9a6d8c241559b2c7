"""Helpers of these tests: the events of a Responses stream, checked for their order, and what an SDK makes of them."""

import json
from typing import Any

from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from streaming_logs import INFO, Log, fold, frames

from fairlane.streaming.views.responses import ResponsesBodyView, ResponsesStreamView

ECHO = json.dumps(
    {
        "background": False,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1,
        "truncation": "disabled",
    },
    separators=(",", ":"),
).encode()
SUMMARISED = ECHO.replace(b'"summary":null', b'"summary":"auto"')
ENDS = ("response.completed", "response.incomplete", "response.failed")
_event: Any = TypeAdapter(ResponseStreamEvent).validate_python
_validated: Any = TypeAdapter(Response).validate_python


def events(log: Log, info: Any = INFO, *, echo: bytes = ECHO, **options: Any) -> list[Any]:
    """The data of all events; each is named by its type, none has an id, and `[DONE]` is the last."""
    view = ResponsesStreamView(info, echo, **options)
    shown = frames(b"".join(view.feed(event) for event in log.events))
    if view.ended and shown[-1].event != "error":
        assert shown.pop().data == "[DONE]"
    for frame in shown:
        assert (frame.id, frame.retry, frame.event) == (None, None, frame.json["type"])
    return [frame.json for frame in shown]


def streamed(log: Log, info: Any = INFO, *, echo: bytes = ECHO) -> dict[str, Any]:
    """The response of a stream that came to its end, in the right order, and of which the SDK makes the same."""
    told = events(log, info, echo=echo)
    check_order(told)
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for data in told:
        state.handle_event(_event(data))
    last: dict[str, Any] = told[-1]["response"]
    check_response(last)
    return last


def check_response(response: dict[str, Any]) -> None:
    """A response as the SDK's types have it."""
    parsed: Response = _validated(response)
    assert parsed.object == "response"


def check_order(told: list[Any]) -> None:
    """Dense numbers; `created`, `queued`, `in_progress`; items one after the other, whole, and so their parts; the end."""
    assert [data["sequence_number"] for data in told] == list(range(len(told)))
    kinds = [data["type"] for data in told]
    assert kinds[:2] == ["response.created", "response.queued"]
    assert kinds[-1] in ENDS
    if len(kinds) > 3:
        assert kinds[2] == "response.in_progress"
    item, part, text, items = None, None, "", []
    for data in told[3:-1]:
        kind = data["type"]
        if kind == "response.output_item.added":
            assert item is None
            item, parts = data["item"], []
            assert data["output_index"] == len(items)
            continue
        assert item is not None
        assert data["output_index"] == len(items)
        if kind == "response.output_item.done":
            done = data["item"]
            assert part is None
            assert {**item, **done} == done
            if item["type"] in ("function_call", "custom_tool_call"):
                assert done.get("arguments", done.get("input")) == text
            else:
                assert [*(done.get("content") or ()), *(done.get("summary") or ())] == parts
            items.append(done)
            item, text = None, ""
            continue
        assert data["item_id"] == item["id"]
        if "_call_" in kind:
            if kind.endswith(".delta"):
                text += data["delta"]
            else:
                assert data.get("arguments", data.get("input")) == text
            continue
        index = data.get("content_index", data.get("summary_index"))
        assert index == len(parts)
        if kind.endswith("_part.added"):
            assert part is None
            part, text = data["part"], ""
        elif kind.endswith("_part.done"):
            assert part is not None
            assert data["part"]["type"] == part["type"]
            assert data["part"].get("text", data["part"].get("refusal")) == text
            parts.append(data["part"])
            part, text = None, ""
        elif kind.endswith(".delta"):
            text += data["delta"]
        elif kind.endswith("annotation.added"):
            assert part is not None
        else:
            assert data.get("text", data.get("refusal")) == text
    assert item is None
    assert told[-1]["response"]["output"] == items


def body(log: Log, info: Any = INFO, *, echo: bytes = ECHO) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(fold(ResponsesBodyView(info, echo), log.events).body())
    check_response(told)
    return told
