"""A connection on which no answer is under way ends by itself, whatever was sent on it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import pytest
from tests.support.rawhttp import HANDSHAKE, HEALTH, Caller, request
from tests.support.serving import until
from tests.support.talk import Talk

from fairlane.gateway.connections import connections, http

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
SHORT_S = 0.3
CHUNKED = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}


@pytest.fixture(autouse=True, scope="module")
def short_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HEAD_S", "BODY_S", "IDLE_S", "LINGER_S"):
            patch.setattr(http, name, SHORT_S)
        patch.setattr(connections, "TICK_S", 0.05)
        yield


async def ends(talk: Talk, *pieces: bytes, hold: Callable[[Caller], None] | None = None) -> bytes:
    """What is said to these bytes until the gateway ends the connection, which it must."""

    def call() -> bytes:
        with Caller(talk.served.url) as caller:
            for piece in pieces:
                caller.send(piece)
            if hold is not None:
                hold(caller)
            return caller.rest()

    said = await asyncio.to_thread(call)
    deadlines = talk.served.gateway.connections._deadlines
    assert deadlines is not None
    await until(lambda: not any(deadlines._slots.values()), "no connection to wait")
    return said


WAITING = {
    "nothing": b"",
    "a part of a head": b"GET /livez HTT",
    "line breaks": b"\r\n\r\n",
    "an answered request": HEALTH,
    "a line break after an answer": HEALTH + b"\n",
    "half a request line after an answer": HEALTH + b"GET /hea",
    "half a head after an answer": HEALTH + HEALTH[:-2],
    "a body that nobody wants": request("GET", "/livez", {"Content-Length": "5"}) + b"abc",
    "a chunk that nobody wants": request("GET", "/livez", CHUNKED) + b"5\r\nab",
    "a trailer that never ends": request("GET", "/livez", CHUNKED) + b"0\r\nT: ",
    "a refused request": b"hello\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a body that is too large": request("POST", "/api/openai", {**CHUNKED, "Content-Length": "99999999"}),
}


@pytest.mark.parametrize("what", WAITING)
async def test_a_connection_that_waits_is_ended(shared_gateway: Start, what: str) -> None:
    async with shared_gateway() as talk:
        said = await ends(talk, WAITING[what])
        assert said.count(b"HTTP/1.1 200 ") == (
            HEALTH in WAITING[what] or b"/livez HTTP/1.1" in WAITING[what]
        )


async def test_a_byte_after_an_answer_does_not_lengthen_its_life(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:

        def drip(caller: Caller) -> None:
            while caller.open():  # each line break would begin a new wait, if the wait were per byte
                caller.send(b"\n")

        await ends(talk, HEALTH, hold=drip)


async def test_a_head_in_drops_is_given_up(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:

        def drip(caller: Caller) -> None:
            while caller.open():
                caller.send(b"X: y\r\n")

        assert await ends(talk, HEALTH[:-2], hold=drip) == b""


UPGRADES = {
    "a long header": (request("GET", "/ws", {**HANDSHAKE, "X": "a" * 9000}), b" 400 "),
    "a long URL": (request("GET", "/ws?" + "a" * 9000, HANDSHAKE), b" 400 "),
    "a body": (request("GET", "/ws", {**HANDSHAKE, "Content-Length": "3"}) + b"abc", b" 400 "),
    "a chunked body": (request("GET", "/ws", {**HANDSHAKE, "Transfer-Encoding": "chunked"}), b" 400 "),
    "frames before the answer": (request("GET", "/ws", HANDSHAKE) + b"\x81\x80abcd", b" 400 "),
    "another method": (request("POST", "/ws", HANDSHAKE), b" 405 "),
    "many headers": (request("GET", "/ws", {**HANDSHAKE, **{f"H{n}": "x" for n in range(99)}}), b" 431 "),
    "no key": (request("GET", "/ws", {**HANDSHAKE, "Sec-WebSocket-Key": ""}), b" 400 "),
    "HTTP/1.0": (request("GET", "/ws", HANDSHAKE).replace(b"HTTP/1.1", b"HTTP/1.0", 1), b" 400 "),
}


@pytest.mark.parametrize("what", UPGRADES)
async def test_a_hand_shake_that_cannot_be_read_is_answered(shared_gateway: Start, what: str) -> None:
    async with shared_gateway() as talk:
        data, status = UPGRADES[what]
        said = await ends(talk, data)
        assert status in said.split(b"\r\n")[0]


async def test_a_hand_shake_behind_a_request_that_is_not_answered_yet_is_refused(
    shared_gateway: Start,
) -> None:
    async with shared_gateway() as talk:
        said = await ends(talk, HEALTH + request("GET", "/ws", HANDSHAKE))
        first, second = said.split(b"HTTP/1.1 ")[1:]
        assert (first[:3], second[:3]) == (b"200", b"400")


async def test_a_request_sent_before_the_last_answer_is_left_to_another_connection(
    shared_gateway: Start,
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:
        said = talk.later(ends(talk, request("POST", "/api/openai", body=b'{"first":1}') + HEALTH * 3))
        await worker.answer(await worker.take(), {"fine": True})
        answers = (await said).split(b"HTTP/1.1 ")[1:]
        assert [answer[:3] for answer in answers] == [b"200"]
        assert b"connection: close" in answers[0]


async def test_a_stream_outlives_all_these_waits(shared_gateway: Start) -> None:
    async with shared_gateway(keepalive_ms=50) as talk, talk.worker() as worker:

        def read(caller: Caller, count: int) -> None:
            for _ in range(count):
                caller.until(b": keepalive\n")

        with Caller(talk.served.url) as caller:
            caller.send(request("POST", "/api/openai", body=b'{"stream":true}'))
            task = await worker.take()
            await asyncio.to_thread(read, caller, 20)  # of 50 ms each: beyond every wait
            await worker.answer(task, {"content": "late"})
            await asyncio.to_thread(caller.until, b"event: done")
