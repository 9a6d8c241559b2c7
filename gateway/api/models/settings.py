"""Settings of queues and models that operators change."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from fairlane.gateway.api.models.base import Answer
from fairlane.gateway.operator.settings import ENTRY, PAUSED, changeable
from fairlane.queues.rules import Kind

Setting = float | int | bool | str | None


def _change(kind: Kind) -> type[BaseModel]:
    """The body of a PATCH: the settings that can be changed, each or null."""
    fields: dict[str, Any] = {PAUSED: (bool | None, None)}
    for name in changeable(kind):
        info = ENTRY[kind].model_fields[name]
        kept: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        fields[name] = (kept | None, None)
    return create_model(f"{kind.title()}Change", __config__=ConfigDict(extra="forbid"), **fields)


QueueChange = _change("queue")


ModelChange = _change("model")


class SettingInfo(BaseModel):
    help: str
    type: Literal["integer", "number", "string"]
    least: float | int | None
    most: float | int | None
    choices: list[str] | None


class Before(BaseModel):
    before: Setting
    after: Setting


class _Changed(Answer):
    values: dict[str, Setting] = Field(description="what holds now")
    overrides: dict[str, Setting] = Field(description="what of it differs from the configuration")
    changed: dict[str, Before]
    settings: dict[str, SettingInfo] = Field(description="what can be set, what it is for, and its bounds")


class QueueChanged(_Changed):
    queue: str


class ModelChanged(_Changed):
    model: str
