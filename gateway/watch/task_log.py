"""Lines in the log for tasks that failed or were cancelled, for rejected calls, for fallbacks, and for circuit breakers."""

from collections.abc import Iterable

import structlog

from fairlane.queues.failures import category_of
from fairlane.queues.logs.rate_limited import RateLimitedLogger
from fairlane.queues.logs.redaction import for_operators
from fairlane.queues.metrics import BREAKER_CHANGES, TaskEnd
from fairlane.queues.tasks import State
from fairlane.web.history.recorder import HistoryRecorder

log = structlog.get_logger("fairlane.tasks")


class LoggingRecorder(HistoryRecorder):
    """The metrics of the process, which also writes the log lines."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        super().__init__(models)
        self._failed = RateLimitedLogger()
        self._cancelled = RateLimitedLogger()
        self._rejected = RateLimitedLogger()
        self._unknown = RateLimitedLogger()
        self._beyond = RateLimitedLogger()
        self._fallbacks = RateLimitedLogger(burst=10, per_second=0.1)
        self._breakers = RateLimitedLogger()

    def failed(self, end: TaskEnd) -> None:
        super().failed(end)
        _log_end(self._failed, "task failed", end)

    def cancelled(self, end: TaskEnd) -> None:
        _log_end(self._cancelled, "task cancelled", end)

    def fell_back(self, model: str, other: str, cause: str, number: int = 1) -> None:
        super().fell_back(model, other, cause, number)
        event = "tasks fall back to another model"
        self._fallbacks.log(log.warning, event, model=model, to=other, cause=cause, tasks=number)

    def breaker_changed(self, model: str, upstream: str, what: str, why: str, ms: int) -> None:
        """Log and count that a breaker is `open` for `ms`, `closed`, or lets a task probe its upstream (`probing`)."""
        self.count(BREAKER_CHANGES, model, upstream, what)
        facts = {"open": {"reason": why, "open_ms": ms}}.get(what, {"reason": why} if why else {})
        level = log.warning if what == "open" else log.info
        event = {"open": "breaker opened", "closed": "breaker closed"}.get(
            what, "breaker probes its upstream"
        )
        self._breakers.log(level, event, model=model, upstream=upstream, **facts)

    def rejected_call(self, code: str, **facts: object) -> None:
        """Log a rejected call that may succeed later: there was no room, no worker, or no Redis."""
        self._rejected.log(log.info, "call rejected", code=code, **facts)

    def unknown_key(self, code: str, **facts: object) -> None:
        """Log a call with a key, token or signature that is invalid."""
        self._unknown.log(log.info, "call with an unknown key", code=code, **facts)

    def beyond_token(self, code: str, **facts: object) -> None:
        """Log a call that its token does not allow."""
        self._beyond.log(log.info, "call beyond its token", code=code, **facts)


def _log_end(logger: RateLimitedLogger, event: str, end: TaskEnd) -> None:
    task, facts = end.task, dict[str, object]()
    if task is not None:
        sentence = for_operators(end.code, task.sentence)
        facts = {
            "task_id": task.task_id,
            "request_id": task.request_id,
            "model": task.model,
            "queue": end.queue,
            "user": task.user,
            **({"stage": task.stage} if task.stage else {}),
            "worker_id": task.worker,
            "attempt": task.attempt,
            "waited_and_ran_ms": round(end.total_ms),
            **({"error": sentence} if sentence or end.state is State.FAILED else {}),
        }
    logger.log(log.info, event, code=end.code, category=category_of(end.code), **facts)
