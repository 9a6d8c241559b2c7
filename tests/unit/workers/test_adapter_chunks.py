"""OpenAI chunks as deltas."""

from typing import Any

import msgspec
import pytest

from fairlane.workers import protocol
from fairlane.workers.adapters.chunks import ChunkReader, StreamError


def read(*chunks: Any) -> tuple[list[dict[str, Any]], ChunkReader]:
    reader = ChunkReader()
    deltas = [delta for chunk in chunks for delta in reader.read(msgspec.json.encode(chunk))]
    return [plain(delta) for delta in deltas], reader


def plain(delta: protocol.Delta | None) -> Any:
    return msgspec.json.decode(protocol.encoder.encode(delta))


def choice(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("chunk", "expected"),
    [
        (choice(content="a"), [{"content": "a"}]),
        (choice(index=2, content="a"), [{"index": 2, "content": "a"}]),
        (choice(reasoning_content="r"), [{"reasoning": "r"}]),
        (choice(reasoning="r"), [{"reasoning": "r"}]),
        (choice(reasoning="r", reasoning_content="r"), [{"reasoning": "r"}]),
        (choice(refusal="no"), [{"refusal": "no"}]),
        (
            choice(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
            [{"toolCalls": [{"index": 0, "function": {"arguments": "{"}}]}],
        ),
        (choice(finish="stop"), [{"finishReason": "stop"}]),
        (choice(finish="stop", content="end"), [{"content": "end", "finishReason": "stop"}]),
        (choice(role="assistant", content=""), []),
        (choice(role="assistant", content=None), []),
        (choice(content=None, tool_calls=None, refusal=None, reasoning_content=None), []),
        (choice(tool_calls=[]), []),
        ({"choices": []}, []),
        ({"choices": None}, []),
        ({"object": "something else"}, []),
        ({"choices": [{"index": 0, "delta": None, "finish_reason": "length"}]}, [{"finishReason": "length"}]),
        ({"choices": [{"text": "plain", "index": 0, "logprobs": None}]}, [{"content": "plain"}]),
        (
            {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": []}, "x": None}]},
            [{"content": "a", "extra": {"logprobs": {"content": []}}}],
        ),
        (
            choice(audio={"id": "1"}, function_call={"name": "f"}, content="a"),
            [{"content": "a", "extra": {"delta": {"audio": {"id": "1"}, "function_call": {"name": "f"}}}}],
        ),
        (
            choice(content=[{"type": "text", "text": "a"}]),
            [{"extra": {"delta": {"content": [{"type": "text", "text": "a"}]}}}],
        ),
        (
            {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]},
            [{"content": "a"}, {"index": 1, "content": "b"}],
        ),
    ],
)
def test_a_chunk_becomes_these_deltas(chunk: Any, expected: list[Any]) -> None:
    assert read(chunk)[0] == expected


def test_the_usage_chunk_is_consumed_and_keeps_the_upstream_s_members() -> None:
    deltas, reader = read(
        choice(content="a"),
        {
            "choices": [],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "x": {"y": 1}},
        },
        {"choices": [], "usage": None},
    )
    assert deltas == [{"content": "a"}]
    assert reader.usage is not None
    assert msgspec.json.decode(reader.usage.as_json()) == {
        "inputTokens": 3,
        "outputTokens": 5,
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "x": {"y": 1},
    }


def test_a_stream_is_complete_when_every_choice_has_ended() -> None:
    assert not read(choice(content="a"))[1].complete
    assert not read(choice(content="a", finish="stop"), choice(index=1, content="b"))[1].complete
    assert read(choice(finish="stop"), choice(index=1, finish="length"))[1].complete


def test_an_error_object_stops_the_reading() -> None:
    with pytest.raises(StreamError) as caught:
        read({"error": {"message": "boom"}})
    assert msgspec.json.decode(caught.value.error) == {"message": "boom"}


@pytest.mark.parametrize(
    "event",
    [
        b"{",
        b"[]",
        b"text",
        b'{"choices":[1]}',
        b'{"choices":[{"delta":3}]}',
        b'{"choices":[{"index":"x"}]}',
        b'{"choices":[{"index":-1}]}',
        b'{"choices":[{"index":1024}]}',
        b'{"choices":[{"delta":{"tool_calls":{"a":1}}}]}',
        b'{"choices":[{"delta":{"tool_calls":"a"}}]}',
        b'{"choices":[{"delta":{"audio":"\xff\xfe"}}]}',
        b'{"choices":[' + b",".join([b"{}"] * 1025) + b"]}",
        b'{"choices":[' + b",".join([b"{}"] * 400_000) + b"]}",
        b'{"choices":[{"delta":{"tool_calls":[' + b",".join([b"{}"] * 1025) + b"]}}]}",
        b'{"usage":{' + b",".join(b'"%d":1' % number for number in range(3000)) + b"}}",
    ],
    ids=range(15),
)
def test_what_is_not_a_chunk_is_a_value_error(event: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        ChunkReader().read(event)


def test_what_holds_for_the_whole_answer_goes_with_the_first_output() -> None:
    head = {"id": "up-1", "system_fingerprint": "fp", "service_tier": None, "obfuscation": "xx"}
    first = {**head, **choice(role="assistant", content="")}
    end = {**head, **choice(finish="stop"), "timings": {"ms": 5}}
    deltas, reader = read(first, {**head, **choice(content="a")}, {**head, **choice(content="b")}, end)
    assert deltas == [
        {"content": "a", "extra": {"response": {"id": "up-1", "system_fingerprint": "fp"}}},
        {"content": "b"},
        {"finishReason": "stop"},
    ]
    assert plain(reader.last()) == {"extra": {"response": {"timings": {"ms": 5}}}}
