"""What batches add to a gateway."""

from fairlane.gateway.attached import Attached
from fairlane.gateway.batches.batches import Batches
from fairlane.gateway.batches.context import Tools
from fairlane.gateway.batches.leader import Leader
from fairlane.gateway.batches.store import BatchStore
from fairlane.gateway.files.files import Files
from fairlane.gateway.runtime import Gateway


def attach(gateway: Gateway) -> Attached:
    """Run batches that no other replica leads."""
    files, store = gateway.part(Files), BatchStore(gateway.database)
    tools = Tools(
        *(
            gateway.current,
            gateway.bodies,
            gateway.submit,
            gateway.cancel,
            gateway.scheduler,
            gateway.results,
        ),
        files=files,
        store=store,
        metrics=gateway.metrics,
    )
    leader = Leader(tools, gateway.replica, gateway.lifecycle)
    batches = Batches(gateway.current, store, files, leader.hurry, gateway.audit)
    return Attached(
        parts=[batches, leader], components=[leader], end_user=batches.end_of, cancel=batches.cancel_any
    )
