"""Routes, templates and chains, and a template that is filled in."""

from pydantic import Field, JsonValue

from fairlane.gateway.api.models.base import Answer, Asked, Model, Ms
from fairlane.gateway.api.models.native import TemplateUsed
from fairlane.gateway.settings.parts import Mode


class PromptRequest(Asked):
    """A template, and what fills it in."""

    template: str
    variables: dict[str, JsonValue] | None = None
    locale: str | None = None
    model: Model | None = Field(None, description="for a template that is no route")
    tier: str | None = Field(None, description="whose; else that of the key")


class RouteRule(Answer):
    """What a route comes to; null: it says nothing of it."""

    model: str
    mode: Mode | None
    queue: str | None
    stream: bool
    timeout_ms: Ms | None
    max_wait_ms: Ms | None
    max_run_ms: Ms | None
    max_output_tokens: int | None
    price: dict[str, float] | None = Field(description="credits, as in the settings")
    fallbacks: list[str]
    fallback_after_ms: Ms | None
    repair: bool = Field(description="an answer that does not match its JSON schema is asked for again")


class Route(RouteRule):
    name: str
    tier: str
    template: str | None
    vision: RouteRule | None = Field(description="for requests with images, where it differs")


class Template(Answer):
    name: str
    version: str
    locales: list[str]
    default_locale: str | None
    variables: list[str]
    optional: list[str]
    json_schema: dict[str, JsonValue] | None


class Chain(Answer):
    name: str
    title: str
    variables: list[str]
    optional: list[str]
    stages: list[dict[str, str]] = Field(description="name and status of each, as polls show them")


class RouteList(Answer):
    routes: list[Route]
    templates: list[Template]
    chains: list[Chain]


class Rendered(Answer):
    template: TemplateUsed
    asked: str
    model: str
    queue: str
    payload: dict[str, JsonValue]
    estimated_input_tokens: int
