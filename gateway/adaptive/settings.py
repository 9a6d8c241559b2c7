"""A concurrency limit that is a number, or follows the time to the first output (adaptive.lua). Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    SerializationInfo,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from fairlane.gateway.settings.units import HOUR_MS, MODEL_CONFIG, WRITTEN, Amount

Limit = Annotated[int, Field(ge=1, le=10_000_000)]


class AutoConcurrency(BaseModel):
    """The bounds and the target of an adapted limit."""

    model_config = MODEL_CONFIG

    auto: Literal[True]
    """Marks the limit as an adapted one."""

    target_first_token_ms: Annotated[int, Amount("ms", 10, HOUR_MS)]
    """Time from the grant to the first output that tasks should have."""

    max: Limit
    """The largest limit."""

    min: Limit = 1
    """The least limit, and the first one."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError("min should not exceed max")
        return self

    @property
    def scheduled(self) -> dict[str, int]:
        """Return the values that the scheduler takes instead of a number."""
        return {"auto_target_ms": self.target_first_token_ms, "auto_min": self.min, "auto_max": self.max}


class _Adaptable:
    """Reads a number, or a mapping as AutoConcurrency. A union would name its members in the places of errors."""

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(
            _read,
            handler.generate_schema(Limit),
            serialization=core_schema.plain_serializer_function_ser_schema(_written, info_arg=True),
        )


def _read(value: Any, number: core_schema.ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    if isinstance(value, AutoConcurrency):
        return value
    if not isinstance(value, Mapping):
        return number(value)
    written = info.mode == "json" or info.context == WRITTEN
    return AutoConcurrency.model_validate(
        value, context=WRITTEN if written else None, by_alias=True, by_name=not written
    )


def _written(value: Any, info: SerializationInfo) -> Any:
    in_json = isinstance(value, AutoConcurrency) and info.mode == "json"
    return value.model_dump(mode="json") if in_json else value


def largest(limit: int | AutoConcurrency | None) -> int | None:
    """Return the largest number of tasks that a limit can allow; None: there is no limit."""
    return limit.max if isinstance(limit, AutoConcurrency) else limit


Concurrency = Annotated[int | AutoConcurrency, _Adaptable()]
