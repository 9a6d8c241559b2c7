"""What keys and users pay with, as the scripts and SQL have it: whole micro-credits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlane.queues.replies import decode_map
from fairlane.queues.scheduler import Scheduler


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


class BalanceStore:
    """The balances that the scripts keep."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def find(self, subject: str) -> Balance | None:
        """What a key or user can pay with; None: SQL knows."""
        fields = await self._scheduler.hash("balance", subject=subject)
        return Balance(fields) if "balance" in fields else None

    async def load(self, subject: str, funds: Funds, window: str = "") -> bool:
        """Load what SQL knows of a subject, and of a window. Return whether it was not loaded before.

        What is known here already does not change.
        """
        ask: dict[str, Any] = {
            "subject": subject,
            "granted": str(funds.granted),
            "grants": funds.grants,
            "spent": str(funds.spent),
            "number": funds.number,
        }
        if window:
            ask |= {"window": window, "window_spent": str(funds.windows.get(window, 0))}
        return bool((await self._scheduler.call("load_balance", ask))["loaded"])

    async def due(
        self, most: int, pause_ms: int, *, all_due: bool = False
    ) -> tuple[str, list[tuple[str, Balance, int]]]:
        """Return the balances to be compared with SQL now: the newest entry of the outbox ('' = none); and of at most `most`
        subjects how they stand, and for how long (ms) nothing has happened. They are due again in `pause_ms`.

        `all_due`: all are due now.
        """
        reply, *packed = await self._scheduler.run(
            "list_due_balances", {"most": most, "pause_ms": pause_ms, "all": all_due}
        )
        said = decode_map(reply)
        found = [
            (subject, Balance(decode_map(fields)), idle)
            for (subject, idle), fields in zip(said["due"], packed, strict=True)
        ]
        return said["newest"], found

    async def adjust(
        self, subject: str, compared: Balance, funds: Funds, spent: int, windows: Mapping[str, int]
    ) -> bool:
        """Correct a balance that was `compared`: SQL's grants hold, and tasks have cost `spent` more, and `windows` more.

        Return False if it has changed meanwhile."""
        ask = {
            "subject": subject,
            "mark": compared.mark,
            "number": funds.number,
            "granted": str(funds.granted),
            "grants": funds.grants,
            "spent": str(spent),
            "windows": {window: str(more) for window, more in windows.items()},
        }
        return bool((await self._scheduler.call("adjust_balance", ask))["done"])

    async def evict(self, subject: str, compared: Balance) -> bool:
        """Forget a balance that SQL knows as well. False: something has happened meanwhile."""
        ask = {"subject": subject, "mark": compared.mark, "forget": str(compared.number)}
        return bool((await self._scheduler.call("adjust_balance", ask))["done"])
