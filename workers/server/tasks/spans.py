"""The spans of a task on its way through a replica: its wait, and each attempt."""

import time

from fairlane.queues.metrics import OPERATIONS
from fairlane.queues.tasks import Grant, State, Used
from fairlane.workers.server.pool import Worker
from fairlane.workers.tracing import Attributes, Span, Tracer


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


def trace_attempt(tracer: Tracer, grant: Grant, worker: Worker) -> Span:
    """The span of an attempt that begins now."""
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
    return tracer.span(f"{operation} {grant.asked}", "client", grant.traceparent, attributes)


def trace_end(span: Span, state: State, code: str, used: Used) -> None:
    """An attempt ended its task."""
    for name, tokens in zip(
        ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"), used[:2], strict=True
    ):
        if tokens >= 0:
            span.set({name: tokens})
    span.end("" if state is State.COMPLETED else code or state.value)
