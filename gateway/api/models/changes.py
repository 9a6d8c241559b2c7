"""Changes of settings, which begin and end by themselves."""

from typing import Literal

from pydantic import Field, JsonValue

from fairlane.gateway.api.models.base import Answer, Ms


class ChangeShown(Answer):
    """A change of settings."""

    id: str
    kind: Literal["route", "model", "queue"]
    name: str
    tier: str | None = Field(description="of a route: for tasks of this tier alone")
    vision: bool = Field(description="of a route: for requests with images alone")
    set: dict[str, JsonValue]
    per_task: bool = Field(description="it is decided for each task, so it may hold for a share of them")
    rollout: int | None = Field(description="percent")
    by: Literal["task", "user"] | None
    state: Literal["scheduled", "active", "ended", "taken_back"]
    problem: str | None = Field(description="why it holds for nobody, though it is active")
    note: str
    who: str = Field(description="the id of the key that made it")
    made_at: Ms
    at: Ms = Field(description="when it begins or began, as it was asked for")
    until: Ms | None = Field(description="when it ends by itself")
    began_at: Ms | None
    ended_at: Ms | None


class ChangeMade(ChangeShown):
    warnings: list[str]


class ChangeList(Answer):
    now: Ms
    changes: list[ChangeShown]
    next: None = Field(description="all are told")


class FailuresOfSide(Answer):
    code: str
    family: str | None
    tasks: int


class RefusalsOfSide(Answer):
    code: str
    calls: int


class TimesOfSide(Answer):
    p50: Ms
    p95: Ms


class SideOfChange(Answer):
    """Tasks on one side of a change that have ended, and calls that were refused."""

    tasks: int
    completed: int
    failed: int
    cancelled: int
    failures: list[FailuresOfSide]
    refused: int = Field(description="calls that came to no task (429, 503), up to the last full minute")
    refusals: list[RefusalsOfSide]
    moved: int = Field(description="those that went on to another model")
    input_tokens_per_task: float | None
    output_tokens_per_task: float | None
    cost_per_task: float | None = Field(description="credits")
    sampled: int = Field(description="tasks of which times are told, those that ended last")
    wait_ms: TimesOfSide | None
    first_output_ms: TimesOfSide | None
    duration_ms: TimesOfSide | None


class Comparison(Answer):
    old: SideOfChange
    new: SideOfChange
    enough: bool = Field(description="both sides have tasks enough to say something")


class ChangeDetail(ChangeShown):
    now: Ms
    comparison: Comparison | None = Field(
        description="null: it is not decided for each task, or the database is away"
    )
    database_away: str | None = Field(description="why there is no comparison now")
