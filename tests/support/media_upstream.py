"""A small server that speaks OpenAI's calls for audio, images and moderations, with Starlette's own reading of forms."""

import asyncio
import base64
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.support.serving import until

SPOKEN = [b"ID3\x00", b"\xff\xfb\x90\x64" * 500, b"the end"]
"""What is spoken, in the pieces in which it leaves."""
HEARD = ["The ", "quick ", "fox ü"]
PICTURE = b"\x89PNG\r\n\x1a\n picture"
REFUSED = {
    "error": {
        "message": "no such language",
        "type": "invalid_request_error",
        "param": "language",
        "code": None,
    }
}


class MediaUpstream:
    """`seen`: each request as (path, fields); a file is (name, type, bytes)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.url = ""
        self.cut = asyncio.Event()
        """Set: speech breaks off in its middle."""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/moderations", self._moderations, methods=["POST"]),
                Route("/v1/audio/transcriptions", self._hear, methods=["POST"]),
                Route("/v1/audio/translations", self._hear, methods=["POST"]),
                Route("/v1/audio/speech", self._speak, methods=["POST"]),
                Route("/v1/images/{call}", self._draw, methods=["POST"]),
            ]
        )

    async def _note(self, request: Request) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if request.headers["content-type"].startswith("multipart/form-data"):
            async with request.form() as form:
                for name in form:
                    values: list[Any] = []
                    for value in form.getlist(name):
                        if isinstance(value, UploadFile):
                            values.append((value.filename, value.content_type, await value.read()))
                        else:
                            values.append(value)
                    fields[name] = values if name.endswith("[]") else values[0]
                    assert name.endswith("[]") or len(values) == 1
        else:
            fields = await request.json()
        self.seen.append((request.url.path.removeprefix("/v1"), fields))
        return fields

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": []})

    async def _moderations(self, request: Request) -> Response:
        fields = await self._note(request)
        return JSONResponse(
            {"id": "modr-theirs", "model": fields["model"], "results": [{"flagged": True, "categories": {}}]}
        )

    async def _hear(self, request: Request) -> Response:
        fields = await self._note(request)
        if fields.get("language") == "xx":
            return JSONResponse(REFUSED, 400)
        if fields.get("stream") == "true":
            return StreamingResponse(self._heard(), media_type="text/event-stream")
        if fields.get("response_format") in ("text", "srt", "vtt"):
            return PlainTextResponse(f"{fields['response_format']}: {''.join(HEARD)}\n")
        usage = {"type": "duration", "seconds": 7.5}
        return JSONResponse({"text": "".join(HEARD), "language": "english", "usage": usage})

    async def _heard(self) -> AsyncIterator[str]:
        for piece in HEARD:
            yield f"data: {json.dumps({'type': 'transcript.text.delta', 'delta': piece})}\n\n"
        usage = {"type": "tokens", "input_tokens": 14, "output_tokens": 5, "total_tokens": 19}
        done = {"type": "transcript.text.done", "text": "".join(HEARD), "usage": usage}
        yield f"data: {json.dumps(done)}\n\n"

    async def _speak(self, request: Request) -> Response:
        await self._note(request)
        return StreamingResponse(self._spoken(), media_type="audio/mpeg")

    async def _spoken(self) -> AsyncIterator[bytes]:
        for number, piece in enumerate(SPOKEN):
            if number == 2 and self.cut.is_set():
                raise ConnectionResetError("broke off")
            yield piece

    async def _draw(self, request: Request) -> Response:
        await self._note(request)
        usage = {
            "input_tokens": 9,
            "input_tokens_details": {"image_tokens": 0, "text_tokens": 9},
            "output_tokens": 272,
            "total_tokens": 281,
        }
        data = [{"b64_json": base64.b64encode(PICTURE).decode()}]
        return JSONResponse({"created": 1_700_000_000, "data": data, "usage": usage, "size": "1024x1024"})


@contextlib.asynccontextmanager
async def media_upstream() -> AsyncIterator[MediaUpstream]:
    """It, on a free port."""
    upstream = MediaUpstream()
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as listener:
        listener.bind(("127.0.0.1", 0))
        upstream.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        server = uvicorn.Server(uvicorn.Config(upstream.app(), log_level="critical", lifespan="off"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await until(lambda: server.started)
            yield upstream
        finally:
            server.should_exit = True
            await task
