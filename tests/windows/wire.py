"""HTTP requests over one connection, with as little work as possible: the machine's time belongs to the gateways."""

import asyncio


class Line:
    """A connection to this machine that carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Line":
        """Connect to a port."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, request: bytes) -> None:
        """Write a request. The system has it when this returns."""
        self._writer.write(request)
        await self._writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Read status and body of an answer with a Content-Length."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        return int(head[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def post(path: str, body: bytes, user: str) -> bytes:
    """Return a POST of JSON for a user, in the header of the gateway and in that of the target."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-User: {user}\r\nX-Fairlane-User: {user}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
