"""The spans of a task on its way through a replica: its wait, and each attempt."""

import time

from fairlane.queues.metrics import OPERATIONS
from fairlane.queues.tasks import Grant, State, Used
from fairlane.workers.server.pool.worker import Worker
from fairlane.workers.server.tasks.attempt import Attempt
from fairlane.workers.server.tasks.hook import AttemptHook
from fairlane.workers.tracing import Attributes, Tracer


def trace_wait(tracer: Tracer, grant: Grant) -> None:
    """The span of a wait that ends now. By our clock: the store's may differ."""
    now_ns = time.time_ns()
    waited_ns = max(grant.granted_ms - grant.enqueued_ms, 0) * 1_000_000
    attributes = {
        "fairlane.queue": grant.queue,
        "gen_ai.request.model": grant.asked,
        "fairlane.task.id": grant.task_id,
    }
    span = tracer.span("queue", "internal", grant.traceparent, attributes, begun_ns=now_ns - waited_ns)
    span.end(at_ns=now_ns)


class SpanHook(AttemptHook[Attempt]):
    """The span of an attempt that begins now."""

    __slots__ = ("_span",)

    def __init__(self, tracer: Tracer, grant: Grant, worker: Worker) -> None:
        operation = OPERATIONS.get(grant.task_type, grant.task_type)
        attributes: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "fairlane",
            "gen_ai.request.model": grant.asked,
            "fairlane.task.id": grant.task_id,
            "fairlane.queue": grant.queue,
            "fairlane.attempt": grant.attempt,
            "fairlane.worker.id": worker.id,
            "fairlane.worker.name": worker.name,
        }
        self._span = tracer.span(f"{operation} {grant.asked}", "client", grant.traceparent, attributes)

    def sends(self, attempt: Attempt, payload: bytes) -> bytes:
        attempt.traceparent = self._span.traceparent
        return payload

    def first_output(self, attempt: Attempt) -> None:
        self._span.event("first_output")

    def stopped(self, attempt: Attempt, why: str) -> None:
        self._span.end(why)

    def ended(self, attempt: Attempt, state: State, code: str, used: Used) -> Used:
        if used.input >= 0:
            self._span.set({"gen_ai.usage.input_tokens": used.input})
        if used.output >= 0:
            self._span.set({"gen_ai.usage.output_tokens": used.output})
        self._span.end("" if state is State.COMPLETED else code or state.value)
        return used

    def left(self, attempt: Attempt) -> None:
        self._span.end()
