"""The adapters that make answers up."""

import asyncio
import base64
import struct
from typing import Any

import msgspec
import pytest

from fairlane.workers.adapters import Accident, SimulateAdapter, Simulation, echo
from fairlane.workers.adapters.simulate import plan
from fairlane.workers.sdk import Context, Delta, Task, TaskError, Usage

pytestmark = pytest.mark.anyio
FAST: dict[str, Any] = {"ttft_ms": 0, "tokens_per_second": 0}


def task(payload: Any, *, type: str = "openaiLike", stream: bool = True, task_id: str = "t") -> Task:
    return Task(
        task_id=task_id, type=type, model="m", payload_bytes=msgspec.json.encode(payload), stream=stream
    )


async def run(handler: Any, task: Task) -> list[Any]:
    return [item async for item in handler(task, Context(task))]


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "no"}]}


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (user(" one  two\nthree "), " one  two\nthree "),
        (user([{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {}}]), "a b"),
        ({"messages": []}, ""),
        ({"messages": [{"role": "system", "content": "s"}]}, "s"),
        ({"prompt": "p q"}, "p q"),
        ({"prompt": ["p", "q"]}, "p"),
    ],
)
async def test_echo_streams_the_last_user_message_word_by_word(payload: Any, text: str) -> None:
    items = await run(echo, task(payload))
    words = [item for item in items if isinstance(item, str)]
    assert "".join(words) == text
    assert all(len(word.split()) <= 1 for word in words)
    assert isinstance(items[-1], Usage)
    assert items[-2] == Delta(finish_reason="stop")


async def test_echo_without_a_stream_gives_a_completion_object() -> None:
    usage, result = await run(echo, task(user("a b"), stream=False))
    assert usage == Usage(input_tokens=2, output_tokens=2)
    answer = result.value
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "a b"}
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    _, result = await run(echo, task({"prompt": "a"}, type="openaiCompletion", stream=False))
    assert (result.value["object"], result.value["choices"][0]["text"]) == ("text_completion", "a")


async def test_embeddings_depend_on_the_text_alone() -> None:
    (result,) = await run(echo, task({"input": ["a", "b", "a"]}, type="openaiEmbedding"))
    a, b, again = [item["embedding"] for item in result.value["data"]]
    assert a == again != b
    assert sum(x * x for x in a) == pytest.approx(1)
    (single,) = await run(
        echo, task({"input": "a", "encoding_format": "base64"}, type="openaiEmbedding", stream=False)
    )
    packed = base64.b64decode(single.value["data"][0]["embedding"])
    assert struct.unpack("<8f", packed) == pytest.approx(a)


def test_a_task_s_fate_depends_on_seed_and_id_alone() -> None:
    simulation = Simulation(seed=5, jitter=0.5, failure_rate=0.3)
    fates = [plan(simulation, str(i), None) for i in range(200)]
    assert fates == [plan(simulation, str(i), None) for i in range(200)]
    assert fates != [plan(Simulation(seed=6, jitter=0.5, failure_rate=0.3), str(i), None) for i in range(200)]
    assert len({fate.tokens for fate in fates}) > 10
    assert all(32 <= fate.tokens <= 96 and 0.1 <= fate.ttft_s <= 0.3 for fate in fates)
    assert 30 < sum(fate.accident is not None for fate in fates) < 90


async def test_a_simulated_stream_is_as_long_as_it_should_be() -> None:
    items = await run(SimulateAdapter(Simulation(tokens=7, **FAST)), task(user("a b c")))
    assert len([item for item in items if isinstance(item, str)]) == 7
    assert items[-2:] == [Usage(input_tokens=3, output_tokens=7), Delta(finish_reason="stop")]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_simulated_answer_honours_the_payload_s_limit(name: str) -> None:
    items = await run(SimulateAdapter(Simulation(tokens=7, **FAST)), task({**user("a"), name: 3}))
    assert items[-2:] == [Usage(input_tokens=1, output_tokens=3), Delta(finish_reason="length")]


async def test_accidents_happen_before_output_or_midway() -> None:
    broken: dict[str, Any] = {"failure_rate": 1, "failure_code": "MODEL_TOO_BUSY", "tokens": 8, **FAST}
    with pytest.raises(TaskError) as caught:
        await run(SimulateAdapter(Simulation(**broken)), task(user("a")))
    assert (caught.value.code, caught.value.retryable) == ("MODEL_TOO_BUSY", True)
    handler = SimulateAdapter(Simulation(accident=Accident.MIDWAY, **broken))
    items: list[Any] = []

    async def collect() -> None:
        async for item in handler(task(user("a")), Context(task(user("a")))):
            items.append(item)

    with pytest.raises(TaskError):
        await collect()
    assert len([item for item in items if isinstance(item, str)]) == 4


async def test_a_hanging_task_ends_only_by_cancellation() -> None:
    handler = SimulateAdapter(Simulation(accident=Accident.HANG, failure_rate=1, **FAST))
    running = asyncio.create_task(run(handler, task(user("a"))))
    done, _ = await asyncio.wait([running], timeout=0.02)
    assert not done
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
