"""What credits add to a gateway."""

from fairlane.gateway.accounts.keystore import KeyStore
from fairlane.gateway.attached import Attached
from fairlane.gateway.credits.admin import BalanceAdmin
from fairlane.gateway.credits.balances import Balances
from fairlane.gateway.credits.ledger import charge
from fairlane.gateway.credits.reconciliation import BalanceReconciler
from fairlane.gateway.runtime import Gateway


def attach(gateway: Gateway) -> Attached:
    """Load balances into Redis when a task needs them, and compare them with the ledger."""
    database, scheduler = gateway.database, gateway.scheduler
    balances = Balances(database, scheduler)
    admin = BalanceAdmin(balances, gateway.part(KeyStore), gateway.current, gateway.audit)
    reconciler = BalanceReconciler(database, scheduler, gateway.link, gateway.keys, gateway.metrics)
    return Attached(
        parts=[admin, balances],
        components=[reconciler],
        recorded=charge,
        rejected=balances.overcomes,
        balance=admin.own,
        store_back=reconciler.reconcile_all,
    )
