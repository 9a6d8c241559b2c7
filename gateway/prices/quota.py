"""The quota of a key: who pays for its tasks, and from which budget; and when budgets renew. Pure."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

Per = Literal["day", "month"]

MAX_TEXTS = 10_000
"""The most that are cached."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of a key."""

    of_user: bool
    """Each user of a delegating key pays; else the key pays for all its users."""
    budget: int = 0
    """Micro-credits granted in each window; 0: none."""
    per: Per = "month"
    otherwise: str = ""
    """The tier in which a task runs that cannot be paid; empty: it is rejected."""

    def subject(self, key_id: str, user: str) -> str:
        """Return the payer of a task of this user, as the scripts name it (limits.lua)."""
        return f"u:{user}" if self.of_user else f"k:{key_id}"


class Terms(NamedTuple):
    """On which terms a task is submitted, packed, as the scheduler takes them; '' = it costs nothing."""

    price: str = ""
    quota: str = ""


FREE = Terms()


class Window(NamedTuple):
    """The window of a budget that is now, ms. A window is named by its end."""

    begin: int
    end: int
    next: int
    """The end of the next one."""


def window_at(per: Per, zone: ZoneInfo, now_ms: float) -> Window:
    """Return the calendar day or month of an instant, in a zone. Days are as long as the zone's clocks make them."""
    today = datetime.fromtimestamp(now_ms / 1000, zone).date()
    first = today if per == "day" else today.replace(day=1)
    second = _next(per, first)
    return Window(*(_midnight(day, zone) for day in (first, second, _next(per, second))))


def _next(per: Per, day: date) -> date:
    return day + timedelta(days=1) if per == "day" else (day + timedelta(days=31)).replace(day=1)


def _midnight(day: date, zone: ZoneInfo) -> int:
    """Return the first instant of a day, also if clocks skip midnight or midnight occurs twice."""
    return round(datetime.combine(day, time(), zone).astimezone(UTC).timestamp()) * 1000


class Budgets:
    """Packs quotas as `submit` takes them. Keeps each text for as long as its window lasts."""

    def __init__(self, zone: str = "UTC") -> None:
        self._zone = ZoneInfo(zone)
        self._texts: dict[Quota, tuple[float, float, str]] = {}

    def window(self, per: Per, now_ms: float) -> Window:
        """Return the current window."""
        return window_at(per, self._zone, now_ms)

    def text(self, quota: Quota, now_ms: float) -> str:
        """`k` (the key pays) or `u` (the user), and with a budget: how much, `d` or `m` (day, month), and the ends of the window
        before, of this one and of the next: Redis's clock decides which it is."""
        kept = self._texts.get(quota)
        if kept is None or not kept[0] <= now_ms < kept[1]:
            if len(self._texts) >= MAX_TEXTS:
                self._texts.clear()
            kept = self._texts[quota] = self._made(quota, now_ms)
        return kept[2]

    def _made(self, quota: Quota, now_ms: float) -> tuple[float, float, str]:
        who = "u" if quota.of_user else "k"
        if not quota.budget:
            return 0, float("inf"), who
        begin, end, after = self.window(quota.per, now_ms)
        return begin, end, f"{who} {quota.budget} {quota.per[0]} {begin} {end} {after}"
