"""The plan of a chain: its configuration at submission, stored with its task. Pure.

Later stages follow this plan, so a changed configuration, or a replica with another one, does not change a running chain.
"""

from typing import Any

import msgspec
from msgspec import Struct

from fairlane.gateway.prices.quota import Quota


class Prompt(Struct, frozen=True, omit_defaults=True):
    """The messages of a stage, as a template has them."""

    name: str
    messages: list[tuple[str, Any]]
    """Role and content of each, for the locale that was chosen."""
    version: str = ""
    """The version of its template; '' = the stage has its own messages."""
    locale: str = ""
    optional: list[str] = []
    parameters: dict[str, Any] = {}
    json_schema: dict[str, Any] | None = None

    @property
    def used(self) -> str:
        """The template, as a task's record has it."""
        return "\n".join((self.name, self.version, self.locale)) if self.version else ""


class Runs(Struct, frozen=True, omit_defaults=True):
    """The model of a stage, its queue and its terms."""

    asked: str
    """The name that was given: a model or a route."""
    model: str
    queue: str
    route: bool = False
    """More than one model may run it, or another than was named."""
    price: str = ""
    fallbacks: tuple[tuple[str, str], ...] = ()
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
    """A stage."""

    name: str
    status: str
    runs: Runs
    seeing: Runs | None = None
    """The same with an image, if it differs."""
    type: str = "openaiLike"
    when: str | None = None
    each: str | None = None
    variables: dict[str, Any] | None = None
    payload: dict[str, Any] | None = None
    stream: bool = False


class Plan(Struct, frozen=True, omit_defaults=True):
    """A chain."""

    name: str
    stages: list[StagePlan]
    variables: dict[str, Any]
    answers: str = "strict"
    """Which answers are checked (the setting `structured_output`)."""
    most_bytes: int = 16 << 20
    """Maximum size of a stage's request, all its parts together."""
    quota: Quota | None = None
    """Pays for the stages that follow the first."""


class HeadStage(Struct, frozen=True):
    """A stage as readers see it."""

    name: str
    status: str
    queue: str = ""
    model: str = ""
    """With the queue, its place for estimates, as far as it is known at submission."""
    each: bool = False


class Head(Struct, frozen=True, omit_defaults=True):
    """A chain as readers see it, stored as long as its record."""

    stages: list[HeadStage]
    name: str = ""


def head_of(plan: Plan) -> Head:
    """Return the head of a plan."""
    stages = [
        HeadStage(stage.name, stage.status, stage.runs.queue, stage.runs.model, stage.each is not None)
        for stage in plan.stages
    ]
    return Head(stages, plan.name)


encode = msgspec.json.encode
read_plan = msgspec.json.Decoder(Plan).decode
read_head = msgspec.json.Decoder(Head).decode
