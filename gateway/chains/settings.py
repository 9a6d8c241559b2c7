"""Settings of chains: several models' work under one task. Pure."""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, JsonValue

from fairlane.gateway.prompts.errors import TemplateError
from fairlane.gateway.settings.parts import ModelName, SettingsPart
from fairlane.gateway.settings.routing import Messages, Parameters, RouteSettings, VariableName
from fairlane.queues.chains import MAX_STAGES
from fairlane.queues.keys import ANY_MODEL, ENDPOINT, is_reserved
from fairlane.queues.tasks import OF_ENDPOINTS

if TYPE_CHECKING:
    from fairlane.gateway.prompts.engine import Text
    from fairlane.gateway.prompts.templates import Template

STAGES, ITEM, INDEX, VARIABLES = "stages", "item", "index", "variables"
RESERVED = frozenset({STAGES, ITEM, INDEX, VARIABLES})
"""Names that texts of a chain read in addition to its variables."""
OF_A_STAGE = frozenset({"content", "result", "json", "skipped", "parts"})
"""Fields of an earlier stage that texts read."""

StageName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
Made = TypeVar("Made")
Expression = Annotated[str, Field(min_length=1, max_length=4096)]


class StageSettings(SettingsPart):
    """One stage of a chain. It needs a `template`, or a `model` with `messages` or `payload`."""

    name: StageName
    """Name: lowercase letters, digits, `_` and `-`."""

    when: Expression | None = None
    """A variable, or an expression in `{{ }}`: if it is empty or false the stage is skipped. Not set: always."""

    each: Expression | None = None
    """A list (a variable or an expression): the stage runs once for each item, in parallel, 64 at most. Texts read it as
    `item`, and its number from 0 as `index`. An empty list skips the stage.
    """

    template: ModelName | None = None
    """Template of the request, or a route that has one."""

    model: ModelName | None = None
    """Model or route that runs it; with a `template` that is no route, too."""

    messages: Messages | None = None
    """Messages, if there is no template. Their texts read the chain's variables and earlier stages."""

    payload: dict[str, JsonValue] | None = None
    """Whole request, instead of `messages`; its texts are templates, too."""

    type: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """Task type of a `payload`. Not set: `openaiLike`."""

    variables: dict[VariableName, JsonValue] | None = None
    """Values of the template's variables; texts are templates. Not set: the chain's of the same names."""

    parameters: Parameters = Field(default={})
    """Further fields of the request, with `messages`: `temperature`, `top_p`, `stop` and others."""

    json_schema: dict[str, JsonValue] | None = None
    """JSON schema of the answer, with `messages`; later stages read the answer as `stages.NAME.json`."""

    stream: bool | None = None
    """Whether readers see the output of this stage as it arrives. Not set: the last stage, if the request streams. Without
    `stream` in the request its route decides.
    """

    def names(self, routes: Container[str]) -> str:
        """Return the model or route that it names."""
        return (self.template if self.template in routes else self.model) or ""

    @property
    def pending(self) -> str:
        """Return its `stageStatus`."""
        return f"{self.name.upper().replace('-', '_')}_PENDING"


class ChainSettings(SettingsPart):
    """Stages that run one after the other, on the results of earlier ones."""

    stages: Annotated[list[StageSettings], Field(min_length=1, max_length=MAX_STAGES)]
    """The stages, in their order; at most 16."""

    optional: list[VariableName] = Field(default=[])
    """Variables that clients can leave out; they are empty texts then. Variables that only a `when` or an `each` reads can be
    left out, too.
    """


class StageTexts:
    """The compiled texts of one stage. Raise StageError."""

    def __init__(self, stage: StageSettings) -> None:
        from fairlane.gateway.prompts.templates import Template  # noqa: PLC0415 - the engine takes 40 ms, and few need it
        from fairlane.gateway.prompts.values import Expression, Values  # noqa: PLC0415

        self.texts: list[tuple[str, Text]] = []
        """Each text, with its field."""

        def made(member: str, kind: Callable[[Any], Made], source: Any) -> Made:
            try:
                compiled = kind(source)
            except TemplateError as error:
                raise StageError(member, str(error)) from None
            one: Any = compiled
            texts = [one.text] if kind is Expression else one.texts
            self.texts += [(member, text) for text in texts]
            return compiled

        def template(messages: Messages) -> Template:
            return Template(stage.name, {"": [(message.role, message.content) for message in messages]})

        self.when = made("when", Expression, stage.when) if stage.when else None
        self.each = made("each", Expression, stage.each) if stage.each else None
        self.variables: dict[str, Values] | None = None
        if stage.variables is not None:
            self.variables = {
                name: made(f"variables.{name}", Values, value) for name, value in stage.variables.items()
            }
        self.messages = made("messages", template, stage.messages) if stage.messages else None
        self.payload = made("payload", Values, stage.payload) if stage.payload is not None else None


class StageError(ValueError):
    """An error in a field of a stage."""

    def __init__(self, member: str, sentence: str) -> None:
        super().__init__(sentence)
        self.member = member
        self.sentence = sentence


