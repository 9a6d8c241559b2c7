"""A process of model servers behind the yardstick: `python -m bench.upstream '<UpstreamSpec as JSON>'`.

It answers chat calls over HTTP as `bench.worker` answers tasks over WebSocket: the same texts, the same beat, the same stamps.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import cast

import msgspec
import uvloop

from bench.specs import UpstreamSpec
from bench.worker import Clock

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,'
    b'"completion_tokens":5,"total_tokens":10},"tookNs":%d}'
)
_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":'
    b'[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
)


def _part(data: bytes) -> bytes:
    """One chunk of a chunked answer."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Model(asyncio.Protocol):
    """One keep-alive connection; one call at a time."""

    def __init__(self, spec: UpstreamSpec, clock: Clock) -> None:
        self._spec = spec
        self._clock = clock
        self._buffer = b""
        self._open = True
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (why does not matter)
        self._open = False

    def data_received(self, data: bytes) -> None:
        began = time.monotonic_ns()
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"content-length:")
        size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._buffer) < end + 4 + size:
            return
        body = self._buffer[end + 4 : end + 4 + size]
        self._buffer = self._buffer[end + 4 + size :]
        if b'"stream":true' in body:
            self._clock.begin(self, self._run(began))
            return
        answer = _ANSWER % (time.monotonic_ns() - began)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % len(answer) + answer)

    def _run(self, began: int) -> Iterator[tuple[int, bytes]]:
        """(the instant of the next event, the bytes to send now)."""
        gap_ns = int(1e9 / self._spec.tokens_per_s)
        due = time.monotonic_ns()
        for number in range(self._spec.tokens):
            if not self._open:
                yield 0, b""
                return
            now = time.monotonic_ns()
            text = b"@%d;" % now if number else b"^%d;@%d;" % (now - began, now)
            due += gap_ns
            yield due, (b"" if number else _STREAM_HEAD) + _part(_EVENT % text)
        yield 0, _part(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def main(spec: UpstreamSpec) -> None:
    """Serve until this process is ended."""
    clock = Clock(together=False)
    server = await asyncio.get_running_loop().create_server(
        lambda: Model(spec, clock), "127.0.0.1", spec.port
    )
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(msgspec.json.decode(sys.argv[1], type=UpstreamSpec)))
