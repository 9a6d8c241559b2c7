"""The last minutes to days, as curves and totals."""

from pydantic import Field

from fairlane.gateway.api.models.base import Answer, Ms


class Percentiles(Answer):
    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]


class TotalPercentiles(Answer):
    p50: float | None
    p95: float | None
    p99: float | None


class CodeCount(Answer):
    code: str
    count: int


class FailureCount(CodeCount):
    family: str = Field(description="of its code; empty of `other`")


class ModelMinute(Answer):
    accepted_last_minute: int
    ended_last_minute: int
    cancelled_last_minute: int = Field(description="of those that ended")
    output_tokens_last_minute: int


class HistoryTotal(Answer):
    accepted: int | None
    completed: int
    failed: int
    cancelled: int | None
    refused: int | None
    input_tokens: int
    output_tokens: int
    wait_ms: TotalPercentiles | None
    first_output_ms: TotalPercentiles | None
    total_ms: TotalPercentiles | None
    failures: list[FailureCount] | None
    refusals: list[CodeCount] | None


class HistoryNames(Answer):
    models: list[str]
    queues: list[str]
    workers: list[str]


class History(Answer):
    now: Ms
    range: str
    until: Ms
    bucket_ms: Ms
    at: list[Ms]
    accepted: list[int] | None
    completed: list[int]
    failed: list[int]
    cancelled: list[int] | None
    refused: list[int] | None
    waiting: list[int] | None
    input_tokens: list[int]
    output_tokens: list[int]
    wait_ms: Percentiles | None
    first_output_ms: Percentiles | None
    total_ms: Percentiles | None
    models: dict[str, ModelMinute]
    total: HistoryTotal
    names: HistoryNames
