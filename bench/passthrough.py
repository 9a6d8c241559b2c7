"""The yardstick: the barest pass-through to one upstream that anybody would write. `python -m bench.passthrough PORT UPSTREAM`.

It checks nothing, queues nothing and remembers nothing. A gateway's cost is reported as a multiple of it, measured on the same
core in the same run: figures of different machines and hours cannot be compared, ratios can.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

JSON = {"content-type": "application/json"}


def make_app(upstream: str) -> Starlette:
    """The application: every POST goes to `upstream` as it is, every answer comes back as it is."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            app.state.session = session
            yield

    async def relay(request: Request) -> Response:
        answer = await request.app.state.session.post(upstream, data=await request.body(), headers=JSON)
        if answer.content_type == "text/event-stream":
            return StreamingResponse(answer.content.iter_any(), media_type="text/event-stream")
        return Response(await answer.read(), answer.status, media_type="application/json")

    return Starlette(
        routes=[Route("/{path:path}", relay, methods=["POST"]), Route("/", lambda _: Response())],
        lifespan=lifespan,
    )


if __name__ == "__main__":
    app = make_app(f"http://127.0.0.1:{int(sys.argv[2])}/v1/chat/completions")
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
