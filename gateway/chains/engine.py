"""Which stage of a chain runs next, and what it is given: made of its plan, its variables and the results so far. Pure.

Texts are filled in within bounds (`prompts/engine.py`), which all parts of a stage share. It runs in a thread.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from fairlane.gateway.chains.plan import Plan, Prompt, Runs, StagePlan
from fairlane.gateway.chains.results import Outcome, of_stage, room_for_values
from fairlane.gateway.chains.settings import INDEX, ITEM, STAGES, VARIABLES
from fairlane.gateway.core.bodies import RawObject, has_image
from fairlane.gateway.core.output_size import OutputCap, cap_output_tokens, output_size
from fairlane.gateway.core.spec import (
    MAX_ESTIMATED_INPUT,
    OPENAI_TYPES,
    WITHOUT_BOUND,
    answer_format,
    place_model,
)
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.prompts.engine import Budget
from fairlane.gateway.prompts.errors import TemplateError, VariablesError
from fairlane.gateway.prompts.templates import Template
from fairlane.gateway.prompts.values import Expression, Values
from fairlane.queues.chains import MAX_PARTS, Part, Stage
from fairlane.queues.tasks import TaskSpec, only_set


class StageFailed(Exception):
    """A stage cannot begin; the sentence says why. `member`: the member of its declaration that causes it, if there is one."""

    def __init__(self, number: int, stage: StagePlan, sentence: str, member: str = "") -> None:
        super().__init__(sentence)
        self.stage = Stage(number, stage.name)
        self.plan = stage
        self.sentence = sentence
        self.member = member


class NextStage(NamedTuple):
    """The stage that runs next. The task says what runs and on which terms; the rest of it the chain has from its submission."""

    stage: Stage
    task: TaskSpec
    parts: tuple[Part, ...]
    """If it has several; the payload of the task is none then."""
    skipped: tuple[Stage, ...]
    """The stages that were skipped."""


class NoStage(NamedTuple):
    """No stage is left to run."""

    skipped: tuple[Stage, ...]


def next_stage(plan: Plan, after: int, results: Mapping[tuple[int, int], bytes]) -> NextStage | NoStage:
    """Return the next stage after the stage `after` (-1: the first one). All stages up to it are done, or were skipped.
    `results`: as `read_chain` returns them. Raise StageFailed."""
    budget, room = Budget(plan.most_bytes), room_for_values()
    skipped: list[Stage] = []
    for number in range(after + 1, len(plan.stages)):
        stage = plan.stages[number]
        names = _names(plan, number, results, room)
        try:
            member = "when"
            runs = stage.when is None or Expression(stage.when).holds(names, budget)
            member = "each"
            items = None if stage.each is None or not runs else Expression(stage.each).items(names, budget)
            if not runs or items == []:
                skipped.append(Stage(number, stage.name))
                continue
            if items is not None and len(items) > MAX_PARTS:
                raise TemplateError(f"it has {len(items)} items, and a stage may have {MAX_PARTS} parts")
            member = _made_of(stage)
            built = _requests(plan, stage, names, items, budget)
            member = ""
            task, parts = _task(plan, stage, built)
        except (TemplateError, VariablesError, ApiError) as error:
            raise StageFailed(number, stage, str(error), member) from None
        return NextStage(Stage(number, stage.name), task, parts, tuple(skipped))
    return NoStage(tuple(skipped))


class _Request(NamedTuple):
    """The request that a worker gets for a stage, or for a part of one."""

    runs: Runs
    payload: bytes
    fields: RawObject
    image: bool


def _requests(
    plan: Plan, stage: StagePlan, names: Mapping[str, Any], items: list[Any] | None, budget: Budget
) -> list[_Request]:
    """Return the requests of all parts, or of the only one. All run with the rules for images if one of them has an image."""
    bodies: list[tuple[Any, bool]] = []
    for number, item in enumerate([None] if items is None else items):
        more = {} if items is None else {ITEM: item, INDEX: number}
        bodies.append(_body(stage, {**names, **more}, budget))
    image = any(image for _, image in bodies)
    built, size = [], 0
    for body, _ in bodies:
        one = _request(stage, stage.seeing if image and stage.seeing else stage.runs, body, image=image)
        size += len(one.payload)
        if size > plan.most_bytes:
            raise TemplateError(f"what it makes has more than {plan.most_bytes} bytes")
        built.append(one)
    return built


def _body(stage: StagePlan, names: dict[str, Any], budget: Budget) -> tuple[Any, bool]:
    """Return the body of a request, and whether it holds an image. Raise TemplateError and VariablesError."""
    if stage.payload is not None:
        body = Values(stage.payload).filled(names, budget)
        return body, _shows_image(body)
    prompt, seeing = stage.runs.prompt, stage.seeing.prompt if stage.seeing else None
    assert prompt is not None
    template = _template(prompt)
    filled = names if stage.variables is None else Values(stage.variables).filled(names, budget)
    if seeing is not None and seeing != prompt and _template(seeing).holds_image(filled):
        template = _template(seeing)
    if stage.variables is None:
        known = {*template.all_variables, *template.optional}
        filled = {name: value for name, value in filled.items() if name in known}
    body = template.render(filled, budget=budget).body
    return body, _shows_image(body)


def _request(stage: StagePlan, runs: Runs, body: Any, *, image: bool) -> _Request:
    """Return the task's payload and its members; the model is in it, or is put in at the grant."""
    fields = {name: Raw(msgspec.json.encode(value)) for name, value in body.items()}
    if runs.most_output and stage.type not in WITHOUT_BOUND:
        cap_output_tokens(OutputCap(runs.bound, runs.most_output, "Its route or token", bad_request), fields)
    place_model(fields, stage.type, runs.asked, runs.model, routed=runs.route)
    return _Request(runs, msgspec.json.encode(fields), fields, image)


