"""What permits add to a gateway."""

from fairlane.gateway.attached import Attached
from fairlane.gateway.permits.gate import ENDS, Gate
from fairlane.gateway.permits.signed import Signer
from fairlane.gateway.runtime import Gateway


def attach(gateway: Gateway) -> Attached:
    """Sign permits with the replicas' common secret."""
    dispatcher = gateway.dispatcher
    signer = Signer(gateway.tickets.mac)
    gate = Gate(gateway.scheduler, dispatcher.background, signer, dispatcher.ask_later)
    gateway.scheduler.feature_ends |= ENDS
    return Attached(parts=[gate], polled=gate.polled, inspected=gate.inspected)
