"""What chains add to a gateway."""

from fairlane.gateway.attached import Attached
from fairlane.gateway.chains.runner import ChainRunner
from fairlane.gateway.credits.balances import Balances
from fairlane.gateway.runtime import Gateway


def attach(gateway: Gateway) -> Attached:
    """Start the next stages of chains."""
    gateway.dispatcher.use_chains(ChainRunner(gateway.current, gateway.part(Balances).load))
    return Attached()
