"""Where settings come from: a flag, a variable of the environment, or the file. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Loc = tuple[str | int, ...]
"""The position of a setting: the names, and the numbers of entries of lists, that lead to it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of one top-level setting. `where`: the flag, the variable, or the path of the file."""

    source: Literal["flag", "environment", "file"]
    where: str


@dataclass(frozen=True, slots=True)
class Origins:
    """The sources of all top-level settings that are set. Any two compare equal, as they are not part of the values."""

    of: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    file: str | None = field(default=None, compare=False)
    """The path of the file that was read, if there was one."""
