"""What the archive adds to a gateway."""

from fairlane.gateway.archive.archive import Archive
from fairlane.gateway.attached import Attached
from fairlane.gateway.runtime import Gateway


def attach(gateway: Gateway) -> Attached:
    """Move results of async tasks to SQL."""
    archive = Archive(
        gateway.link,
        gateway.keys,
        gateway.database,
        gateway.metrics,
        gateway.scheduler,
        gateway.poll,
        gateway.records.erased,
        gateway.current,
    )
    gateway.poll.archive = archive.find
    return Attached(parts=[archive], components=[archive])
