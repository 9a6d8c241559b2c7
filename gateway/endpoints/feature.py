"""What endpoints add to a gateway."""

import contextlib
from functools import partial

from fairlane.gateway.attached import Attached
from fairlane.gateway.endpoints.admin import EndpointAdmin
from fairlane.gateway.endpoints.requests import prepare
from fairlane.gateway.endpoints.store import EndpointMonitor, EndpointStore, StoredEndpoints
from fairlane.gateway.runtime import Gateway
from fairlane.queues.errors import StoreError


def attach(gateway: Gateway) -> Attached:
    """Follow the endpoints that operators add to the database."""
    store = EndpointStore(gateway.database)

    async def take(known: StoredEndpoints) -> None:
        """Apply the added endpoints, and write their limits, without which none of their tasks starts."""
        added = {one.name: one.settings for one in known.endpoints.values()}
        gateway.current.take_endpoints(added, known.changed_ms)
        gateway.settings_changed()
        with contextlib.suppress(StoreError):  # written when Redis is back
            await gateway.bring_configuration()
        gateway.endpoints_changed()

    monitor = EndpointMonitor(store, take)
    admin = EndpointAdmin(store, monitor, gateway.current, gateway.audit, gateway.inspector)
    return Attached(
        parts=[admin, monitor], first=[monitor], settings=admin.layer, prepare=partial(prepare, gateway)
    )
