"""The routes, templates and chains that callers may name instead of a model."""

from typing import Annotated, Any

from fastapi import Request as Framed
from fastapi import Response

from fairlane.gateway.access import Access
from fairlane.gateway.api.dependencies import CallerDep, answer, described, keyed_router
from fairlane.gateway.api.schemas import Ms, Schema, says
from fairlane.gateway.chains.requests import declared_chain
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.prices.prices import plain_credits
from fairlane.gateway.prompts.filling import template_fields, usable_chains
from fairlane.gateway.routing.routes import Rule
from fairlane.gateway.settings import Settings
from fairlane.gateway.settings.parts import Mode


class RouteRule(Schema, kw_only=True):
    """The values that a route sets; null: none."""

    model: str
    mode: Mode | None
    queue: str | None
    stream: bool
    timeout_ms: Ms | None
    max_output_tokens: int | None
    price: Annotated[dict[str, float] | None, says("credits, as in the settings")]
    fallbacks: list[str]
    fallback_after_ms: Ms | None


class Route(RouteRule, kw_only=True):
    name: str
    tier: str
    template: str | None
    vision: Annotated[RouteRule | None, says("for requests with images, if it differs")]


class Template(Schema, kw_only=True):
    name: str
    version: str
    locales: list[str]
    default_locale: str | None
    variables: list[str]
    optional: list[str]
    json_schema: dict[str, Any] | None


class Chain(Schema, kw_only=True):
    name: str
    variables: list[str]
    optional: list[str]
    stages: Annotated[list[dict[str, str]], says("name and status of each, as polls show them")]


class RouteList(Schema, kw_only=True):
    routes: list[Route]
    templates: list[Template]
    chains: list[Chain]


router = keyed_router("account")

_RATES = ("input", "cached_input", "output", "reasoning", "request")


def _rule(rule: Rule, settings: Settings, tier: str) -> dict[str, Any]:
    price = rule.price
    return {
        "model": rule.model,
        "mode": rule.mode or None,
        "queue": settings.queue_for(tier, rule.mode) if rule.mode else None,
        "stream": rule.stream,
        "timeoutMs": rule.timeout_ms or None,
        "maxOutputTokens": rule.max_output_tokens or None,
        "price": price and dict(zip(_RATES, map(plain_credits, price[:5]), strict=True)),
        "fallbacks": list(rule.fallbacks),
        "fallbackAfterMs": rule.fallback_after_ms if rule.fallbacks else None,
    }


@router.get("/api/routes", **described("routes.list", "List routes, templates and chains", RouteList))
async def routes(request: Framed, caller: CallerDep) -> Response:
    """Return what this caller may name: routes (as `model` or `template`), with their values for the caller's tier, and templates
    and chains with their variables."""
    current: ActiveConfig = request.app.gateway.current
    plans, tier, listed = current.plans, caller.tier, []
    for name in sorted(plans.routes.named):
        if caller.may_use(name):
            route = current.plans_of(name).routes.named[name]
            plain = route.rule(tier)
            vision = (
                _rule(route.rule(tier, image=True), current.settings, tier) if route.varies_by_image else None
            )
            template = plain.template or (name if name in plans.templates else None)
            shown = {"name": name, "tier": tier, "template": template, "vision": vision}
            listed.append(shown | _rule(plain, current.settings, tier))
    templates = [template_fields(plans.templates[name]) for name in plans.usable_templates(caller)]
    chains = [declared_chain(current, name) for name in usable_chains(current, caller)]
    return answer({"routes": listed, "templates": templates, "chains": chains})


ROUTERS = ((router, Access.KEY),)
