"""Routes: the names that callers use instead of a model, and their rules for each tier. Pure."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from fairlane.gateway.prices.prices import Price
from fairlane.gateway.settings import RouteRule, RouteSettings, Settings

FALLBACK_AFTER_MS = 10_000
"""Default time that a model may back off or be throttled before a task falls back to the next."""
SHOWN = 3
"""Names that an error lists where one is not known."""


class Rule(NamedTuple):
    """The rules for tasks of a tier that name a route, or a model with fallbacks. 0, '' and None: not set."""

    route: str
    """Its name; '' for a model's own fallbacks."""
    model: str
    mode: str = ""
    stream: bool = False
    timeout_ms: int = 0
    max_output_tokens: int = 0
    price: Price | None = None
    fallbacks: tuple[str, ...] = ()
    fallback_after_ms: int = FALLBACK_AFTER_MS
    same_task_ms: int = 0
    template: str = ""


class Route(NamedTuple):
    """A route: its rules by tier, without images and with them."""

    name: str
    plain: Mapping[str, Rule]
    vision: Mapping[str, Rule] | None = None
    """None: requests with images have no rules of their own."""

    @property
    def varies_by_image(self) -> bool:
        """Whether requests with images have rules of their own."""
        return self.vision is not None

    def rule(self, tier: str, *, image: bool = False) -> Rule:
        """Return the rule for a tier."""
        return (self.plain if self.vision is None or not image else self.vision)[tier]

    @property
    def rules(self) -> list[Rule]:
        """All rules."""
        return [*self.plain.values(), *(self.vision or {}).values()]


class Routes:
    """All routes, and the models with fallbacks, which are routes to themselves."""

    def __init__(self, settings: Settings, only: Collection[str] | None = None) -> None:
        """`only`: of these names alone."""
        self._models: dict[str, Route] = {}
        for name, model in settings.models.items():
            if model.fallbacks and (only is None or name in only):
                rule = self._rule("", [RouteRule(model=name)], settings)
                self._models[name] = Route(name, dict.fromkeys(settings.tiers, rule))
        self.named = {
            name: self._compiled(name, route, settings)
            for name, route in settings.routes.items()
            if only is None or name in only
        }
        self._all = {**self._models, **self.named}
        self.of_template: dict[str, set[str]] = {}
        """The routes that run a template, by its name."""
        for name, route in self.named.items():
            for rule in route.rules:
                self.of_template.setdefault(rule.template or name, set()).add(name)

    def find(self, name: str) -> Route | None:
        """Return the route of a name that a caller gives; None: it is a model's without rules."""
        return self._all.get(name)

    def moves(self) -> set[tuple[str, str]]:
        """Return which model a task may fall back to from which, without returning to one that it left."""
        rules = (rule for route in self._all.values() for rule in route.rules)
        return {pair for rule in rules for pair in combinations((rule.model, *rule.fallbacks), 2)}

    def _compiled(self, name: str, route: RouteSettings, settings: Settings) -> Route:
        plain: dict[str, Rule] = {}
        vision: dict[str, Rule] = {}
        for tier in settings.tiers:
            layers: list[RouteRule | None] = [route, route.tiers.get(tier)]
            plain[tier] = self._rule(name, layers, settings)
            if route.vision is not None:
                layers += [route.vision, route.vision.tiers.get(tier)]
                vision[tier] = self._rule(name, layers, settings)
        return Route(name, plain, vision or None)

    @staticmethod
    def _rule(name: str, layers: Sequence[RouteRule | None], settings: Settings) -> Rule:
        values: dict[str, Any] = {}
        for layer in filter(None, layers):
            set_here = ((field, getattr(layer, field)) for field in RouteRule.model_fields)
            values |= {field: value for field, value in set_here if value is not None}
        model = settings.models.get(values.get("model", ""))
        if model is not None:
            values.setdefault("fallbacks", model.fallbacks)
            if model.fallback_after_ms is not None:
                values["fallback_after_ms"] = model.fallback_after_ms
        rates = values.pop("price", None)
        fallbacks = tuple(values.pop("fallbacks", ()))
        return Rule(name, **{"model": "", **values}, price=rates and rates.of_each, fallbacks=fallbacks)


def not_there(name: str, known: Iterable[str], kind: str = "template") -> str:
    """Return the message for an unknown name of this kind, with similar names, or else some of the known ones."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:200], names, n=SHOWN, cutoff=0.5)
    sentence = f"There is no {kind} {name[:100]!r}"
    if near:
        return f"{sentence}; did you mean {' or '.join(near)}?"
    more = ", …" if len(names) > SHOWN else ""
    return f"{sentence}; there are {', '.join(names[:SHOWN])}{more}" if names else sentence
