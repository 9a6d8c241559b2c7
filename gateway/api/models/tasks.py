"""Tasks, as operators see them."""

from typing import Literal

from pydantic import Field, JsonValue

from fairlane.gateway.api.models.base import Answer, Ms
from fairlane.gateway.api.models.native import ChainStage, TemplateUsed
from fairlane.queues.tasks import State


class Attempt(Answer):
    worker_id: str
    model: str | None
    granted_at: Ms | None
    first_output_at: Ms | None = None
    ended_at: Ms | None
    outcome: str | None


class ModelMove(Answer):
    """A task went on from `model` to another one."""

    model: str
    at: Ms
    why: str = Field(
        description="its attempt's failure code, or `no_worker`, `model_paused`, `breaker_open`, `held` (or paced)"
    )


class Task(Answer):
    task_id: str
    status: State
    model: str | None
    asked: str | None = Field(description="what its caller named, where another model may run")
    moves: list[ModelMove] = Field(description="the models that it went on from, the last ten")
    repaired: bool = Field(
        description="an answer of it did not match its schema, and its model was asked again"
    )
    stage: str | None = Field(description="of a chain: the stage that it is in, or ended in")
    stage_index: int | None
    part: int | None = Field(description="of a part of a stage: which, from 0")
    chain: str | None = Field(description="of a part: its chain")
    stage_at: Ms | None = Field(description="since when it is in this stage")
    queue: str | None
    user: str | None
    key: str | None
    type: str | None
    code: str | None
    family: str | None = Field(description="of its code")
    request_id: str | None = Field(description="of the call that submitted it: its `x-request-id`")
    error: str | None
    enqueued_at: Ms | None
    started_at: Ms | None
    first_output_at: Ms | None
    ended_at: Ms | None
    attempt: int | None
    attempts: list[Attempt]


class AllCancelled(Answer):
    """How many tasks a call has cancelled, and whether more match."""

    cancelled: int
    more: bool


class ChangeOfTask(Answer):
    id: str
    side: Literal["new", "old"]


class StageOfTask(ChainStage):
    """A stage of a chain, and where it is to run, as far as that is known before."""

    model: str | None
    queue: str | None


class PermitOfTask(Answer):
    until: Ms = Field(description="it may be used; or, once it is, its place is taken")
    used_at: Ms | None


class TaskDetail(Task):
    now: Ms
    change: ChangeOfTask | None = Field(
        description="the change of settings that concerned it when it was submitted, and its side"
    )
    fallbacks: list[str] = Field(description="models that it may go on to")
    chain_name: str | None = Field(None, description="of a chain that the configuration has")
    stages: list[StageOfTask] = Field([], description="of a chain")
    permit: PermitOfTask | None = Field(description="the one that is out")
    template: TemplateUsed | None = None
    priority: int
    tries: int
    stream: bool
    waited: bool
    estimated_input_tokens: int | None
    max_output_tokens: int | None
    payload_bytes: int | None
    wait_deadline_at: Ms | None
    deadline_at: Ms | None
    attempt_deadline_at: Ms | None
    kept_for_ms: Ms | None = Field(
        description="how long what is told here is kept, from its end: its events, too, and once they are gone the rest"
    )
    events: int
    stream_url: str | None
    metadata: JsonValue
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False


class FoundTasks(Answer):
    now: Ms
    tasks: list[Task]
    next: str | None
