"""Tasks: how they are submitted, and what a poll shows."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from fairlane.gateway.api.models.base import (
    Answer,
    Asked,
    IdempotencyKey,
    Left,
    Model,
    Ms,
    Positive,
    Priority,
)
from fairlane.gateway.settings.parts import Mode
from fairlane.queues.tasks import State


class Wishes(Asked):
    """What the gateway reads of a native request; the page on the native API says what each means."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel)
    model: Model | None = None
    stream: bool | None = None
    async_: bool | None = Field(None, alias="async")
    timeout: float | None = Field(None, description="ms")
    mode: Mode | None = None
    priority: Priority | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    result_ttl_ms: Positive | None = None
    metadata: Any = None
    repair: bool | None = Field(
        None, description="an answer that does not match its JSON schema is asked for again, once"
    )
    idempotency_key: IdempotencyKey | None = Field(None, description="as the header `Idempotency-Key`")


class NativeRequest(Wishes):
    """Any JSON object: what the gateway does not read is the worker's."""


class TaskRequest(Wishes):
    """A task of any type, of which the worker gets `payload`; one of a `template`, which makes the payload; or a `chain`, whose
    stages make one after the other, and which is `async` unless `stream` or `async` says otherwise."""

    type: (
        Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$")]
        | Left
    ) = Field(None, description="needed without a template and chain")
    payload: Any = Field(None, description="needed without a template and chain")
    template: str | None = Field(None, description="a route or template of `GET /api/routes`")
    chain: Any = Field(
        None,
        description="a chain of `GET /api/routes`, or an object with `stages` as the configuration has it",
    )
    variables: dict[str, JsonValue] | None = Field(
        None, description="a value for each variable of the template or chain"
    )
    locale: str | None = Field(None, description="such as `en` or `zh-CN`")
    url: str | None = Field(None, description="of type `http` and `permit`: what is called")
    endpoint: str | None = Field(None, description="of these, in the place of a URL that stands for itself")
    method: str | None = Field(None, description="of these: POST with a body, GET without, if not given")
    headers: dict[str, JsonValue] | None = Field(
        None, description="of type `http`: of those that may pass, name -> value or values"
    )
    query: dict[str, JsonValue] | None = Field(None, description="of these: put behind that of the URL")
    body: JsonValue = Field(
        None, description="of type `http`: a text, or any other JSON, which is sent as it came"
    )
    bodyBase64: str | None = Field(None, description="of type `http`: bytes")  # noqa: N815


class TemplateUsed(Answer):
    """What a task's payload was made of. `version` names the template's content."""

    name: str
    version: str
    locale: str = Field(description="whose messages were used; empty: those for every locale")


class ChainStage(Answer):
    """How one stage of a chain stands. `skipped`: its condition was false, or the chain ended before it."""

    name: str
    status: Literal["waiting", "queued", "executing", "completed", "skipped", "failed", "cancelled"]
    parts: int = Field(0, description="of one that runs several times, side by side")
    parts_done: int = 0
    usage: dict[str, JsonValue] | None = Field(None, description="tokens, of all its parts")


class CurrentStage(Answer):
    """The stage that a chain is in, or ended in; `index` from 1."""

    name: str
    index: int
    of: int


class Accepted(Answer):
    """An async task, which waits from now on; or the one that its idempotency key names, as it stands now (`replay`).

    While it waits it has a place, from 1, and how long it may wait: nine times out of ten between low and high. These are null,
    and it is `estimating`, as long as nothing has been learnt that tells, and while nothing of its queue or model can start.
    """

    task_id: str
    status: State
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False
    poll_after_ms: Ms = 0
    stream_url: str
    status_url: str
    replay: bool = False
    idem_key: str = ""
    asked: str = Field("", description="what its caller named, where another model may run")
    model: str = Field("", description="beside `asked`: the model that it waits for")
    template: TemplateUsed | None = None
    stage_status: str = Field("", description="of a chain: as its first stage says")
    stages: list[ChainStage] = Field([], description="of a chain")


class TaskStatus(Answer):
    """A task as a poll shows it; which members there are depends on `status`."""

    task_id: str
    status: State
    asked: str = Field("", description="what its caller named, where another model may run")
    model: str = Field("", description="beside `asked`: the model that runs it, or ran it last")
    template: TemplateUsed | None = None
    chain: str = Field("", description="of a configured chain: its name")
    stage_status: str = Field(
        "", description="of a chain: as its stage says; at the end COMPLETED, FAILED or CANCELLED"
    )
    stage: CurrentStage | None = Field(None, description="of a chain")
    stages: list[ChainStage] = Field([], description="of a chain")
    results: dict[str, JsonValue] = Field(
        {}, description="of a chain that has ended: what its stages came to; of one with `each` a list"
    )
    failed_stage: str = Field("", description="of a chain that failed")
    usage: dict[str, JsonValue] | None = Field(
        None, description="of a chain that has ended: tokens of all stages"
    )
    metadata: JsonValue = None
    enqueued_at: Ms = 0
    position: int = 1
    estimated_wait_ms: Ms | None = 0
    estimated_wait_low_ms: Ms | None = 0
    estimated_wait_high_ms: Ms | None = 0
    estimating: bool = False
    poll_after_ms: Ms = 0
    stream_url: str = ""
    worker_id: str = ""
    started_at: Ms = 0
    permit: str = Field("", description="to call `url` of `endpoint` with, once, until `expiresAt`")
    endpoint: str = ""
    url: str = ""
    expires_at: Ms = 0
    used_at: Ms = Field(0, description="the permit was used then")
    result: JsonValue = None
    completed_at: Ms = 0
    error: str = ""
    code: str = ""
    family: str = Field("", description="of its code")
    retryable: bool = False
    failed_at: Ms = 0
    cancelled_at: Ms = 0


class Cancelled(Answer):
    task_id: str
    status: State
