"""One HTTP request over one connection, with as little work as there can be: the machine is there for the gateways."""

import asyncio


class Line:
    """A connection to this machine; carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Line":
        """Connect to a port."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, request: bytes) -> None:
        """Have a request on its way when it returns: the system has it."""
        self._writer.write(request)
        await self._writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the answer, which says how long that is."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
        return int(head[9:12]), await self._reader.readexactly(length)

    async def line_with(self, word: bytes) -> bytes:
        """The first line of the answer that has this in it, of a stream of events."""
        line = b""
        while word not in line:
            if not (line := await self._reader.readline()):
                raise EOFError
        return line

    def close(self) -> None:
        """End it."""
        self._writer.close()


def get(path: str, user: str, **headers: str) -> bytes:
    """A GET for a user, with more headers (`_` is `-` in their names)."""
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-User: {user}\r\n{more}\r\n".encode()


def post(path: str, body: bytes, user: str) -> bytes:
    """A POST of JSON for a user: at the gateway and at the target, each by its own header."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-User: {user}\r\nX-Fairlane-User: {user}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
