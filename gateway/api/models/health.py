"""Whether the gateway is alive and ready."""

from typing import Literal

from pydantic import Field

from fairlane.gateway.api.models.base import Answer, Ms


class Live(Answer):
    status: Literal["live"]


class Version(Answer):
    version: str


class Ready(Answer):
    status: Literal["ready"]
    workers: int = Field(description="connected here")
    store_refuses: str = Field("", description="why Redis takes no writes")


class NotReady(Answer):
    status: Literal["not ready"]
    missing: list[str]
    store_down_ms: Ms = 0
