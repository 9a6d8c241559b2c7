"""The plan of a chain: all that was configured at its submission, stored with its task. Pure.

The end of a stage follows this plan, so no later change of the configuration, and no replica with another one, changes a
chain that runs.
"""

from typing import Any

import msgspec
from msgspec import Struct

from fairlane.gateway.credits.quota import Per, Quota


class Prompt(Struct, frozen=True, omit_defaults=True):
    """The messages of a stage, as a template has them."""

    name: str
    messages: list[tuple[str, Any]]
    """Role and content of each, for the locale that was chosen."""
    version: str = ""
    """Of the template that it was; '' = it is the stage's own."""
    locale: str = ""
    optional: list[str] = []
    parameters: dict[str, Any] = {}
    json_schema: dict[str, Any] | None = None

    @property
    def used(self) -> str:
        """The template, as a task's record has it."""
        return "\n".join((self.name, self.version, self.locale)) if self.version else ""


class Runs(Struct, frozen=True, omit_defaults=True):
    """How a stage runs: the model, where, and on which terms."""

    asked: str
    """The name that was given: a model or a route."""
    model: str
    queue: str
    route: bool = False
    """More than one model may run it, or another than was named."""
    price: str = ""
    fallbacks: str = ""
    fallback_after_ms: int = 0
    wait_ms: int = 0
    run_ms: int = 0
    most_output: int = 0
    """Tokens that its route, or the caller's token, allows; 0 = any number."""
    bound: str = "max_tokens"
    """The member of a body that says so."""
    repair: bool = False
    prompt: Prompt | None = None


class StagePlan(Struct, frozen=True, omit_defaults=True):
    """One stage."""

    name: str
    status: str
    runs: Runs
    seeing: Runs | None = None
    """How it runs with an image, where that differs."""
    type: str = "openaiLike"
    when: str | None = None
    each: str | None = None
    variables: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    max_tokens: int = 0
    stream: bool = False


class Payer(Struct, frozen=True, omit_defaults=True):
    """The payer, as `Quota` has it."""

    of_user: bool
    budget: int = 0
    per: Per = "month"

    @property
    def quota(self) -> Quota:
        return Quota(self.of_user, self.budget, self.per)


class Plan(Struct, frozen=True, omit_defaults=True):
    """A chain."""

    name: str
    stages: list[StagePlan]
    variables: dict[str, Any]
    answers: str = "strict"
    """Which answers are compared with their schemas (the setting `structured_output`)."""
    most_bytes: int = 16 << 20
    """Of the request of a stage, all its parts together."""
    payer: Payer | None = None


class HeadStage(Struct, frozen=True):
    """What readers know of a stage."""

    name: str
    status: str
    queue: str = ""
    model: str = ""
    """With the queue, where it is to run, as far as that is known before: for estimates."""
    each: bool = False


class Head(Struct, frozen=True, omit_defaults=True):
    """What readers know of a chain, as long as its record is kept."""

    stages: list[HeadStage]
    name: str = ""
    title: str = ""


def head_of(plan: Plan, title: str) -> Head:
    """What readers are to know of it."""
    stages = [
        HeadStage(stage.name, stage.status, stage.runs.queue, stage.runs.model, stage.each is not None)
        for stage in plan.stages
    ]
    return Head(stages, plan.name, title)


encode = msgspec.json.encode
read_plan = msgspec.json.Decoder(Plan).decode
read_head = msgspec.json.Decoder(Head).decode
