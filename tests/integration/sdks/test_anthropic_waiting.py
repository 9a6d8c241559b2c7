"""A Messages stream that waits in the queue: it holds, tells its place in pings, and ends in order."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.serving import DEADLINE_S, http_client

from .anthropics import ASKED, anthropic_sdk
from .stage import Stage, staged

pytestmark = pytest.mark.anyio


async def test_what_a_waiting_stream_is_told(crowded: Stage) -> None:
    there, reading = crowded.listen("messages", ASKED, b'"queuePosition":1')
    await crowded.reached(there, "the position, twice")
    crowded.cast.release.set()
    body = await asyncio.wait_for(reading, DEADLINE_S)
    assert b"\r" not in body
    assert b"\nid:" not in body
    frames = [frame.split(b"\n") for frame in body.split(b"\n\n")[:-1]]
    assert all(len(lines) == 2 for lines in frames)
    told = []
    for event, data in frames:
        told.append(json.loads(data.removeprefix(b"data: ")))
        assert event == b"event: " + told[-1]["type"].encode()
    begun = next(at for at, data in enumerate(told) if data["type"] == "message_start")
    waiting = told[:begun]
    assert {data["type"] for data in waiting} == {"ping"}
    assert {data["fairlane"]["queuePosition"] for data in waiting if "fairlane" in data} == {1}
    assert {"type": "ping"} in waiting
    assert told[-1] == {"type": "message_stop"}


async def test_a_waiting_stream_disturbs_neither_python_client(crowded: Stage, kind: str) -> None:
    there, _ = crowded.listen("messages", ASKED, b"queuePosition")
    async with anthropic_sdk(kind, crowded.served.url) as sdk:
        plain = crowded.beside(sdk.events(**ASKED))
        helped = crowded.beside(sdk.helper(**ASKED))
        await crowded.queued(3)
        await crowded.reached(there, "pings")
        crowded.cast.release.set()
        events = await asyncio.wait_for(plain, DEADLINE_S)
        text, _ = await asyncio.wait_for(helped, DEADLINE_S)
    assert text == "Hello wörld"
    assert events[0].type == "message_start"


async def test_a_stream_that_waits_too_long_ends_with_an_error_event(redis_url: str, tmp_path: Path) -> None:
    async with staged(redis_url, tmp_path, slots=1, min_task_timeout_ms=100) as stage:
        stage.beside(stage.fill())
        await stage.reached(stage.cast.begun, "the running task")
        async with http_client(stage.served.url) as http:
            headers = {"x-fairlane-timeout": "300"}
            answer = await http.post("/v1/messages", json={**ASKED, "stream": True}, headers=headers)
        assert answer.status_code == 200
        event, data = answer.text.split("\n\n")[-2].split("\n")
        assert event == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["type"] == "timeout_error"


async def test_a_gateway_that_stops_says_so_in_an_error_event(redis_url: str, tmp_path: Path) -> None:
    async with staged(redis_url, tmp_path, slots=1, keepalive_ms=20, drain_ms=0) as stage:
        stage.beside(stage.fill())
        await stage.reached(stage.cast.begun, "the running task")
        there, reading = stage.listen("messages", ASKED, b"event: ping", 1)
        await stage.reached(there, "a ping")
        await stage.served.gateway.drain()
        body = await asyncio.wait_for(reading, DEADLINE_S)
    event, data = body.split(b"\n\n")[-2].split(b"\n")
    assert event == b"event: error"
    error = json.loads(data.removeprefix(b"data: "))["error"]
    assert (error["type"], error["details"]["error_code"]) == ("overloaded_error", "GATEWAY_STOPPING")
