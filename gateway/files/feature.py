"""What files add to a gateway."""

from functools import partial

from fairlane.gateway.attached import Attached
from fairlane.gateway.files.backend import storage_of
from fairlane.gateway.files.files import Files
from fairlane.gateway.runtime import Gateway
from fairlane.queues.metrics import STORAGE_FAILURES


def attach(gateway: Gateway) -> Attached:
    """Store files, and remove those that are deleted or expired."""
    current = gateway.current
    files = Files(
        *(gateway.database, storage_of(current.settings), lambda: current.settings.files),
        failed=partial(gateway.metrics.count, STORAGE_FAILURES),
    )
    return Attached(parts=[files], components=[files])
