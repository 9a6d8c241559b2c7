"""What overrides add to a gateway."""

from collections.abc import Sequence

from fairlane.gateway.admin.settings_view import SettingsLayer, of_overrides
from fairlane.gateway.attached import Attached
from fairlane.gateway.overrides.admin import OverrideAdmin
from fairlane.gateway.overrides.monitor import OverrideMonitor
from fairlane.gateway.runtime import Gateway
from fairlane.queues.overrides import Override, OverrideStore


def attach(gateway: Gateway) -> Attached:
    """Follow the overrides in Redis."""
    current = gateway.current
    links = [link for link, _ in gateway.store.links]
    store = OverrideStore(links, lambda model: current.plans.placement.of_model(model))

    def take(overrides: Sequence[Override]) -> None:
        current.take_overrides(overrides)
        gateway.settings_changed()

    monitor = OverrideMonitor(store, take)
    gateway.scheduler.on_overrides = monitor.notice

    async def layer() -> SettingsLayer:
        known = await monitor.read()
        return of_overrides(one for one in known.overrides if one.id not in current.overlay.invalid)

    admin = OverrideAdmin(store, monitor, current, gateway.scheduler)
    return Attached(parts=[admin, monitor], components=[monitor], settings=layer)
