"""What the target saw, judged. Pure."""

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fairlane.queues.windows import Window

MIN_USED = 0.98
"""Of the windows, while callers wait: 49 of 50."""
MAX_UNEVEN = 0.05
"""Between the user who got most and the one who got least, as a share of what each should have."""


@dataclass(frozen=True)
class Seen:
    """A request that the target got: when (us), of whom, and by which way."""

    at_us: int
    user: str
    way: str = ""


@dataclass(frozen=True)
class Report:
    """A run: `seen` in order; `measured`: those from the first to the last instant at which callers of all users waited."""

    windows: Sequence[Window]
    seen: Sequence[Seen]
    measured: Sequence[Seen]
    wrong: Sequence[str]

    def most_within(self, window: Window) -> int:
        """The most requests within any such time: it begins with one of them."""
        return len(self._fullest(window))

    def over(self, window: Window) -> int:
        """Requests that came though the window before them was full."""
        instants = [request.at_us for request in self.seen]
        begins = (bisect.bisect_right(instants, at - 1000 * window.ms) for at in instants)
        return sum(at - begin >= window.requests for at, begin in enumerate(begins))

    def _fullest(self, window: Window) -> Sequence[Seen]:
        instants = [request.at_us for request in self.seen]
        ends = (bisect.bisect_left(instants, at + 1000 * window.ms) for at in instants)
        begin, end = max(enumerate(ends), key=lambda span: span[1] - span[0], default=(0, 0))
        return self.seen[begin:end]

    def used(self, window: Window) -> float:
        """How much of a window was used, on average: by how long whole windows took, one behind the other."""
        whole = (len(self.measured) - 1) // window.requests * window.requests
        if not whole:
            return 0.0
        return (
            whole * 1000 * window.ms / (self.measured[whole].at_us - self.measured[0].at_us) / window.requests
        )

    @property
    def by_user(self) -> Counter[str]:
        """How many requests of each user came."""
        return Counter(request.user for request in self.measured)

    @property
    def unevenness(self) -> float:
        """What the user who got most has more than the one who got least, as a share of the mean."""
        counts = self.by_user.values()
        return (max(counts) - min(counts)) * len(counts) / sum(counts) if counts else 0.0

    def passed(self) -> list[str]:
        """Which windows held more than they may."""
        most = [(window, self.most_within(window)) for window in self.windows]
        return [f"{n} requests within {w.ms} ms, not {w.requests}" for w, n in most if n > w.requests]

    def wasted(self) -> list[str]:
        """What was not used though callers waited, and who got less than others."""
        least = max(self.used(window) for window in self.windows)
        found = [] if least >= MIN_USED else [f"{least:.1%} of the windows were used"]
        if self.unevenness > MAX_UNEVEN:
            found.append(f"users differ by {self.unevenness:.1%}: {dict(self.by_user)}")
        return found

    def render(self) -> str:
        """For people."""
        lines = [f"{len(self.seen)} requests, {len(self.measured)} of them measured"]
        for window in self.windows:
            lines.append(
                f"at most {self.most_within(window)} within any {window.ms} ms, of {window.requests}; "
                f"{self.used(window) * window.requests:.2f} on average; {self.over(window)} came too early"
            )
        lines += [f"{user}: {number}" for user, number in sorted(self.by_user.items())]
        ways = Counter(request.way for request in self.measured)
        lines += [f"by {way}: {number}" for way, number in sorted(ways.items()) if way]
        lines.append(f"users differ by {self.unevenness:.1%}")
        return "\n".join([*lines, *self.wrong[:10]])
