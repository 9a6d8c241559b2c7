"""The storage that the settings name."""

from collections.abc import AsyncGenerator

from fairlane.gateway.files.disk import Disk
from fairlane.gateway.files.s3 import S3
from fairlane.gateway.files.storage import Storage, StorageError, Writer
from fairlane.gateway.settings import Directory, Settings, parse_storage


def storage_of(settings: Settings) -> Storage:
    """Return the storage; if it cannot be opened, one that raises the reason."""
    place = parse_storage(settings.files.storage, settings.data_dir)
    if isinstance(place, Directory):
        return Disk(place.path)
    try:
        return S3(place)
    except StorageError as error:
        return _Missing(str(error))


class _Missing:
    """A storage that cannot be used."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def write(self, name: str) -> Writer:  # noqa: ARG002
        raise StorageError(self._why)

    def read(self, name: str, start: int, end: int) -> AsyncGenerator[bytes, None]:  # noqa: ARG002
        raise StorageError(self._why)

    async def remove(self, name: str) -> None:  # noqa: ARG002
        raise StorageError(self._why)
