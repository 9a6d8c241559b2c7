"""The plain calls of endpoints."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from fairlane.gateway.api.models.base import Asked

PlainStatusName = Literal["pending", "processing", "completed", "failed", "cancelled"]


class PlainTask(Asked):
    """A request to an endpoint."""

    target_url: str = Field(description="the whole URL")
    http_method: str | None = Field(None, description="POST with a body, GET without, if not given")
    body: JsonValue = Field(None, description="a text, as it is sent")
    priority: Annotated[int, Field(ge=0)] | None = Field(
        None, description="among the caller's own tasks alone; what is above 5 counts as 5"
    )
    timestamp: Annotated[int, Field(ge=0)] | None = Field(
        None, description="means nothing: what counts is when it came"
    )
    task_type: Literal["offline", "online"] | None = Field(None, description="offline if not given")
    idempotencyKey: str | None = None  # noqa: N815 - as in all native calls


class PlainTaskId(Asked):
    task_id: str


class PlainSubmitted(BaseModel):
    model_config = ConfigDict(extra="allow")

    task_id: str
    task_status: PlainStatusName
    created_at: str = Field(description="RFC 3339; so below")
    wait_num: int = Field(description="tasks that come before it")


class PlainStatus(BaseModel):
    model_config = ConfigDict(extra="allow")

    task_status: PlainStatusName
    task_result: str = Field(
        description="the body of the endpoint's answer; of a failed task JSON with `error` and `code`; else empty"
    )
    wait_num: int
    wait_time: int = Field(description="seconds that it may still wait; -1: nobody can tell yet")
    created_at: str
    started_at: str = Field(description="empty: not yet; so below")
    ended_at: str
    http_status: int = Field(0, description="of the endpoint's answer")
    task_result_base64: str = Field("", description="its body, where that is no text")


class PlainCancelled(BaseModel):
    model_config = ConfigDict(extra="allow")

    task_id: str
    task_status: PlainStatusName
