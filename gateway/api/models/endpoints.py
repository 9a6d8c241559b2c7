"""Endpoints."""

from typing import Literal

from pydantic import Field, JsonValue

from fairlane.gateway.api.models.base import Answer, Ms


class EndpointLine(Answer):
    """How the line of an endpoint stands."""

    waiting: int
    running: int
    workers: int = Field(description="that make its calls")
    limit: int | None = Field(description="the concurrency in force")
    windows: str | None = Field(description="those in force")
    why: str | None = Field(
        description="why nothing starts now: `paused`, `no_worker`, `breaker_open`, `held` (its 429), `paced` (its windows), or "
        "what its queues say (`queue_paused`, `reserved`); null: something may"
    )
    slots: int = Field(description="C: requests that may be under way at once")
    mean_ms: float | None = Field(description="T: how long a request takes")
    measured: bool = Field(description="T is measured, and not guessed (`mean_ms`)")
    per_second: float | None = Field(description="Q = C / T, or what its narrowest window lets through")
    paused: bool


class EndpointShown(Answer):
    """An endpoint."""

    name: str
    model: str = Field(description="as which it is scheduled")
    source: Literal["configuration", "database"]
    state: Literal["active", "unreadable"] = Field(description="unreadable: a newer release wrote it")
    settings: dict[str, JsonValue]
    note: str
    created: Ms | None
    changed: Ms | None
    who: str | None = Field(description="the id of the key that changed it last")
    line: EndpointLine | None


class EndpointDone(EndpointShown):
    notes: list[str]


class EndpointRemoved(Answer):
    name: str
    waiting: int
    notes: list[str]


class EndpointList(Answer):
    now: Ms
    endpoints: list[EndpointShown]
    database_away: str | None
