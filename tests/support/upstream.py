"""A server that speaks OpenAI, for tests: it answers with its own name and what it was asked, and waits where it is told to."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import uvicorn
from tests.support.serving import until


class Upstream:
    """What it was asked, and whether it answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        """What precedes /chat/completions."""
        self.asked: list[tuple[Mapping[str, str], dict[str, Any]]] = []
        """Headers and body of each completion."""
        self.goes_on = asyncio.Event()
        """A stream pauses behind its first word until this is set."""
        self.goes_on.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        if scope["path"].endswith("/models"):
            await _answer(send, b'{"object": "list", "data": []}')
            return
        asked = json.loads(body)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.asked.append((headers, asked))
        words = [f"{self.name} ", "says ", asked["messages"][-1]["content"]]
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await _answer(send, json.dumps({"id": "x", "choices": [choice]}).encode())
            return
        await send(_head(b"text/event-stream"))
        for at, word in enumerate(words):
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            await send(_part(json.dumps({"id": "x", "choices": [choice]})))
            if not at:
                await self.goes_on.wait()
        choice = {"index": 0, "delta": {}, "finish_reason": "stop"}
        await send(_part(json.dumps({"id": "x", "choices": [choice]})))
        await send(_part("[DONE]"))
        await send({"type": "http.response.body", "body": b""})


def _head(content_type: bytes) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]}


def _part(data: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True}


async def _answer(send: Any, body: bytes) -> None:
    await send(_head(b"application/json"))
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free port, at this URL."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def upstream(name: str) -> AsyncIterator[Upstream]:
    """One that listens on a free port."""
    app = Upstream(name)
    async with listening(app) as app.url:
        yield app
