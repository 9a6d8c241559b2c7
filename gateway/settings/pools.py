"""Which models are placed in one pool of Redis."""

from collections.abc import Iterator, Mapping, Sequence

from fairlane.gateway.chains.settings import ChainSettings
from fairlane.gateway.settings.parts import ModelSettings
from fairlane.gateway.settings.routing import RouteSettings
from fairlane.queues.placement import Placement


def placement_of(
    pools: Sequence[str],
    models: Mapping[str, ModelSettings],
    routes: Mapping[str, RouteSettings],
    chains: Mapping[str, ChainSettings],
) -> Placement:
    """Return where models are placed. Raise ValueError if tasks can move between models that are configured for several pools."""
    configured = {name: model.pool for name, model in models.items() if model.pool}
    return Placement(pools, configured, _related(models, routes, chains))


def _related(
    models: Mapping[str, ModelSettings],
    routes: Mapping[str, RouteSettings],
    chains: Mapping[str, ChainSettings],
) -> Iterator[set[str]]:
    """Yield sets of models between which tasks can move: to a fallback, to another tier of a route, or along a chain."""
    for name, model in models.items():
        yield {name, *model.fallbacks}
    of_routes = {name: _of_route(route) for name, route in routes.items()}
    yield from of_routes.values()
    for chain in chains.values():
        names = {stage.names(of_routes) for stage in chain.stages} - {""}
        yield set().union(*(of_routes.get(name, {name}) for name in names))


def _of_route(route: RouteSettings) -> set[str]:
    variants = [route] if route.vision is None else [route, route.vision]
    rules = [rule for variant in variants for rule in (variant, *variant.tiers.values())]
    models = {rule.model for rule in rules if rule.model}
    return models.union(*(rule.fallbacks or () for rule in rules))
