"""What chains add to a gateway."""

from fairlane.gateway.attached import Attached
from fairlane.gateway.chains.calls import ChainCalls
from fairlane.gateway.chains.runner import ChainRunner
from fairlane.gateway.credits.balances import Balances
from fairlane.gateway.runtime import Gateway


def attach(gateway: Gateway) -> Attached:
    """Submit and read chains, and start their next stages."""
    gateway.dispatcher.use_chains(ChainRunner(gateway.current, gateway.part(Balances).load))
    calls = ChainCalls(gateway)
    return Attached(prepare=calls.prepare, polled=calls.polled, inspected=calls.inspected)
