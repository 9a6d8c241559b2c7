"""Breakers that operators open and close."""

from typing import Literal

from pydantic import Field

from fairlane.gateway.api.models.base import Answer, Asked


class BreakerChange(Asked):
    model: str
    upstream: str = Field("", description="as the state names it; empty of workers that name none")
    breaker: Literal["open", "closed", "auto"] = Field(
        description="`auto`: it goes by itself, from closed on; also where its provider has it held"
    )


class BreakerChanged(Answer):
    model: str
    upstream: str
    breaker: Literal["open", "closed", "auto"]
    before: Literal["open", "closed", "auto"]
    audit_id: str
