"""Files in a bucket of an S3-compatible server, by the library obstore (the extra `s3`)."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from fairlane.gateway.files.settings import Bucket
from fairlane.gateway.files.storage import PIECE, NotStored, Storage, StorageError, Writer

if TYPE_CHECKING:
    from obstore import AsyncWritableFile
    from obstore.store import S3Config

PART = 8 << 20
"""Bytes of one part of an upload: a server takes 10,000 parts."""
MAX_PARTS = 2
"""Parts of one file that are sent at the same time."""
CONNECT_S, REQUEST_S = 5, 60
"""Deadlines of a connection and of one request."""
RETRIES, RETRY_S = 3, 20


class S3(Storage):
    """A bucket. An upload that is not finished may leave parts at the server, which its own rules remove."""

    def __init__(self, bucket: Bucket) -> None:
        """Raise StorageError if the library rejects the settings."""
        self._bucket = bucket
        options: S3Config = {"virtual_hosted_style_request": not bucket.path_style}
        if bucket.endpoint is not None:
            options["endpoint"] = bucket.endpoint
        if bucket.region is not None:
            options["region"] = bucket.region
        with _translated():
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

    def __str__(self) -> str:
        where = f" at {self._bucket.endpoint}" if self._bucket.endpoint else ""
        return f"s3://{self._bucket.name}/{self._bucket.prefix}{where}"

    async def write(self, name: str) -> Writer:
        key = self._bucket.prefix + name
        with _translated():
            return _S3Writer(
                obstore.open_writer_async(self._store, key, buffer_size=PART, max_concurrency=MAX_PARTS)
            )

    async def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        # each piece is one request, so that no connection stays open between reads
        for at in range(start, end, PIECE):
            to = min(at + PIECE, end)
            with _translated():
                key = self._bucket.prefix + name
                piece = bytes(await obstore.get_range_async(self._store, key, start=at, end=to))
            if len(piece) != to - at:
                raise StorageError(f"{name} is cut off at {at + len(piece)}")
            yield piece

    async def remove(self, name: str) -> None:
        with contextlib.suppress(NotStored), _translated():
            await obstore.delete_async(self._store, self._bucket.prefix + name)


class _S3Writer(Writer):
    def __init__(self, file: "AsyncWritableFile") -> None:
        self._file = file

    async def write(self, block: bytes) -> None:
        with _translated():
            await self._file.write(block)

    async def finish(self) -> None:
        with _translated():
            await self._file.close()

    def close(self) -> None:
        """Do nothing: an upload is finished, or given up."""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Raise the library's errors as StorageError. Their texts contain neither keys nor content."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotStored(_why(error)) from error
    except (BaseError, OSError, ValueError) as error:
        raise StorageError(_why(error)) from error


def _why(error: Exception) -> str:
    sentence = str(error).partition("\n")[0]  # the library's own types follow
    return sentence[:500] or type(error).__name__
