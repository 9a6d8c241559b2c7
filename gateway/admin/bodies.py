"""The bodies of operators' calls: what they ask for, or an error that lists all invalid fields. Pure."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.settings import external_name, part_of, suggestion

Body = TypeVar("Body", bound=BaseModel)

Note = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")]

_NAME = "must be 1 to 64 letters, digits, dots, dashes or underscores"
_PATTERNS = {
    **dict.fromkeys(("id", "name", "tier"), _NAME),
    "note": "may hold no control characters",
    "user_from": "must be the name of a header, or body.user",
}
"""What the pattern of a text asks for, in words."""


class StrictBody(BaseModel):
    """A body without other members, whose values have exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True)


def optional(settings: type[BaseModel], names: Iterable[str]) -> dict[str, Any]:
    """Settings as members of a body, each as the configuration has it, or null for its default."""
    fields: dict[str, Any] = {}
    for name in names:
        info = settings.model_fields[name]
        kept: Any = Annotated[(info.annotation, *info.metadata)] if info.metadata else info.annotation
        fields[external_name(name)] = (kept | None, Field(None, description=info.description))
    return fields


def read_body(model: type[Body], fields: Mapping[str, Any], *, secret: bool = False) -> Body:
    """A body that is one of these. Raises ApiError(400) with all that is wrong. `secret`: without repeating values."""
    try:
        return model.model_validate_json(msgspec.json.encode(fields))
    except ValidationError as error:
        raise validation_error(error, model, secret=secret) from None


def validation_error(error: ValidationError, model: type[BaseModel], *, secret: bool = False) -> ApiError:
    """Return the error that lists all that is invalid in a `model`."""
    return invalid_fields(problems_in(error, model, secret=secret))


def problems_in(error: ValidationError, model: type[BaseModel], *, secret: bool = False) -> dict[str, str]:
    """Return the problem of each invalid field of a `model`."""
    problems: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        where = [str(part) for part in detail["loc"]]
        name = ".".join(where)[:64] or "settings"  # all of them together
        if detail["type"] == "extra_forbidden":
            field = model.model_fields.get(where[0]) if len(where) == 2 else None
            here = (part_of(field) if field else None) or model
            problems[name] = f"{name!r} is no part of this call{suggestion(where[-1], here.model_fields)}"
            continue
        message = str(detail["msg"])
        if detail["type"] == "string_pattern_mismatch":
            message = _PATTERNS.get(name, message)
        for beginning in ("Input ", "String ", "Value error, "):
            message = message.removeprefix(beginning)
        problems[name] = f"{name}: {message}" if secret else f"{name} {message}; got {detail['input']!r:.80}"
    return problems


def invalid_fields(problems: Mapping[str, str]) -> ApiError:
    """Return the error of invalid fields, with the problem of each."""
    names = list(problems)
    error = bad_request("; ".join(problems.values()), names[0] if len(names) == 1 else None)
    error.fields = problems
    return error
