"""The request that asks a model again: the first one with two more messages, of bounded size."""

import json
from typing import Any

import pytest

from fairlane.streaming.structured.repair import (
    MAX_ANSWER_CHARS,
    MAX_PAYLOAD_BYTES,
    ask_again,
    repair_request,
    shortened,
)

WRONG = '$.skills[3].name: the value is not of type "string"'


def asked_again(payload: bytes, answer: str = '{"skills": 3}', wrong: str = WRONG) -> Any:
    made = repair_request(payload, json.dumps(answer).encode(), wrong)
    return None if made is None else json.loads(made)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user", "content": "hi"}],
        [
            {"role": "system", "content": "]"},
            {"role": "user", "content": [{"type": "text", "text": "a ] b"}]},
        ],
    ],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_the_answer_and_what_is_wrong_with_it_stand_behind_the_messages(
    messages: list[Any], indent: int | None
) -> None:
    body = {
        "messages": messages,
        "temperature": 0.10,
        "response_format": {"type": "json_object"},
        "model": "m",
    }
    made = asked_again(json.dumps(body, indent=indent).encode())
    *first, theirs, ours = made.pop("messages")
    assert first == messages
    assert theirs == {"role": "assistant", "content": '{"skills": 3}'}
    assert ours == {"role": "user", "content": ask_again(WRONG)}
    assert WRONG in ours["content"]
    assert made == {name: value for name, value in body.items() if name != "messages"}


def test_what_stands_in_the_request_stays_byte_for_byte() -> None:
    payload = (
        b'{"messages":[{"role":"user","content":"\\u00e9 1.0"} ] ,"seed":1.50,"x":{"n":12345678901234567890}}'
    )
    made = repair_request(payload, b'"a"', WRONG) or b""
    for part in (b'[{"role":"user","content":"\\u00e9 1.0"},', b'"seed":1.50', b'{"n":12345678901234567890}'):
        assert part in made


@pytest.mark.parametrize(
    "payload", [b"[]", b'"hi"', b"{}", b'{"messages":null}', b'{"messages":"hi"}', b'{"prompt":"hi"}', b"{"]
)
def test_what_is_no_chat_is_not_asked_again(payload: bytes) -> None:
    assert asked_again(payload) is None


def test_a_long_answer_is_told_by_its_beginning_and_its_end() -> None:
    answer = "begin" + "é" * 3 * MAX_ANSWER_CHARS + "end"
    told = asked_again(b'{"messages":[]}', answer)["messages"][0]["content"]
    assert told == shortened(answer)
    assert told.startswith("begin")
    assert told.endswith("end")
    assert f"{len(answer) - MAX_ANSWER_CHARS} characters" in told
    assert len(told) < MAX_ANSWER_CHARS + 100
    assert shortened(answer[:MAX_ANSWER_CHARS]) == answer[:MAX_ANSWER_CHARS]


def test_a_request_that_is_too_large_is_not_put_together_again() -> None:
    text = "x" * MAX_PAYLOAD_BYTES
    payload = b'{"messages":[{"role":"user","content":"%b"}]}' % text.encode()
    assert repair_request(payload, b'"no"', "$: wrong") is None
