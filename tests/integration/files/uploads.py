"""Forms, as clients send them and as no client should."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2

BOUNDARY = "a-boundary-of-tests"
TYPE = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
MIB = 1 << 20


def part(name: str, data: bytes, filename: str | None = None, *headers: str) -> bytes:
    """One part of a form."""
    named = "" if filename is None else f'; filename="{filename}"'
    lines = [f'Content-Disposition: form-data; name="{name}"{named}', *headers]
    return b"--%b\r\n%b\r\n\r\n%b\r\n" % (BOUNDARY.encode(), "\r\n".join(lines).encode(), data)


END = f"--{BOUNDARY}--\r\n".encode()


def form(*parts: bytes) -> bytes:
    """A whole form."""
    return b"".join(parts) + END


FILE = part("file", b'{"a": 1}\n', "lines.jsonl")
PURPOSE = part("purpose", b"batch")


async def send(
    http: httpx2.AsyncClient, body: bytes | AsyncIterator[bytes], **headers: str
) -> httpx2.Response:
    """POST a form."""
    return await http.post("/v1/files", content=body, headers={**TYPE, **headers})


async def upload(
    http: httpx2.AsyncClient, data: bytes = b"hello", name: str = "a.txt", **more: Any
) -> dict[str, Any]:
    """A file that is taken."""
    answer = await http.post(
        "/v1/files",
        files={"file": (name, data)},
        data={"purpose": "user_data", **more.pop("fields", {})},
        **more,
    )
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told
