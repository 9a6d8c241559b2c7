"""200 MB through a real process, there and back: its memory stays as it is, however fast or slow its clients are."""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.memory import watched
from tests.support.processes import gateway_process
from tests.support.serving import http_client

from .uploads import END, MIB, PURPOSE, TYPE, part

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SIZE = 200 * MIB
BLOCK = bytes(range(256)) * 4096
GROWS_MIB = 24
"""What a process may take for files that come and go: a few pieces each, and what Python and the system keep of them."""


async def large_form(seen: "hashlib._Hash", size: int = SIZE) -> AsyncIterator[bytes]:
    head, _, rest = part("file", b"", "large.jsonl").rpartition(b"\r\n")
    yield head
    for number in range(size // MIB):
        block = number.to_bytes(4, "big") + BLOCK[4:]
        seen.update(block)
        yield block
    yield b"\r\n" + rest + PURPOSE + END


async def test_a_large_file_is_not_held_in_memory(tmp_path: Path, redis_url: str) -> None:
    async with gateway_process(tmp_path, redis_url) as gateway, http_client(gateway.url, timeout=120) as http:
        small = await http.post("/v1/files", files={"file": ("x", b"x")}, data={"purpose": "batch"})
        assert small.status_code == 200  # all that is made once is made
        came = hashlib.sha256()
        async with watched(gateway.pid) as upload:
            answer = await http.post("/v1/files", content=large_form(came), headers=TYPE)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["bytes"] == SIZE
        went = hashlib.sha256()
        async with (
            watched(gateway.pid) as download,
            http.stream("GET", f"/v1/files/{told['id']}/content") as stream,
        ):
            assert stream.headers["content-length"] == str(SIZE)
            async for piece in stream.aiter_raw(MIB):
                went.update(piece)
        assert went.digest() == came.digest()
        readers: list[AsyncIterator[bytes]] = []
        async with watched(gateway.pid) as slow, contextlib.AsyncExitStack() as stack:
            for _ in range(20):  # those who do not read hold nothing either
                url = f"/v1/files/{told['id']}/content"
                stream = await stack.enter_async_context(http.stream("GET", url))
                readers.append(stream.aiter_raw(1))  # (kept: a stream is closed with it)
                assert len(await anext(readers[-1])) == 1
        grown = {"upload": upload.grown, "download": download.grown, "slow": slow.grown}
        print({what: round(mib, 1) for what, mib in grown.items()})
        assert max(grown.values()) < GROWS_MIB, grown
