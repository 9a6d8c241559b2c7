"""Plans of requests: the model that runs each, and its terms. Pure."""

import copy
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.prices.prices import PriceTable
from fairlane.gateway.prices.quota import FREE, Budgets, Terms
from fairlane.gateway.routing.routes import Route, Routes, Rule
from fairlane.gateway.settings import Settings
from fairlane.gateway.settings.pools import placement_of

if TYPE_CHECKING:
    from fairlane.gateway.prompts.templates import Template


class Plan(NamedTuple):
    """The model and the terms of a request."""

    asked: str
    """The name that the caller gave."""
    model: str
    tier: str
    terms: Terms = FREE
    rule: Rule | None = None
    """None: the name is a model's, and there is nothing to it."""
    fallbacks: tuple[tuple[str, str], ...] = ()
    """Fallback models, with what a task costs there, as the scheduler takes them."""
    downgrade: "Plan | None" = None
    """The plan if this one cannot be paid; None: the request is rejected."""
    pool: int = 0
    """The number of the pool of its model."""


class Plans:
    """Makes plans by one configuration."""

    def __init__(self, settings: Settings) -> None:
        self.prices = PriceTable(entry.period for entry in settings.prices)
        self.budgets = Budgets(settings.budget_timezone)
        self.routes = Routes(settings)
        self.placement = placement_of(settings.pools, settings.models, settings.routes, settings.chains)
        self.templates: Mapping[str, Template] = {
            name: template.compiled(name) for name, template in settings.templates.items()
        }

    def varied(self, settings: Settings, only: Collection[str] | None = None) -> Self:
        """Return a copy with other routes and models: only those of these names, if `only` is given."""
        other = copy.copy(self)
        other.routes = Routes(settings, only)
        return other

    def plan(self, caller: Caller, name: str, now_ms: float, has_image: Callable[[], bool]) -> Plan:
        """Return the plan of this caller's request for this name. `has_image` is called only if it matters."""
        route = self.routes.find(name)
        image = route is not None and route.varies_by_image and has_image()
        quota = caller.quota
        paid = self._plan(route, name, caller.tier, image, now_ms)
        if quota is None:
            return paid
        downgrade = None
        if quota.otherwise:
            downgrade = self._plan(route, name, quota.otherwise, image, now_ms)
            downgrade = downgrade._replace(terms=Terms(downgrade.terms.price))
        return paid._replace(
            terms=Terms(paid.terms.price, self.budgets.text(quota, now_ms)), downgrade=downgrade
        )

    def usable_templates(self, caller: Caller) -> list[str]:
        """Return the names of the templates that a caller may name: those of routes that it may name, and those of no route."""
        routes = self.routes.of_template
        return [
            name
            for name in sorted(self.templates)
            if name not in routes or any(map(caller.may_use, routes[name]))
        ]

    def template(
        self, route: Route | None, tier: str, name: str, variables: Mapping[str, Any], locale: str
    ) -> "tuple[Template | None, bool]":
        """Return the template of a route, or of this name, for these variables, or None; and whether they make it show an image,
        if that makes a difference."""
        if route is None:
            return self.templates.get(name), False
        plain = self.templates.get(route.rule(tier).template or name)
        if plain is None or not route.varies_by_image:
            return plain, False
        seeing = self.templates.get(route.rule(tier, image=True).template or name, plain)
        return (seeing, True) if seeing.holds_image(variables, locale) else (plain, False)

    def _plan(self, route: Route | None, name: str, tier: str, image: bool, now_ms: float) -> Plan:
        if route is None:
            terms = Terms(self._price(name, "", now_ms)) if self.prices else FREE
            return Plan(name, name, tier, terms, pool=self.placement.of_model(name))
        rule = route.rule(tier, image=image)
        if rule.price is not None:
            price = rule.price.packed
            costs = [price] * len(rule.fallbacks)
        else:
            price = self._price(rule.model, rule.route, now_ms)
            costs = [self._price(model, rule.route, now_ms) for model in rule.fallbacks]
        fallbacks = tuple(zip(rule.fallbacks, costs, strict=True))
        return Plan(
            name, rule.model, tier, Terms(price), rule, fallbacks, pool=self.placement.of_model(rule.model)
        )

    def _price(self, model: str, route: str, now_ms: float) -> str:
        """Return the price, packed; '': it costs nothing. The price of a route by its name takes precedence."""
        found = self.prices.own(route, now_ms) if route else None
        found = found or self.prices.at(model, now_ms)
        return found.packed if found else ""
