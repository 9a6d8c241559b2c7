"""A stream that waits in the queue: comments and chunks that say nothing disturb no SDK, nor a plain loop over `choices[0]`."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.serving import DEADLINE_S, http_client

from .nodes import first_status, node, outcome
from .openais import python_sdk
from .stage import MESSAGES, Stage, staged

pytestmark = pytest.mark.anyio
CHAT = "chat.completions.create"
LISTEN: Any = ("chat/completions", {"model": "talk", "messages": MESSAGES})


async def test_what_a_waiting_stream_is_told(crowded: Stage) -> None:
    there, reading = crowded.listen(*LISTEN, b'"queuePosition":1')
    await crowded.reached(there, "the position, twice")
    crowded.cast.release.set()
    body = await asyncio.wait_for(reading, DEADLINE_S)
    assert b"\r" not in body
    assert b"\nid:" not in body
    assert b"event:" not in body
    assert b": keepalive\ndata: " in body or b": keepalive\n: keepalive\n" in body
    assert b": keepalive\n\n" not in body
    frames = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")]
    assert frames.pop() == b"[DONE]"
    chunks = [json.loads(frame) for frame in frames]
    waiting = [chunk for chunk in chunks if "fairlane" in chunk]
    assert waiting
    assert all(chunk["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}] for chunk in waiting)
    assert all(chunk["fairlane"]["queuePosition"] == 1 for chunk in waiting)
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in waiting)
    assert chunks[: len(waiting)] == waiting


async def test_a_waiting_stream_disturbs_neither_python_client(crowded: Stage, kind: str) -> None:
    there, _ = crowded.listen(*LISTEN, b"queuePosition")
    async with python_sdk(kind, crowded.base_url) as sdk:
        plain = crowded.beside(sdk.chunks(CHAT, model="talk", messages=MESSAGES))
        helped = crowded.beside(sdk.helper(model="talk", messages=MESSAGES))
        await crowded.queued(3)
        await crowded.reached(there, "queue chunks")
        crowded.cast.release.set()
        chunks = await asyncio.wait_for(plain, DEADLINE_S)
        _, final = await asyncio.wait_for(helped, DEADLINE_S)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello wörld"
    assert final.choices[0].message.content == "Hello wörld"


@pytest.mark.parametrize("scenario", ["waits", "waits_raw"])
async def test_a_waiting_stream_does_not_disturb_the_node_client(
    crowded: Stage, node_project: Path, scenario: str
) -> None:
    there, _ = crowded.listen(*LISTEN, b"queuePosition")
    async with node(node_project, scenario, crowded.base_url) as child:
        assert await first_status(child) == 200
        await crowded.reached(there, "queue chunks")
        crowded.cast.release.set()
        told = await outcome(child)
    if scenario == "waits":
        assert told["content"] == "Hello wörld"
    else:
        deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in told]
        assert "".join(deltas) == "Hello wörld"


async def test_a_call_waits_as_long_as_the_sdk_does_and_no_shorter(redis_url: str, tmp_path: Path) -> None:
    async with staged(redis_url, tmp_path, slots=1, task_timeout_ms=300) as stage:
        stage.beside(stage.fill())
        await stage.reached(stage.cast.begun, "the running task")
        async with python_sdk("async", stage.base_url) as sdk:
            waiting = stage.beside(sdk.call(CHAT, model="talk", messages=MESSAGES))
            await stage.queued(1)
            async with http_client(stage.served.url) as http:  # a native call has less time
                native = await http.post("/api/openai", json={"model": "talk", "messages": MESSAGES})
            assert (native.status_code, native.json()["code"]) == (500, "TOTAL_TIMEOUT")
            stage.cast.release.set()
            completion = await asyncio.wait_for(waiting, DEADLINE_S)
    assert completion.choices[0].message.content == "Hello wörld"
