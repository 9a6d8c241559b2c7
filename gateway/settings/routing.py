"""Settings of routes and templates: what callers may name instead of a model, and what it comes to. Pure."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator

from fairlane.gateway.settings.parts import (
    MAX_FALLBACKS,
    Identifier,
    Mode,
    ModelName,
    Ms,
    Rates,
    SettingsPart,
    Tokens,
)

if TYPE_CHECKING:
    from fairlane.gateway.prompts.templates import Template

LocaleName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+([-_][A-Za-z0-9]+)*$", max_length=35)]
"""A language tag, such as `en`, `zh-CN`."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]


class RouteRule(SettingsPart):
    """What a route says of the tasks of a tier. What it does not say, the route says for all tiers, or nobody."""

    model: ModelName | None = None
    """The model that runs; never another route."""

    mode: Mode | None = None
    """The mode of tasks that do not say one themselves: with the caller's tier it makes the queue."""

    timeout_ms: Ms | None = None
    """Milliseconds from submission to the end: the longest that a caller may ask for, and what holds where none is asked for."""

    max_output_tokens: Tokens | None = None
    """Tokens of output that a request may ask for, all its answers together; who asks for none is given this bound. Whoever asks
    for more is refused with 400. It means nothing to embeddings.
    """

    price: Rates | None = None
    """What a task costs, whichever model answers. Not set: what `prices` say of the route, else of the model."""

    fallbacks: Annotated[list[ModelName], Field(max_length=MAX_FALLBACKS)] | None = None
    """Models to which a task goes on, in this order, that the one before could not answer. Not set: those of the model itself."""

    template: ModelName | None = None
    """The template of tasks that name this route as `template`. Not set: the one of the route's own name."""


class RouteVariant(RouteRule):
    """What a route says of tasks of one kind: for all tiers, and for each."""

    tiers: dict[Identifier, RouteRule] = Field(default={})
    """What holds for one tier instead."""

    @field_validator("tiers", mode="before")
    @classmethod
    def _empty_entries_say_nothing(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: {} if entry is None else entry for name, entry in value.items()}
        return {} if value is None else value


class RouteSettings(RouteVariant):
    """One route: a name that callers use as `model` or as `template`."""

    vision: RouteVariant | None = None
    """What holds instead for requests with images."""


class TemplateMessage(SettingsPart):
    """One message of a template, in OpenAI's form."""

    role: Literal["system", "developer", "user", "assistant"]
    """Whose message it is."""

    content: str | list[dict[str, JsonValue]]
    """Its text, a Jinja template; or a list of parts as OpenAI has them, whose texts are. A part `image_url` whose URL comes to
    nothing is left out, so an image may be optional.
    """


Messages = Annotated[list[TemplateMessage], Field(min_length=1, max_length=100)]


def check_parameters(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The further members of a body. Raises ValueError for those that something else says."""
    for name in ("model", "messages", "stream", "response_format"):
        if name in value:
            where = "set json_schema" if name == "response_format" else "it is made of the rest"
            raise ValueError(f"{name} is no parameter: {where}")
    return value


class TemplateSettings(SettingsPart):
    """Messages with variables, which callers fill in. What is said of the body is said in OpenAI's words."""

    messages: Messages | None = None
    """The messages, for every locale that has none of its own."""

    locales: dict[LocaleName, Messages] = Field(default={})
    """Messages of single locales; callers choose by `locale`. Without `messages` one of them must be the `default_locale`."""

    default_locale: LocaleName | None = None
    """The locale of callers that name none, or one that there is nothing for."""

    optional: list[VariableName] = Field(default=[])
    """Variables that callers may leave out; they are empty texts then. All others that the messages use are required."""

    parameters: dict[str, JsonValue] = Field(default={})
    """Further members of the body: `temperature`, `top_p`, `stop` and the like."""

    json_schema: dict[str, JsonValue] | None = None
    """The JSON schema of the answer: it goes to the model as `response_format`, and the finished text is checked by it."""

    @field_validator("parameters")
    @classmethod
    def _leaves_the_rest(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return check_parameters(value)

    @property
    def output_tokens(self) -> list[int]:
        """What its parameters say of the most output."""
        said = (self.parameters.get(name) for name in ("max_tokens", "max_completion_tokens"))
        return [number for number in said if isinstance(number, int)]

    def compiled(self, name: str) -> "Template":
        """The template, ready to be filled in. Raises TemplateError."""
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
