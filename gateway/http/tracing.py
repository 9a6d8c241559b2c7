"""The span of a request, and how its context reaches the task."""

import structlog

from fairlane import __version__
from fairlane.gateway.http.request import Request
from fairlane.gateway.settings import Settings
from fairlane.queues.tasks import TaskSpec
from fairlane.workers.tracing import Span, Tracer, TracingUnavailable, open_tracer, read_traceparent

log = structlog.get_logger("fairlane.gateway")


def tracer_for(settings: Settings) -> Tracer | None:
    """Return the tracer of the settings, if there is one. Without OpenTelemetry, log a warning and return None."""
    if settings.otlp_endpoint is None:
        return None
    try:
        return open_tracer(settings.otlp_endpoint, "fairlane-gateway", __version__)
    except TracingUnavailable as error:
        log.warning("no traces are sent", reason=str(error), endpoint=settings.otlp_endpoint)
        return None


def trace_request(tracer: Tracer, request: Request) -> Span:
    """Return the span of a request that begins, under the caller's own."""
    method = request.method
    attributes = {"http.request.method": method, "http.route": request.route}
    parent = read_traceparent(request.header(b"traceparent"))
    return tracer.span(f"{method} {request.route}", "server", parent, attributes)


def end_request(span: Span, status: int) -> None:
    """End the span of a request. `status`: 499 if the client left before the answer began."""
    span.set({"http.response.status_code": status})
    span.end(str(status) if status >= 500 else "")


def follow(request: Request, task: TaskSpec) -> None:
    """Make a task part of its request's trace, or of the client's if this gateway makes none."""
    span = request.span
    if span is None:
        if b"traceparent" in request.headers:
            task.traceparent = read_traceparent(request.header(b"traceparent"))
    else:
        task.traceparent = span.traceparent
        span.set({"fairlane.task.id": task.id, "gen_ai.request.model": task.model})
