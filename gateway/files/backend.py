"""The storage that the settings name."""

from fairlane.gateway.files.disk import Disk
from fairlane.gateway.files.s3 import S3
from fairlane.gateway.files.storage import Storage
from fairlane.gateway.settings import Directory, Settings, parse_storage


def storage_of(settings: Settings) -> Storage:
    """Return the storage."""
    place = parse_storage(settings.files.storage, settings.data_dir)
    return Disk(place.path) if isinstance(place, Directory) else S3(place)
