"""Settings of routes and templates: names that clients use instead of a model. Pure."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, JsonValue

from fairlane.gateway.settings.parts import (
    MAX_FALLBACKS,
    Entries,
    Identifier,
    Mode,
    ModelName,
    Ms,
    MsOrZero,
    Rates,
    SettingsPart,
    Tokens,
    checked,
)

if TYPE_CHECKING:
    from fairlane.gateway.prompts.templates import Template

LocaleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+([-_][A-Za-z0-9]+)*$", max_length=35)]
"""A language tag, such as `en`, `zh-CN`."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]


class RouteRule(SettingsPart):
    """Values of a route for the tasks of a tier. Unset ones are those of the route for all tiers, if any."""

    model: ModelName | None = None
    """Model that runs the task; never another route."""

    mode: Mode | None = None
    """Mode of requests that set none. With the client's tier it determines the queue."""

    stream: bool | None = None
    """Default of `stream` in native requests. Requests on `/v1` set it themselves."""

    timeout_ms: Ms | None = None
    """Time from submission to the end: the maximum `timeout` of a request, and the default."""

    max_output_tokens: Tokens | None = None
    """Output tokens of a request; also the default. More is rejected with 400. Over all its choices. Without effect on
    embeddings.
    """

    price: Rates | None = None
    """Price of a task, whichever model answers. Not set: as in `prices`, of the route or else of the model."""

    fallbacks: Annotated[list[ModelName], Field(max_length=MAX_FALLBACKS)] | None = None
    """Models that a task falls back to, in this order. Not set: those of the model."""

    same_task_ms: MsOrZero | None = None
    """Time in which a repeat of the same request (template, locale, variables) of a user returns its task. It works as an
    idempotency key, per user and tier, from the request's submission. A request with its own key is excepted. Not set: off.
    """

    template: ModelName | None = None
    """Template of tasks that name this route as `template`. Not set: the one with the route's name."""


class RouteVariant(RouteRule):
    """Values of a route for all tiers, and for single ones."""

    tiers: Entries[Identifier, RouteRule] = Field(default={})
    """Other values for single tiers."""


class RouteSettings(RouteVariant):
    """One route: a name that clients use as `model` or as `template`."""

    vision: RouteVariant | None = None
    """Other values for requests with images."""

    def rules(self) -> Iterator[tuple[tuple[str, ...], RouteRule]]:
        """Yield the values for all tiers and for single ones, also those of `vision`, each with its place."""
        for place, variant in (((), self), (("vision",), self.vision)):
            if variant is not None:
                yield place, variant
                yield from (((*place, "tiers", tier), rule) for tier, rule in variant.tiers.items())


class TemplateMessage(SettingsPart):
    """One message of a template, in OpenAI's form."""

    role: Literal["system", "developer", "user", "assistant"]
    """Its author."""

    content: str | list[dict[str, JsonValue]]
    """Its text, a Jinja template, or a list of OpenAI's parts with such texts. A part `image_url` with an empty URL is left out,
    so an image can be optional.
    """


Messages = Annotated[list[TemplateMessage], Field(min_length=1, max_length=100)]


def _check_parameters(value: dict[str, JsonValue]) -> None:
    for name in ("model", "messages", "stream", "response_format"):
        if name in value:
            where = "set json_schema" if name == "response_format" else "Fairlane sets it"
            raise ValueError(f"{name} is not a parameter: {where}")


Parameters = Annotated[dict[str, JsonValue], checked(_check_parameters)]
"""Further fields of a body, without those that have a setting of their own."""


class TemplateSettings(SettingsPart):
    """A prompt with variables, which clients fill in. Fields of the body have OpenAI's names."""

    messages: Messages | None = None
    """Messages for every locale without its own."""

    locales: dict[LocaleName, Messages] = Field(default={})
    """Messages of single locales; clients choose with `locale`. Without `messages` one of them must be the `default_locale`."""

    default_locale: LocaleName | None = None
    """Locale of requests without one, or with an unknown one."""

    optional: list[VariableName] = Field(default=[])
    """Variables that clients can leave out; they are empty texts then. All others are required."""

    parameters: Parameters = Field(default={})
    """Further fields of the body: `temperature`, `top_p`, `stop` and others."""

    json_schema: dict[str, JsonValue] | None = None
    """JSON schema of the answer: the model gets it as `response_format`, and the answer is validated."""

    @property
    def output_tokens(self) -> list[int]:
        """Return the output limits in its parameters."""
        limits = (self.parameters.get(name) for name in ("max_tokens", "max_completion_tokens"))
        return [number for number in limits if isinstance(number, int)]

    def compiled(self, name: str) -> "Template":
        """Return the compiled template. Raise TemplateError."""
        from fairlane.gateway.prompts.templates import Template  # noqa: PLC0415 - its engine takes 40 ms, and few need it

        by_locale = {"": self.messages, **self.locales} if self.messages else self.locales
        return Template(
            name,
            {
                locale: [(message.role, message.content) for message in messages or ()]
                for locale, messages in by_locale.items()
            },
            default_locale=self.default_locale or "",
            optional=self.optional,
            parameters=self.parameters,
            json_schema=self.json_schema,
        )
