"""A line in the log each minute in which something waits, runs, ends or is refused: for who has nothing but the log.

The numbers of tasks and workers are those of the whole store, what ended and was refused is this process's.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Protocol

import structlog

from fairlane.queues.errors import StoreError
from fairlane.queues.loops import end_tasks, run_periodically
from fairlane.queues.metrics import TASKS_ENDED, TASKS_REJECTED, Recorder
from fairlane.queues.survey.survey import Lane, Model, Survey, Surveyor
from fairlane.queues.tasks import State

log = structlog.get_logger("fairlane.gateway")

MINUTE_S = 60.0
AGAIN_S = 600.0
"""How often the same model is told that nobody offers."""
MOST_USERS, TOP_USERS = 1000, 3
MOST_TOLD = 5
"""Such models in one minute."""
LONG_S = 60.0
"""From when on the longest running task is named, and the one that has given no sign for longest."""


class Running(Protocol):
    """A task that runs here."""

    @property
    def grant(self) -> Any: ...

    @property
    def worker(self) -> Any: ...

    @property
    def silent_since(self) -> float | None: ...

    started_at: float


class Minutes:
    """Writes the lines. `running`: the attempts here; `also` tells more each minute; `now` in seconds, as their `started_at`."""

    def __init__(
        self,
        replica: str,
        metrics: Recorder,
        surveyor: Surveyor,
        running: Callable[[], Iterable[Running]],
        now: Callable[[], float] = time.monotonic,
        *,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        self._replica = replica
        self._metrics = metrics
        self._surveyor = surveyor
        self._running = running
        self._also = also
        self._now = now
        self._before: Counter[tuple[str, ...]] = Counter()
        self._users: Counter[str] = Counter()
        self._told: dict[str, float] = {}
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._writing = run_periodically(
            "minutes", MINUTE_S, self._write, expected=(StoreError,), delay_s=MINUTE_S
        )

    async def close(self) -> None:
        """End."""
        await end_tasks(self._writing)

    async def _write(self) -> None:
        self._also()
        self.note(await self._surveyor.recent())

    def refused(self, user: str) -> None:
        """A task of this user was refused. Counted by user for the first thousand users of a minute."""
        if user in self._users or len(self._users) < MOST_USERS:
            self._users[user] += 1

    def note(self, survey: Survey) -> None:
        """Write what the minute was like that ends now."""
        ended, failed, refused = self._since()
        users, self._users = self._users, Counter()
        waiting = sum(queue.waiting for queue in survey.queues)
        running = sum(model.running for model in survey.models)
        if waiting or running or ended or refused:
            oldest_ms = max((queue.oldest_wait_ms or 0 for queue in survey.queues), default=0)
            log.info(
                "the last minute",
                replica=self._replica,
                waiting=waiting,
                running=running,
                oldest_wait_s=round(oldest_ms / 1000),
                workers=len(survey.workers),
                ended=ended,
                failed=failed,
                refused=refused,
                refused_most=dict(users.most_common(TOP_USERS)),
                **self._longest(),
                **_blocked(survey.lanes),
            )
        self._tell_unserved(survey.models, survey.lanes)

    def _since(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """What ended by state, failed by code, and was rejected by code, since this was called last."""
        counts: Counter[tuple[str, ...]] = Counter()
        for key, count in self._metrics.values[TASKS_ENDED.name].items():
            _, _, state, code, _ = key
            counts["ended", state] += int(count)
            if state == State.FAILED:
                counts["failed", code] += int(count)
        for (_, _, code), count in self._metrics.values[TASKS_REJECTED.name].items():
            counts["refused", code] += int(count)
        news = counts - self._before
        self._before = counts
        ended, failed, refused = (
            {name: count for (kind, name), count in news.items() if kind == wanted}
            for wanted in ("ended", "failed", "refused")
        )
        return ended, failed, refused

    def _longest(self) -> dict[str, Any]:
        running = list(self._running())
        ages = {
            "longest": [(attempt.started_at, attempt) for attempt in running],
            "silent": [
                (since, attempt) for attempt in running if (since := attempt.silent_since) is not None
            ],
        }
        told: dict[str, Any] = {}
        for what, since_when in ages.items():
            since, attempt = min(since_when, key=itemgetter(0), default=(self._now(), None))
            if attempt is not None and (lasts_s := self._now() - since) >= LONG_S:
                told[f"{what}_s"] = round(lasts_s)
                told[f"{what}_task"], told[f"{what}_worker"] = attempt.grant.task_id, attempt.worker.id
        return told

    def _tell_unserved(self, models: Iterable[Model], lanes: Iterable[Any]) -> None:
        now = self._now()
        unserved = [model for model in models if model.unserved and not model.running]
        self._told = {name: at for name, at in self._told.items() if now - at < AGAIN_S}
        oldest: Counter[str] = Counter()
        for lane in lanes:
            oldest[lane.model] = max(oldest[lane.model], lane.oldest_wait_ms or 0)
        news = [model for model in unserved if model.model not in self._told]
        for model in sorted(news, key=lambda model: -model.waiting)[:MOST_TOLD]:
            self._told[model.model] = now
            log.warning(
                "tasks wait for a model that no worker offers",
                model=model.model,
                waiting=model.waiting,
                oldest_wait_s=round(oldest[model.model] / 1000),
            )


def _blocked(lanes: Iterable[Lane]) -> dict[str, Any]:
    """How many tasks wait that cannot start, by the reason; nothing where all can."""
    counts: Counter[str] = Counter()
    for lane in lanes:
        if lane.blocked:
            counts[lane.blocked.value] += lane.waiting
    return {"blocked": dict(counts)} if counts else {}
