"""What files add to a gateway."""

from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from fairlane.gateway.attached import Attached, DatabaseGauges
from fairlane.gateway.files.disk import Disk
from fairlane.gateway.files.files import Files
from fairlane.gateway.files.rows import held_by_all
from fairlane.gateway.files.settings import Directory, parse_storage
from fairlane.gateway.files.storage import Storage, StorageError
from fairlane.gateway.metrics.gauges import Gauge, Rows
from fairlane.gateway.runtime import Gateway
from fairlane.gateway.settings import Problem, Settings, SettingsError
from fairlane.queues.metrics import STORAGE_FAILURES

GAUGES = (
    Gauge("fairlane_files", (), "Stored files, including uploads and deletions in progress"),
    Gauge("fairlane_files_bytes", (), "Bytes used or reserved by files"),
    Gauge("fairlane_files_limit_bytes", (), "Maximum of these bytes (files.max_size)"),
)


def storage_of(settings: Settings) -> Storage:
    """Return the storage. Raise SettingsError."""
    place = parse_storage(settings.files.storage, settings.data_dir)
    if isinstance(place, Directory):
        return Disk(place.path)
    try:
        from fairlane.gateway.files.s3 import S3  # noqa: PLC0415 - an extra, and only where it is wanted

        return S3(place)
    except ImportError as error:
        reason = (
            f"a bucket needs the extra `s3`: pip install '.[s3]' where Fairlane was installed from ({error})"
        )
    except StorageError as error:
        reason = str(error)
    raise SettingsError([Problem("files.storage", reason)])


def attach(gateway: Gateway) -> Attached:
    """Store files, and remove those that are deleted or expired."""
    current = gateway.current
    files = Files(
        *(gateway.database, storage_of(current.settings), lambda: current.settings.files),
        failed=partial(gateway.metrics.count, STORAGE_FAILURES),
    )

    async def read_gauges(connection: AsyncConnection) -> Rows:
        number, size = await held_by_all(connection)
        values = {"": number, "_bytes": size, "_limit_bytes": current.settings.files.max_bytes}
        return {f"fairlane_files{name}": {(): value} for name, value in values.items()}

    gauges = DatabaseGauges(GAUGES, read_gauges)
    return Attached(parts=[files], components=[files], gauges=gauges)
