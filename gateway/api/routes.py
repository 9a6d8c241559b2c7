"""What callers may name instead of a model: routes and templates; for operators, what a template comes to."""

from dataclasses import replace
from typing import Any

import msgspec
from fastapi import Request as Framed
from fastapi import Response
from pydantic import BaseModel, Field

from fairlane.gateway.api.answers import Rendered, RouteList
from fairlane.gateway.api.bodies import read_json
from fairlane.gateway.api.framing import TheCaller, TheRequest, answer, described, keyed_router
from fairlane.gateway.calls.bodies import value_of
from fairlane.gateway.calls.intake import Options, make_task
from fairlane.gateway.calls.prompts import fill_in, told_of_template
from fairlane.gateway.chains.requests import told_of_declared
from fairlane.gateway.credits.amounts import plain_credits
from fairlane.gateway.current import Current
from fairlane.gateway.errors import bad_request
from fairlane.gateway.routing.routes import Rule
from fairlane.gateway.settings import Settings
from fairlane.gateway.tasks.poll import told_of_plan
from fairlane.workers.protocol import with_model

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
        "maxWaitMs": rule.max_wait_ms or None,
        "maxRunMs": rule.max_run_ms or None,
        "maxOutputTokens": rule.max_output_tokens or None,
        "price": price and dict(zip(_RATES, map(plain_credits, price[:5]), strict=True)),
        "fallbacks": list(rule.fallbacks),
        "fallbackAfterMs": rule.fallback_after_ms if rule.fallbacks else None,
        "repair": settings.structured_repair if rule.repair is None else rule.repair,
    }


@router.get("/api/routes", **described("routes.list", "List routes, templates and chains", RouteList))
async def routes(request: Framed, caller: TheCaller) -> Response:
    """The routes that this caller may name as `model` or `template`, with what each comes to for the caller's tier; the
    templates and chains, with the variables that they take."""
    current: Current = request.app.gateway.current
    plans, tier, listed = current.plans, caller.tier, []
    for name in sorted(plans.routes.named):
        if caller.may_use(name):
            route = current.plans_of(caller, name).routes.named[name]
            plain = route.rule(tier)
            vision = _rule(route.rule(tier, image=True), current.settings, tier) if route.sees else None
            template = plain.template or (name if name in plans.templates else None)
            said = {"name": name, "tier": tier, "template": template, "vision": vision}
            listed.append(said | _rule(plain, current.settings, tier))
    templates = [told_of_template(template) for _, template in sorted(plans.templates.items())]
    chains = [told_of_declared(current, name) for name in sorted(current.settings.chains)]
    return answer({"routes": listed, "templates": templates, "chains": chains})


operators = keyed_router("operators")


class PromptRequest(BaseModel):
    """A template and the values of its variables."""

    template: str
    variables: dict[str, Any] | None = None
    locale: str | None = None
    model: str | None = Field(None, description="of a template that is no route")
    tier: str | None = Field(None, description="default: the tier of the key")


@operators.post(
    "/api/admin/templates/render",
    **described("admin.templates.render", "Fill in a template", Rendered, body=PromptRequest),
)
async def render(request: Framed, caller: TheCaller, ours: TheRequest) -> Response:
    """What a task of a template would send to its model, for a tier: the body, and which model and queue. No task is made."""
    tasks = request.app.gateway.tasks
    _, fields = await read_json(tasks, ours)
    tier = value_of(fields, "tier")
    if tier is not None:
        if tier not in tasks.settings.tiers:
            raise bad_request(f"tier must be one of {', '.join(sorted(tasks.settings.tiers))}", "tier")
        caller = replace(caller, tier=tier)
    filled = await fill_in(tasks.current, caller, fields, tasks.bodies, more="tier")
    task = make_task(
        tasks.settings,
        caller,
        filled.plan,
        task_id="",
        task_type="openaiLike",
        payload=filled.payload,
        fields=filled.fields,
        options=Options(template=filled.template),
        tell_model=True,
    )
    payload = with_model(task.payload, task.model) if task.named_later else task.payload
    return answer(
        {
            **told_of_plan(filled.plan.asked, task.model, task.template),
            "queue": task.queue,
            "payload": msgspec.Raw(payload),
            "estimatedInputTokens": task.estimated_input,
        }
    )
