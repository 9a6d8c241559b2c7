"""Names and values of settings with a unit: `task_timeout: 90s` in a file is `task_timeout_ms = 90000` in code. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

KIB = 1024
MIB = 1024 * KIB
SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

WRITTEN = "written"
"""The validation context of values that an operator has written: there, and in JSON, a duration needs a unit."""

Unit = Literal["ms", "days", "bytes"]
UNITS: Mapping[Unit, Mapping[str, int]] = {
    "ms": {"ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS},
    "days": {"d": 1},
    "bytes": {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB},
}
_EXAMPLES: Mapping[Unit, str] = {
    "ms": "a duration such as 500ms, 30s, 5m, 12h or 7d",
    "days": "a number of days such as 30d",
    "bytes": "a size such as 16MiB (B, KiB, MiB, GiB), or a number of bytes",
}


def external_name(name: str) -> str:
    """Return the name in files, variables and answers of a setting that code calls `name`; names with dots are accepted."""
    return re.sub(r"(?<![a-z])bytes(?![a-z])", "size", re.sub(r"_(ms|days)$", "", name))


def external(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as files have them: `{"max_wait": "30s"}` for `{"max_wait_ms": 30000}`."""
    return {external_name(name): external_value(name, value) for name, value in values.items()}


def external_value(name: str, value: Any) -> Any:
    """Return the value of the setting that code calls `name` as files have it."""
    unit = next((unit for unit in UNITS if unit in name.rpartition(".")[2].split("_")), None)
    return value if unit is None or type(value) is not int else text_of(unit, value)


def text_of(unit: Unit, value: int) -> str:
    """Return an amount in the largest unit in which it is a whole number: `30s`, `16MiB`."""
    names = UNITS[unit]
    name = max((name for name in names if value % names[name] == 0), key=names.__getitem__) if value else ""
    return f"{value // names[name]}{name}" if name else "0"


MODEL_CONFIG = ConfigDict(
    frozen=True,
    extra="forbid",
    use_attribute_docstrings=True,
    alias_generator=external_name,
    validate_by_name=True,
    validate_by_alias=True,
    serialize_by_alias=True,
)
"""Code names a setting with its unit, as in `Settings(task_timeout=90s)`; files, JSON and errors use `external_name`."""


@dataclass(frozen=True, slots=True)
class Amount:
    """The unit and the range of a setting: an integer in code, a text such as `30s` in files."""

    unit: Unit
    least: int
    most: int

    def read(self, value: Any, info: ValidationInfo) -> Any:
        """Return the integer of a text with a unit, and other values unchanged. Raise ValueError for a number without a unit."""
        text = value.strip() if isinstance(value, str) else ""
        if found := re.fullmatch(rf"(\d{{1,15}}) ?({'|'.join(UNITS[self.unit])})", text):
            return int(found[1]) * UNITS[self.unit][found[2]]
        if self.unit == "bytes" and text.isdecimal() and text.isascii():
            return int(text)
        if text == "0":
            return 0
        written = info.mode == "json" or info.context == WRITTEN
        if isinstance(value, str) or (written and self.unit != "bytes" and type(value) is int and value):
            raise ValueError(f"should be {_EXAMPLES[self.unit]}")
        return value

    def check(self, value: int) -> int:
        """Return `value`. Raise ValueError if it is out of range."""
        if not self.least <= value <= self.most:
            raise ValueError(f"should be {self.range}")
        return value

    @property
    def range(self) -> str:
        """The range for people."""
        return f"{text_of(self.unit, self.least)} to {text_of(self.unit, self.most)}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic reads and writes such a value."""
        inner = core_schema.no_info_after_validator_function(self.check, handler(source))
        return core_schema.with_info_before_validator_function(
            self.read,
            inner,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: text_of(self.unit, value),
                return_schema=core_schema.str_schema(),
                when_used="json",
            ),
        )

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the JSON schema of such a value: a text."""
        return {"type": "string", "examples": [text_of(self.unit, max(self.least, 1))]}