def _task(plan: Plan, stage: StagePlan, built: list[_Request]) -> tuple[TaskSpec, tuple[Part, ...]]:
    """Return the stage as the scheduler takes it, and its parts if there are several."""
    first = built[0]
    runs, outputs = first.runs, [output_size(one.fields) for one in built]
    unbounded = any(output.most == 0 for output in outputs)
    several = len(built) > 1
    answer = ""
    if stage.type == "openaiLike" and "response_format" in first.fields:
        answer = answer_format(plan.answers, first.fields, templated=runs.prompt is not None)
    task = TaskSpec(
        id="",
        model=runs.model,
        queue=runs.queue,
        user="",
        payload=b"" if several else first.payload,
        task_type=stage.type,
        estimated_input=_estimated(first),
        max_output=0 if unbounded else max(output.most for output in outputs),
        answers=max(output.answers for output in outputs),
        wait_ms=runs.wait_ms,
        run_ms=runs.run_ms,
        stream=stage.stream,
        asked=runs.asked if runs.route else "",
        template=runs.prompt.used if runs.prompt else "",
        model_omitted=runs.route and stage.type in OPENAI_TYPES,
        extras=only_set(
            max_input=_most(first) if _most(first) > _estimated(first) else 0,
            price=runs.price,
            fallbacks=runs.fallbacks,
            fallback_after=runs.fallback_after_ms if runs.fallbacks else 0,
            schema=answer,
            repair=runs.repair and answer != "",
        ),
    )
    parts = [Part(one.payload, _estimated(one), _most(one)) for one in built] if several else []
    return task, tuple(parts)


def _estimated(request: _Request) -> int:
    return min(len(request.payload) // 4, MAX_ESTIMATED_INPUT)


def _most(request: _Request) -> int:
    runs = request.runs
    return len(request.payload) // 4 if (runs.price or runs.fallbacks) and not request.image else 0


def _names(plan: Plan, number: int, results: Mapping[tuple[int, int], bytes], room: Budget) -> dict[str, Any]:
    """Return the names that the texts of a stage read."""
    outcomes = {
        stage.name: Outcome(stage.name, of_stage(results, at), room, each=stage.each is not None)
        for at, stage in enumerate(plan.stages[:number])
    }
    return {**plan.variables, VARIABLES: plan.variables, STAGES: outcomes}


def _shows_image(body: Any) -> bool:
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list):
        return False
    return has_image({"messages": Raw(msgspec.json.encode(messages))})


def _made_of(stage: StagePlan) -> str:
    """Return the member of a stage that makes its request."""
    if stage.payload is not None:
        return "payload"
    return "template" if stage.runs.prompt is not None and stage.runs.prompt.version else "messages"


def _template(prompt: Prompt) -> Template:
    return Template(
        prompt.name,
        {"": prompt.messages},
        optional=prompt.optional,
        parameters=prompt.parameters,
        json_schema=prompt.json_schema,
    )
