"""What an attempt to deliver comes to: when the next one is, and how the webhook as a whole stands. Pure.

Two clocks: each delivery has waits of its own, which grow; and a webhook whose receiver took none of the last attempts rests as
a whole, so that one delivery at a time asks whether it is there again, however many wait.
"""

from typing import NamedTuple

import msgspec

GROWS = 3
LONGEST_WAIT_MS = 24 * 3_600_000
LONGEST_RETRY_AFTER_MS = 24 * 3_600_000
RESTS_AFTER = 3
"""Attempts that fail one after the other before the webhook rests."""
LONGEST_REST_MS = 3_600_000
SPREAD = 0.2
"""How much a wait may be shorter or longer, by chance."""
LOGGED = 20
"""The last attempts of a delivery, which its log tells."""
GONE = 410


class Policy(NamedTuple):
    """How failures are met, ms."""

    retry_ms: int
    give_up_ms: int
    off_after_ms: int


class Attempt(NamedTuple):
    """One request, and what came of it."""

    at: int
    """When it began, ms since 1970."""
    took_ms: int
    status: int | None
    """None: there was no answer."""
    error: str
    """What went wrong, a sentence; empty where it was taken."""
    retry_after_ms: int = 0
    """When the receiver wants to be asked again; 0: it did not say."""

    @property
    def taken(self) -> bool:
        return not self.error

    @property
    def over(self) -> int:
        """When it ended, ms."""
        return self.at + self.took_ms


class WebhookHealth(NamedTuple):
    """How a webhook stands."""

    fails: int = 0
    """Attempts since the last one that was taken."""
    failing_since: int | None = None
    error: str = ""
    not_before: int = 0
    """When it is asked again."""
    off_why: str = ""
    """Why it is switched off now; empty: it is not."""

    @property
    def rests(self) -> bool:
        return self.fails >= RESTS_AFTER


def error_of(status: int) -> str:
    """What is wrong with an answer; empty: nothing."""
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"The receiver answered {status}: redirects are not followed."
    return f"The receiver answered {status}."


def next_try(attempt: Attempt, tries: int, began: int, policy: Policy, chance: float) -> int | None:
    """When a delivery is tried again that was not taken, ms; None: it is given up.

    `tries`: of this series, with this one; `began`: when that began. `chance`: from 0 to 1. The last try is when the time is
    over.
    """
    end = began + policy.give_up_ms
    if attempt.over >= end:
        return None
    wait = min(policy.retry_ms * GROWS ** min(tries - 1, 30), LONGEST_WAIT_MS)
    wait = max(_spread(wait, chance), min(attempt.retry_after_ms, LONGEST_RETRY_AFTER_MS))
    return min(attempt.over + wait, end)


def health_after(
    before: WebhookHealth, attempts: list[Attempt], policy: Policy, chance: float
) -> WebhookHealth:
    """How a webhook stands after attempts that were made at the same time: that any was taken counts."""
    failed = [attempt for attempt in attempts if not attempt.taken]
    if not failed:
        return WebhookHealth() if attempts else before
    last = failed[-1]
    retry_after = min(max(attempt.retry_after_ms for attempt in failed), LONGEST_REST_MS)
    if len(failed) < len(attempts):
        return WebhookHealth(0, None, last.error, last.over + retry_after if retry_after else 0)
    fails = before.fails + len(failed)
    since = failed[0].at if before.failing_since is None else before.failing_since
    if any(attempt.status == GONE for attempt in failed):
        return WebhookHealth(fails, since, last.error, 0, "The receiver answered 410: it is gone.")
    if last.over - since >= policy.off_after_ms:
        return WebhookHealth(
            fails, since, last.error, 0, f"It failed for {_days(policy.off_after_ms)}: {last.error}"
        )
    rest = retry_after
    if fails >= RESTS_AFTER:
        wait = min(policy.retry_ms * 2 ** min(fails - RESTS_AFTER, 30), LONGEST_REST_MS)
        rest = max(rest, _spread(wait, chance))
    return WebhookHealth(fails, since, last.error, last.over + rest if rest else 0)


def logged(log: str, attempt: Attempt) -> str:
    """The log of a delivery, with one attempt more."""
    known = msgspec.json.decode(log, type=list[dict[str, int | str | None]]) if log else []
    known.append(
        {"at": attempt.at, "tookMs": attempt.took_ms, "httpStatus": attempt.status, "error": attempt.error}
    )
    return msgspec.json.encode(known[-LOGGED:]).decode()


def _spread(wait: int, chance: float) -> int:
    return max(round(wait * (1 - SPREAD + 2 * SPREAD * chance)), 1)


def _days(ms: int) -> str:
    hours = ms / 3_600_000
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:.3g} hours"