def stage_errors(
    chain: ChainSettings, templates: Mapping[str, "Template"], routes: Mapping[str, RouteSettings]
) -> Iterator[tuple[int, StageError]]:
    """Yield the number of each invalid stage, and its error. `templates`, `routes`: the configured ones."""
    before: list[str] = []
    for number, stage in enumerate(chain.stages):
        if stage.name in before:
            yield number, StageError("name", f"there are two stages {stage.name!r}")
        for wrong in (*_name_errors(stage), *_combination_errors(stage)):
            yield number, wrong
        try:
            texts = StageTexts(stage)
        except StageError as misplaced:
            yield number, misplaced
        else:
            for member, text in texts.texts:
                each = stage.each is not None and member != "each"
                for sentence in _reference_errors(text, before, each=each):
                    yield number, StageError(member, sentence)
        if stage.template is not None:
            for wrong in _template_errors(stage, templates, routes):
                yield number, wrong
        before.append(stage.name)


def _name_errors(stage: StageSettings) -> Iterator[StageError]:
    """Yield errors in names of models and types."""
    model, kind = stage.model, stage.type
    if model is not None and is_reserved(model):
        yield StageError(
            "model", f"a name that begins with {ENDPOINT} is an endpoint's, which stages cannot call"
        )
    elif model is not None and (model == ANY_MODEL or not model.isprintable()):
        yield StageError("model", "it should be the name of a model or route")
    if kind in OF_ENDPOINTS:
        yield StageError("type", f"tasks of type {kind} are for endpoints, which stages cannot call")
    elif kind is not None and not kind.isprintable():
        yield StageError("type", "it should be a name")


def _combination_errors(stage: StageSettings) -> Iterator[StageError]:
    """Yield errors of fields that exclude or need each other."""
    if stage.template is None:
        if stage.model is None:
            yield StageError("model", "it needs a `template`, or a `model` with `messages` or `payload`")
        elif stage.messages is None and stage.payload is None:
            yield StageError("messages", "without a `template` it needs `messages` or a `payload`")
        if stage.variables is not None:
            yield StageError(
                "variables",
                "variables are for a `template`; texts of `messages` and `payload` read the chain's own",
            )
    else:
        for name in ("messages", "payload", "json_schema"):
            if getattr(stage, name) is not None:
                yield StageError(name, f"a stage with a `template` has no {name}: the template says it")
        if stage.parameters:
            yield StageError("parameters", "a stage with a `template` has none: the template has them")
    if stage.messages is not None and stage.payload is not None:
        yield StageError("payload", "there are `messages`, too: one of them is the request")
    if stage.payload is not None:
        for name in ("parameters", "json_schema"):
            if getattr(stage, name):
                yield StageError(name, f"the `payload` is the whole request, with its {name}")
        model = stage.payload.get("model", stage.model)
        if model != stage.model:
            yield StageError("payload", f"its model must be the stage's ({stage.model}): name it once")
    elif stage.type is not None:
        yield StageError("type", "it is for a `payload`; any other request is openaiLike")
    if stage.each is not None and stage.stream:
        yield StageError("stream", "a stage with `each` cannot stream: its parts would be mixed")


def _reference_errors(text: "Text", before: list[str], *, each: bool) -> Iterator[str]:
    """Yield errors of names that a text reads and that do not exist."""
    for name in sorted({ITEM, INDEX} & text.variables if not each else ()):
        yield f"{name} is there with `each` alone"
    for stage, *parts in sorted({path[1:3] for path in text.reads if path[0] == STAGES and len(path) > 1}):
        if stage not in before and not parts:  # each path is reported by its parts, too
            there = f"there are {', '.join(before)}" if before else "there is none"
            yield f"stages.{stage}: no such stage comes before this one; {there}"
        elif stage in before and parts and parts[0] not in OF_A_STAGE:
            yield f"stages.{stage}.{parts[0]}: of a stage there are {', '.join(sorted(OF_A_STAGE))}"


def templates_of(route: RouteSettings, name: str) -> set[str]:
    """Return the templates of the tasks of a route."""
    return {route.template or name, *(rule.template for _, rule in route.rules() if rule.template)}


def _template_errors(
    stage: StageSettings, templates: Mapping[str, "Template"], routes: Mapping[str, RouteSettings]
) -> Iterator[StageError]:
    """Yield errors of a stage that does not fit its template."""
    assert stage.template is not None
    route = routes.get(stage.template)
    if route is not None:
        if stage.model is not None:
            yield StageError("model", f"the route {stage.template} says which model runs: leave `model` out")
        names = templates_of(route, stage.template)
    else:
        names = {stage.template}
        if stage.model is None and stage.template in templates:
            yield StageError(
                "model", f"{stage.template} is a template and no route: say which `model` runs it"
            )
    for name in names:
        template = templates.get(name)
        if template is None:
            hint = f"there are {', '.join(sorted(templates)) or 'none'}"
            if route is not None and name == stage.template:
                hint = f"the route of this name has none: say `model: {name}` and `messages`, or give the route a `template`"
            yield StageError("template", f"there is no template {name!r}; {hint}")
        elif stage.variables is not None:
            known = set(template.all_variables)
            missing = sorted(known - stage.variables.keys() - template.optional)
            unknown = sorted(stage.variables.keys() - known - template.optional)
            if missing:
                yield StageError("variables", f"the template {name} needs {', '.join(missing)}, too")
            if unknown:
                yield StageError("variables", f"the template {name} has no {', '.join(unknown)}")
