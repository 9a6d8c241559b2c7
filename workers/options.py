"""Options that several commands share."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any


def expanded(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function of a command, with an option for each field of its parameters that are dataclasses."""
    signature = inspect.signature(function)
    groups: dict[str, Any] = {
        name: one.annotation for name, one in signature.parameters.items() if is_dataclass(one.annotation)
    }
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, own in signature.parameters.items()
        for parameter in (inspect.signature(groups[name]).parameters.values() if name in groups else [own])
    ]

    @functools.wraps(function)
    def command(**given: object) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command
