"""The forms of answers: measured, chunked, to old clients, to those who ask before they send."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from tests.integration.connections.keys import KEYS, WORKER
from tests.support.rawhttp import HEALTH, Caller, request
from tests.support.talk import Talk

pytestmark = pytest.mark.anyio

Start = Callable[..., AbstractAsyncContextManager[Talk]]
STREAM = b'{"stream":true}'
EXPECTS = {"Expect": "100-continue"}


async def test_a_client_that_asks_before_it_sends_its_body_is_told_to_go_on(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:

        def call() -> int:
            head, _, body = request("POST", "/api/openai", EXPECTS, b'{"a":1}').partition(b"\r\n\r\n")
            with Caller(talk.served.url) as caller:
                caller.send(head + b"\r\n\r\n")
                assert caller.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                return caller.ask(body)[0]

        answer = talk.later(asyncio.to_thread(call))
        await worker.answer(await worker.take(), {})
        assert await answer == 200


async def test_a_client_that_asks_is_refused_before_it_sends(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:

        def call() -> None:
            with Caller(talk.served.url) as caller:
                head, _, body = request("POST", "/nothing", EXPECTS, b"{}").partition(b"\r\n\r\n")
                status, said, _ = caller.ask(head + b"\r\n\r\n")
                assert (status, b"connection: close" in said.lower()) == (404, True)
                caller.send(body)
                assert caller.rest() == b""

        await asyncio.to_thread(call)


async def test_a_stream_is_chunked_and_the_connection_goes_on(shared_gateway: Start) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:

        def call() -> bytes:
            with Caller(talk.served.url) as caller:
                caller.send(request("POST", "/api/openai", body=STREAM))
                head = caller.until(b"\r\n\r\n")
                assert b"transfer-encoding: chunked\r\n" in head
                caller.until(b"\r\n0\r\n\r\n")
                assert caller.ask(HEALTH)[0] == 200
                return head

        answer = talk.later(asyncio.to_thread(call))
        await worker.answer(await worker.take(), {"content": "x"})
        assert b" 200 " in await answer


async def test_a_client_of_http_1_0_gets_a_stream_that_ends_with_the_connection(
    shared_gateway: Start,
) -> None:

    async with shared_gateway(**KEYS) as talk, talk.worker(WORKER) as worker:

        def call() -> bytes:
            with Caller(talk.served.url) as caller:
                data = request("POST", "/api/openai", {"Authorization": "Bearer ann"}, STREAM)
                caller.send(data.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
                return caller.rest()

        answer = talk.later(asyncio.to_thread(call))
        await worker.answer(await worker.take(), {"content": "x"})
        head, _, body = (await answer).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        assert body.startswith((b"id: ", b"event: "))  # and not with the length of a chunk
        assert body.endswith(b"\n\n")


async def test_a_head_alone_is_answered_without_a_body(shared_gateway: Start) -> None:
    async with shared_gateway() as talk:

        def call() -> None:
            with Caller(talk.served.url) as caller:
                caller.send(request("HEAD", "/dashboard"))
                head = caller.until(b"\r\n\r\n")
                assert b"content-length: " in head.lower()
                assert caller.ask(HEALTH)[0] == 200

        await asyncio.to_thread(call)


async def test_an_answer_that_breaks_off_does_not_look_whole(
    shared_gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shared_gateway() as talk, talk.worker() as worker:

        def broken(*_: object) -> bytes:
            raise RuntimeError("a view broke")

        def call() -> bytes:
            with Caller(talk.served.url) as caller:
                caller.send(request("POST", "/api/openai", body=STREAM))
                return caller.rest()

        answer = talk.later(asyncio.to_thread(call))
        task = await worker.take()
        monkeypatch.setattr("fairlane.streaming.views.native.NativeStreamView.feed", broken)
        await worker.answer(task, {"content": "x"})
        said = await answer
        assert b" 200 " in said
        assert not said.endswith(b"0\r\n\r\n")
