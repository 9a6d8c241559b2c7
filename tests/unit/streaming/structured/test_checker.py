"""The process that compares: whatever it is asked, there is an answer, and the next question has one, too."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane.streaming.structured.checker import FINE, LATE, NO_CHILD, TOO_LONG, TOO_SLOW, Checker
from fairlane.streaming.structured.requirements import MAX_TEXT_BYTES

pytestmark = pytest.mark.anyio
STRING = b'{"type":"string"}'


def endless(name: str = "") -> bytes:
    """A schema that takes 2^60 steps to find out that a value does not match."""
    twice = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(60)}
    return json.dumps(
        {"title": name, "$defs": {**twice, "a60": {"type": "string"}}, "$ref": "#/$defs/a0"}
    ).encode()


@pytest.fixture
async def checker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Checker]:
    """One whose process has as long for its second of the processor as a loaded machine takes to give it."""
    monkeypatch.setattr("fairlane.streaming.structured.checker.ANSWER_S", 120)
    checker = Checker()
    yield checker
    await checker.close()


async def test_schemas_and_texts_are_looked_at(checker: Checker) -> None:
    assert await checker.schema(STRING, "u") == FINE
    assert (await checker.schema(b'{"type":"strin"}', "u")).wrong == "schema"
    assert await checker.texts(STRING, [b'"\\"a\\""'], "u") == FINE
    assert (await checker.texts(STRING, [b'"1"'], "u")).sentence == '$: the value is not of type "string"'
    assert await checker.texts(STRING, [], "u") == FINE
    assert await checker.texts(STRING, [b" " * MAX_TEXT_BYTES, b'"x"'], "u") == TOO_LONG


async def test_a_known_schema_is_not_asked_for_again(checker: Checker) -> None:
    await checker.schema(STRING, "u")
    await checker._end()
    assert await checker.schema(STRING, "u") == FINE
    assert checker._child is None


async def test_what_takes_for_ever_is_ended_and_the_next_question_is_answered(checker: Checker) -> None:
    schema = endless()
    assert await checker.schema(schema, "u") == FINE, "it looks harmless"
    assert await checker.texts(schema, [b'"1"'], "u") == TOO_SLOW
    assert await checker.schema(schema, "u") == TOO_SLOW, "now it is known"
    assert await checker.texts(schema, [b'"1"'], "u") == TOO_SLOW
    assert await checker.texts(STRING, [b'"\\"a\\""'], "u") == FINE


async def test_who_does_not_wait_any_more_leaves_no_answer_to_the_next(checker: Checker) -> None:
    await checker.schema(STRING, "u")
    asking = asyncio.create_task(checker.texts(endless(), [b'"1"'], "u"))
    while checker._semaphore._free:
        await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await checker.texts(STRING, [b'"1"'], "u")).wrong == "text"


async def test_a_process_that_was_killed_is_started_again(checker: Checker) -> None:
    await checker.schema(STRING, "u")
    assert checker._child is not None
    checker._child.process.kill()
    assert await checker.texts(STRING, [b'"\\"a\\""'], "u") == FINE


async def test_without_time_nobody_knows(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    await checker.schema(STRING, "u")
    monkeypatch.setattr("fairlane.streaming.structured.checker.ANSWER_S", 0)
    assert await checker.texts(STRING, [b'"1"'], "u") == LATE
    assert await checker.schema(b'{"type":"integer"}', "u") == LATE
    monkeypatch.undo()
    assert await checker.schema(b'{"type":"integer"}', "u") == FINE, "it was not remembered"


async def test_without_a_process_nobody_knows(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise OSError("no more processes")

    with monkeypatch.context() as broken:
        broken.setattr("fairlane.streaming.structured.checker._PROGRAM", "fairlane.no_such_program")
        assert await checker.texts(STRING, [b'"1"'], "u") == NO_CHILD, "it ends at its start"
    monkeypatch.setattr("fairlane.streaming.structured.checker.ChildProcess", none)
    assert await checker.schema(STRING, "u") == NO_CHILD
    await checker.close()
    assert await checker.texts(STRING, [b'"1"'], "u") == NO_CHILD


async def test_nobody_waits_for_ever_for_his_turn(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlane.streaming.structured.checker.PATIENCE_S", 0)
    async with checker._semaphore.hold("another"):
        assert await checker.schema(STRING, "u") == LATE
        assert await checker.texts(STRING, [b'"1"'], "u") == LATE


async def test_a_process_that_somebody_kills_blames_no_schema(checker: Checker) -> None:
    await checker.schema(STRING, "u")
    asking = asyncio.create_task(checker.texts(endless("killed"), [b'"1"'], "u"))
    while checker._semaphore._free:
        await asyncio.sleep(0)
    assert checker._child is not None
    checker._child.process.kill()
    assert await asking == LATE
    assert await checker.schema(endless("killed"), "u") == FINE
