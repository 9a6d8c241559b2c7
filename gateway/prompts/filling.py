"""Turns a request that names a template into the body of a task. Pure, except for the thread of large ones."""

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

from fairlane.gateway.accounts.callers import Caller, forbidden
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.bodies import Bodies, RawObject, value_of
from fairlane.gateway.core.spec import OWN_FIELDS, read_model
from fairlane.gateway.errors import DEFAULT_MODEL, ApiError, bad_request
from fairlane.gateway.prompts.errors import TemplateError, VariablesError
from fairlane.gateway.routing.plans import Plan
from fairlane.gateway.routing.routes import not_there
from fairlane.streaming.jsontext import kind_of

if TYPE_CHECKING:
    from fairlane.gateway.prompts.templates import Template

MAX_LOCALE_CHARS = 35
MEMBERS = frozenset({"template", "variables", "locale", "model", "stream", "user", *OWN_FIELDS})
"""Members of a request that names a template: the template makes the rest. (`user` may name the user.)"""


class TemplateNotFound(ApiError):
    """No route and no template has such a name. `known`: those that its caller may name; `chains`: also those."""

    def __init__(self, name: str, known: Iterable[str], chains: Container[str] = ()) -> None:
        sentence = not_there(name, known)
        if name in chains:
            sentence = f"{name!r} is a chain and no template: name it in `chain`"
        super().__init__(404, "TEMPLATE_NOT_FOUND", sentence, param="template")


class FilledTemplate(NamedTuple):
    """A template that was filled in."""

    plan: Plan
    payload: bytes
    fields: RawObject
    template: str
    """Its name, its version and the locale, as a task's record has them."""


async def fill_in(
    current: ActiveConfig, caller: Caller, fields: RawObject, bodies: Bodies, subject: str = ""
) -> FilledTemplate:
    """Return the body of a request with a template. `subject`: as in `ActiveConfig.plan`. Raise ApiError (400, 403, 404)."""
    name = value_of(fields, "template")
    if not isinstance(name, str):
        raise bad_request("template must be the name of a template or route", "template")
    for other in fields:
        if other not in MEMBERS:
            raise bad_request(
                f"A task of a template has no {other[:100]!r}: the template's `parameters` set what the model gets, "
                "and `variables` fill it in",
                other,
            )
    locale = read_locale(fields)
    members = await members_of_variables(fields, bodies)
    size = len(memoryview(fields["variables"])) if members else 0
    model = read_model(fields, "") or None
    if model is None and caller.only_model is not None:
        read_model({}, caller.only_model)  # which may be none that a template is for
    variables = await bodies.run(size, variables_of, members)
    return _rendered(current, caller, name, variables, locale, model, subject)


def read_locale(fields: RawObject) -> str:
    """Return the locale of a request; '' if it has none. Raise ApiError(400)."""
    locale = value_of(fields, "locale") or ""
    if not isinstance(locale, str) or len(locale) > MAX_LOCALE_CHARS:
        raise bad_request("locale must be a language tag, such as en or zh-CN", "locale")
    return locale


def _rendered(
    current: ActiveConfig,
    caller: Caller,
    name: str,
    variables: dict[str, Any],
    locale: str,
    model: str | None,
    subject: str,
) -> FilledTemplate:
    """Return the task's plan and body. `model`: runs the template if no route of its name does. Raise ApiError."""
    plans = current.plans_of(name, subject)
    route = plans.routes.named.get(name)
    if route is not None and not caller.may_use(name):
        route = None
    template, image = plans.template(route, caller.tier, name, variables, locale)
    usable = current.plans.usable_templates(caller)
    if template is None or (route is None and name not in usable):
        known = {*usable, *filter(caller.may_use, current.plans.routes.named)}
        raise TemplateNotFound(name, known, usable_chains(current, caller))
    if route is not None and model is not None:
        raise bad_request(f"The route {name} says which model runs: leave `model` out", "model")
    requested = name if route is not None else model or caller.only_model or DEFAULT_MODEL
    if not caller.may_use(requested):
        raise forbidden(caller, requested)
    most = current.settings.max_body_bytes
    try:
        prompt = template.render(variables, locale, most)
    except VariablesError as error:
        raise bad_request(
            f"The variables do not fit the template {template.name}: {error}", "variables"
        ) from None
    except TemplateError as error:
        raise bad_request(f"The template {template.name} cannot be filled in: {error}", "variables") from None
    body = {member: Raw(msgspec.json.encode(value)) for member, value in prompt.body.items()}
    payload = msgspec.json.encode(body)
    if len(payload) > most:
        raise bad_request(
            f"The template {template.name} makes a body of {len(payload)} bytes of these variables, and {most} are allowed",
            "variables",
        )
    plan = current.plan(caller, requested, lambda: image, subject)
    return FilledTemplate(plan, payload, body, "\n".join((template.name, template.version, prompt.locale)))


def usable_chains(current: ActiveConfig, caller: Caller) -> list[str]:
    """Return the names of the chains that a caller may name: it may name the chain itself, or all models of its stages."""
    routes = current.plans.routes.named
    return [
        name
        for name, chain in sorted(current.settings.chains.items())
        if caller.may_use(name) or all(caller.may_use(stage.names(routes)) for stage in chain.stages)
    ]


def template_fields(template: "Template") -> dict[str, Any]:
    """Return a template as clients see it."""
    return {
        "name": template.name,
        "version": template.version,
        "locales": template.locales,
        "defaultLocale": template.default_locale or None,
        "variables": template.all_variables,
        "optional": sorted(template.optional),
        "jsonSchema": template.json_schema,
    }


async def members_of_variables(fields: RawObject, bodies: Bodies) -> RawObject:
    """Return the variables of a request, unparsed. Raise ApiError(400)."""
    raw = fields.get("variables")
    if raw is None or not kind_of(raw):
        return {}
    if kind_of(raw) != "{":
        raise bad_request("variables must be an object: a value for each name", "variables")
    return await bodies.parse(raw, "variables")


def variables_of(members: RawObject) -> dict[str, Any]:
    """Return the variables as values. Raise ApiError(400)."""
    from fairlane.gateway.prompts.templates import read_variables  # noqa: PLC0415 - only with templates

    try:
        return read_variables(members)
    except TemplateError as error:
        raise bad_request(str(error), "variables") from None
