"""The storage that the settings name."""

from collections.abc import AsyncGenerator

import structlog

from fairlane.gateway.files.disk import Disk
from fairlane.gateway.files.s3 import S3, MissingLibrary
from fairlane.gateway.files.storage import Storage, StorageError, Writer
from fairlane.gateway.settings import Directory, Settings, parse_storage

log = structlog.get_logger("fairlane.gateway")


def storage_of(settings: Settings) -> Storage:
    """The storage; one that only says what is missing, where a library is, with a line in the log."""
    place = parse_storage(settings.files.storage, settings.data_dir)
    if isinstance(place, Directory):
        return Disk(place.path)
    try:
        return S3(place, settings.data_dir)
    except (MissingLibrary, StorageError) as error:
        log.warning("files are not served here", storage=f"s3://{place.name}", why=str(error))
        return _Missing(str(error))


class _Missing:
    """A storage that cannot be used."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __str__(self) -> str:
        return "none"

    async def write(self, name: str) -> Writer:  # noqa: ARG002
        raise StorageError(self._why)

    async def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:  # noqa: ARG002
        if self._why:
            raise StorageError(self._why)
        yield b""

    async def remove(self, name: str) -> None:  # noqa: ARG002
        raise StorageError(self._why)

    async def close(self) -> None:
        """Nothing is held."""
