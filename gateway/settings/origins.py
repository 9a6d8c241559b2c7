"""Who set a setting: a flag, a variable of the environment, or the file. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Loc = tuple[str | int, ...]
"""Where a setting stands: the names, and the numbers of entries of lists, that lead to it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who set one setting. `where`: the flag, the variable, or the path of the file."""

    source: Literal["flag", "environment", "file"]
    where: str


@dataclass(frozen=True, slots=True)
class Origins:
    """Who set each setting that somebody set. No part of what a configuration says, so all are equal."""

    of: Mapping[Loc, Origin] = field(default_factory=dict, compare=False)
    file: str | None = field(default=None, compare=False)
    """The path of the file that was read, if there was one."""
