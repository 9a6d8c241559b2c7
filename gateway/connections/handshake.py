"""From a request that asks for a WebSocket to a worker's connection."""

import asyncio
from collections.abc import Sequence
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from fairlane.gateway.connections import answers
from fairlane.gateway.connections.workers import OneWrite


def handshake_head(method: bytes, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the head of a handshake, as the WebSocket side reads it."""
    lines = [b"%b %b HTTP/1.1" % (method, url), *(b"%b: %b" % pair for pair in headers)]
    return b"\r\n".join([*lines, b"", b""])


def hand_over(
    transport: Any, head: bytes, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop
) -> None:
    """Hand the connection over to a WebSocket, beginning with its head. If it cannot read that, the connection ends."""
    make: Any = config.ws_protocol_class
    websocket = make(config=config, server_state=state, app_state={})
    joined = OneWrite(transport, loop)
    websocket.connection_made(joined)
    websocket.data_received(head)
    transport.set_protocol(websocket)
    if not websocket.handshake_initiated:
        joined.write(answers.BAD_UPGRADE)
        joined.close()
