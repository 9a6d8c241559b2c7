"""Files in a bucket of an S3-compatible server, by the library obstore (the extra `s3`).

A file that arrives is first written to a nameless file in the data directory, which is gone with the process, and taken to the
bucket when it is whole: what a client sends slowly, or never to its end, costs nothing there.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fairlane.gateway.files.storage import PIECE, NotStored, StorageError
from fairlane.gateway.files.threads import OpenFile, Threads, nameless
from fairlane.gateway.settings import Bucket

if TYPE_CHECKING:
    from obstore.store import S3Config

PART = 5 << 20
"""Bytes of a part of a file, as they are taken to the bucket; a server takes 10,000 of them."""
PARTS, PUTS = 2, 4
"""Parts of a file, and files, that are taken there at once: together they are in memory."""
CONNECT_S, REQUEST_S = 5, 60
"""For a connection, and for one request: a part, or a piece."""
RETRIES, RETRY_S = 3, 20


class MissingLibrary(Exception):
    """The extra is not installed; the text says what to do."""


class S3:
    """See `Storage`."""

    def __init__(self, bucket: Bucket, spool: Path) -> None:
        """`spool`: where files lie until they are whole. Raises MissingLibrary."""
        try:
            from obstore.store import S3Store  # noqa: PLC0415 - an extra, and only where it is wanted
        except ImportError as error:
            raise MissingLibrary(
                f"files.storage is a bucket, which needs the extra `s3`: pip install '.[s3]' where Fairlane was installed from "
                f"({error})"
            ) from error
        options: S3Config = {"virtual_hosted_style_request": not bucket.path_style}
        if bucket.endpoint is not None:
            options["endpoint"] = bucket.endpoint
        if bucket.region is not None:
            options["region"] = bucket.region
        self._bucket = bucket
        self._store = S3Store(
            bucket.name,
            config=options,
            client_options={
                "allow_http": bucket.endpoint is not None and bucket.endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=REQUEST_S),
            },
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
        )
        self._spool = spool
        self._threads = Threads()
        self._puts = asyncio.Semaphore(PUTS)

    def __str__(self) -> str:
        where = f" at {self._bucket.endpoint}" if self._bucket.endpoint else ""
        return f"s3://{self._bucket.name}/{self._bucket.prefix}{where}"

    async def write(self, name: str) -> "S3Writer":
        """See `Storage`."""
        file = await self._threads.run(lambda: nameless(self._spool))
        return S3Writer(self._bucket.prefix + name, file, self._threads, self._put)

    async def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """See `Storage`. Each piece is asked for by itself: nothing is open while nobody takes any."""
        import obstore  # noqa: PLC0415

        for at in range(start, end, PIECE):
            to = min(at + PIECE, end)
            with _told():
                piece = bytes(
                    await obstore.get_range_async(self._store, self._bucket.prefix + name, start=at, end=to)
                )
            if len(piece) != to - at:
                raise StorageError(f"{name} is cut off at {at + len(piece)}")
            yield piece

    async def remove(self, name: str) -> None:
        """See `Storage`."""
        import obstore  # noqa: PLC0415

        with contextlib.suppress(NotStored), _told():
            await obstore.delete_async(self._store, self._bucket.prefix + name)

    async def close(self) -> None:
        """See `Storage`."""
        self._threads.close()

    async def _put(self, name: str, file: OpenFile) -> None:
        """Take a whole file to the bucket."""
        import obstore  # noqa: PLC0415

        async with self._puts:
            first = await self._threads.run(lambda: file.read(PART, 0))
            with _told():
                if len(first) < PART:
                    await obstore.put_async(self._store, name, first)
                else:
                    pieces = self._pieces(file, first)
                    await obstore.put_async(self._store, name, pieces, chunk_size=PART, max_concurrency=PARTS)

    async def _pieces(self, file: OpenFile, first: bytes) -> AsyncGenerator[bytes, None]:
        """A file, of which the first bytes are read. (The library would hold more of one that it reads itself.)"""
        piece, at = first, 0
        while piece:
            yield piece
            at += len(piece)
            piece = await self._threads.run(lambda at=at: file.read(PIECE, at))  # type: ignore[misc]


class S3Writer:
    """See `Writer`."""

    def __init__(
        self, name: str, file: OpenFile, threads: Threads, put: Callable[[str, OpenFile], Awaitable[None]]
    ) -> None:
        self._name = name
        self._file = file
        self._threads = threads
        self._put = put

    async def write(self, block: bytes) -> None:
        """See `Writer`."""
        await self._threads.run(lambda: self._file.write(block))

    async def finish(self) -> None:
        """See `Writer`."""
        await self._put(self._name, self._file)

    async def close(self) -> None:
        """See `Writer`."""
        self._threads.later(self._file.close)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """What the library raises, as a storage tells it. Its texts hold neither keys nor what was sent."""
    from obstore.exceptions import BaseError  # noqa: PLC0415

    try:
        yield
    except FileNotFoundError as error:
        raise NotStored(_why(error)) from error
    except (BaseError, OSError, ValueError) as error:
        raise StorageError(_why(error)) from error


def _why(error: Exception) -> str:
    sentence = str(error).partition("\n")[0]  # behind which the library's own types follow
    return sentence[:500] or type(error).__name__
