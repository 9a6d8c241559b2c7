"""What keys and users pay with, as the scripts and SQL have it: whole micro-credits. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Funds:
    """What SQL knows of a subject: a caller's key, `k:<id>`, or a user of one, `u:<user>`."""

    granted: int = 0
    grants: int = 0
    """How many there were."""
    spent: int = 0
    """What tasks that have ended have cost of what was granted."""
    number: int = 0
    """The highest of a task."""
    windows: Mapping[str, int] = field(default_factory=dict)
    """What tasks have cost of windows of its budget: `d` or `m` and the window's end (ms)."""


@dataclass(frozen=True, slots=True)
class Balance:
    """What the scripts hold of a subject."""

    fields: Mapping[str, str]
    """As in keys.BALANCE."""

    def _amount(self, name: str) -> int:
        return int(self.fields.get(name) or 0)

    @property
    def granted(self) -> int:
        return self._amount("granted")

    @property
    def grants(self) -> int:
        """How many of them are in it."""
        return self._amount("last_grant")

    @property
    def balance(self) -> int:
        """What was granted, less what was spent of it; less than nothing: a debt."""
        return self._amount("balance")

    @property
    def spent(self) -> int:
        return self.granted - self.balance

    @property
    def held(self) -> int:
        """Reserved from the grants for tasks that have not ended."""
        return self._amount("reserved")

    @property
    def number(self) -> int:
        """Of the last task that was paid, or given back."""
        return self._amount("settled")

    @property
    def mark(self) -> str:
        return self.fields.get("sql_mark", "")

    @property
    def windows(self) -> dict[str, int]:
        """What was spent of the windows that are known."""
        names = [self.fields[name] for name in ("window_1", "window_2") if name in self.fields]
        return {name: self._amount(f"spent:{name}") for name in names}

    def reserved_of(self, window: str) -> int:
        """Held of a window."""
        return self._amount(f"reserved:{window}")
