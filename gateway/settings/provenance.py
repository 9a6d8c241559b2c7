"""Where settings come from: a flag, a variable of the environment, or the file. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fairlane.queues.clock import now_ms

Loc = tuple[str | int, ...]
"""The position of a setting: the names, and the numbers of entries of lists, that lead to it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of one top-level setting. `where`: the flag, the variable, or the path of the file."""

    source: Literal["flag", "environment", "file"]
    where: str


@dataclass(frozen=True, slots=True)
class Origins:
    """When a configuration was read and modified, ms since 1970, and the sources of all top-level settings that are set. Not part
    of its values, so any two compare equal."""

    of: Mapping[str, Origin] = field(default_factory=dict, compare=False)
    file: str | None = field(default=None, compare=False)
    """The path of the file that was read, if there was one."""
    file_ms: int | None = field(default=None, compare=False)
    read_ms: int = field(default_factory=now_ms, compare=False)

    @property
    def modified_ms(self) -> int:
        """Return when the file was modified, never in the future; without a file, when the settings were created."""
        return self.read_ms if self.file_ms is None else min(self.file_ms, self.read_ms)
