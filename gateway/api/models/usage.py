"""What tasks used."""

from typing import Literal

from pydantic import Field

from fairlane.gateway.api.models.base import Answer, Left, Ms
from fairlane.queues.tasks import State


class Used(Answer):
    """Tasks added up. Tokens that are not known count as none."""

    tasks: int
    completed: int
    failed: int
    cancelled: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int = Field(description="of the input, where workers tell it")
    reasoning_tokens: int = Field(description="of the output, where workers tell it")
    estimated: int = Field(description="tasks whose tokens are, at least in part, the gateway's own count")
    waited_ms: Ms = Field(
        description="together, each until its last start, or its end where it never started"
    )
    ran_ms: Ms = Field(description="together, each from its last start to its end")
    cost: float = Field(description="credits, by the prices that held when tasks were submitted")


class UsedBy(Used):
    """One row: the members that were asked `by`, and what they used."""

    model: str | Left = None
    key: str | Left = None
    user: str | Left = None
    tier: str | Left = None
    state: str | Left = None
    code: str | Left = None
    family: str | Left = Field(None, description="beside `code`: its family")
    route: str | Left = None
    day: str | Left = Field(None, description="2026-11-23")
    hour: str | Left = Field(None, description="2026-11-23T16:00Z")


class UsageReport(Answer):
    now: Ms
    from_: Ms = Field(alias="from")
    to: Ms
    by: list[str]
    rows: list[UsedBy]
    total: Used
    more: bool


class UsedTask(Answer):
    """What a task used, for good. What is not known is null; what there is none of, an empty text."""

    task_id: str
    ended_at: Ms
    enqueued_at: Ms
    granted_at: Ms | None = Field(description="its last start; null: it never started")
    first_output_at: Ms | None
    status: State
    code: str = Field(description="failure code, CANCELLED included; empty when it completed")
    family: str = Field(description="of its code")
    key: str
    user: str
    tier: str
    queue: str
    type: str
    model: str = Field(description="that was asked for")
    scheduled_as: str = Field(
        description="the line that it waited in: its model, or * where any name is taken"
    )
    worker_id: str
    attempts: int
    tries: int
    request_id: str
    trace_id: str
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    estimated: bool = Field(description="input or output is the gateway's own count")
    cost: float | None = Field(
        description="credits; 0: it came to nothing; null: its model had no price when it was submitted"
    )
    price: str = Field(
        description="by which it is reckoned, in credits: of a million tokens of input, cached input, output and reasoning, "
        "and of the task itself, with slashes between"
    )
    route: str = Field(description="the name that its caller gave, where more than one model may run it")
    template: str = Field(description="the name of the template that its payload was made of")
    template_version: str
    change_id: str = Field(description="of the change of settings that concerned it; empty: none did")
    side: Literal["new", "old", ""] = Field(description="on which it was of that")
    moves: int | None = Field(
        description="how often it went on to another model; null: no change concerned it, and it was not counted"
    )
    stage: str = Field(description="of a chain, which has a row for each stage, and for each part of one")
    stage_index: int | None = Field(description="from 0; null: it is no chain")
    part: int | None = Field(description="from 0; null: the stage had one alone")


class UsedTasks(Answer):
    now: Ms
    tasks: list[UsedTask]
    next: str | None
