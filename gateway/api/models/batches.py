"""Batches."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.api.models.base import Answer, Ms
from fairlane.gateway.batches.batch import Status
from fairlane.gateway.calls.bounds import LEAST_EXPIRY_S, MOST_EXPIRY_S, MOST_PAIRS
from fairlane.gateway.calls.openai import CHAT

Seconds = Annotated[int, Field(description="since 1970")] | None


class OutputExpiry(BaseModel):
    """When output and error file are deleted."""

    model_config = ConfigDict(extra="forbid")
    anchor: Literal["created_at"]
    seconds: int = Field(ge=LEAST_EXPIRY_S, le=MOST_EXPIRY_S)


class NewBatch(BaseModel):
    """A batch that is to be made."""

    model_config = ConfigDict(extra="forbid")
    input_file_id: str = Field(description="a file of the purpose `batch`")
    endpoint: str = Field(description="the call that each line is a request of", examples=[CHAT])
    completion_window: str = Field(description="a number and s, m, h or d", examples=["24h"])
    metadata: dict[str, str] | None = Field(default=None, max_length=MOST_PAIRS)
    output_expires_after: OutputExpiry | None = None


class BatchProblem(BaseModel):
    """What is wrong with the file, or with a line of it."""

    model_config = ConfigDict(extra="allow")
    code: str
    message: str
    line: int | None
    param: str | None


class BatchProblems(BaseModel):
    """All that was found, up to a bound."""

    object: Literal["list"]
    data: list[BatchProblem]


class RequestCounts(BaseModel):
    """How far a batch is."""

    total: int
    completed: int
    failed: int


class CachedTokens(BaseModel):
    """Of the input."""

    cached_tokens: int


class ReasoningTokens(BaseModel):
    """Of the output."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """Tokens of all answers so far."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class WaitsFor(Answer):
    """Why lines of a batch are not submitted now."""

    code: str = Field(
        description="a failure or error code, or `NOT_ITS_TURN`: nobody leads it yet, as other batches go first",
        examples=["NO_WORKER"],
    )
    models: list[str] = Field(description="whose lines, up to ten; none: of any")


class BatchStanding(Answer):
    """What is under way of a batch, as it was told last."""

    lines_waiting: int = Field(description="submitted, and in their queue")
    lines_running: int
    waits_for: list[WaitsFor] = Field(description="why others are not submitted")
    still_since: Ms | None = Field(description="since when nothing of it runs or can be submitted")


class Batch(BaseModel):
    """A batch, in OpenAI's form."""

    model_config = ConfigDict(extra="allow")
    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None = Field(description="the one that the first line names")
    errors: BatchProblems | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: Seconds
    expires_at: int
    finalizing_at: Seconds
    completed_at: Seconds
    failed_at: Seconds
    expired_at: Seconds
    cancelling_at: Seconds
    cancelled_at: Seconds
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, Any] | None
    fairlane: BatchStanding


class BatchList(BaseModel):
    """A page of batches."""

    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class AnyBatch(BatchStanding):
    """A batch as operators see it."""

    id: str
    key: str | None
    user: str
    tier: str
    status: Status
    endpoint: str
    model: str | None
    created_at: Ms
    began_at: Ms | None
    expires_at: Ms
    ended_at: Ms | None
    counts: RequestCounts
    replica: str | None = Field(description="the one that works on it")
    error: str | None = Field(description="the first thing that is wrong")
    error_line: int | None = Field(description="in which line of its file")
    error_param: str | None = Field(description="in which member")


class BatchPage(Answer):
    """A page of everybody's batches."""

    batches: list[AnyBatch]
    next: str | None
