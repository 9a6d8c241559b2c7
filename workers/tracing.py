"""Spans for OpenTelemetry, if an endpoint is set for them; and the header that ties them together, always.

Nothing of OpenTelemetry is imported before a tracer is opened. Spans are begun and ended by hand, in callbacks: no context
variables, nothing per token. They are sent by a thread, its queue is bounded, and an unavailable collector costs spans, not
tasks. OpenTelemetry's own variables hold for the rest: OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER,
OTEL_RESOURCE_ATTRIBUTES and so on.
"""

import asyncio
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
EXPORT_S = 3
"""How long one export may take, if no variable says otherwise; a process that ends waits for the last one."""

Attributes = Mapping[str, str | int | float | bool]

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def read_traceparent(text: str | None) -> str:
    """A `traceparent` header of W3C's Trace Context as it may be handed on; '' for anything else."""
    return text if text is not None and _TRACEPARENT.fullmatch(text) else ""


class TracingUnavailable(Exception):
    """An endpoint is set, but OpenTelemetry is not installed."""


class Span:
    """One span under way. `traceparent` makes others its children. The first `end` counts."""

    __slots__ = ("_ended", "_span", "traceparent")

    def __init__(self, span: "trace.Span") -> None:
        context = span.get_span_context()
        self._span = span
        self._ended = False
        self.traceparent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def set(self, attributes: Attributes) -> None:
        """Say more about it."""
        self._span.set_attributes(attributes)

    def event(self, name: str) -> None:
        """Something happened now."""
        self._span.add_event(name)

    def end(self, error: str = "", *, at_ns: int | None = None) -> None:
        """End the span; `error` is a failure code."""
        if self._ended:
            return
        self._ended = True
        if error:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415

            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR)
        self._span.end(at_ns)


class Tracer:
    """Makes spans and sends them. Open it with `open_tracer`, close it at the end."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("fairlane")

    def span(
        self, name: str, kind: str, parent: str, attributes: Attributes, *, begun_ns: int | None = None
    ) -> Span:
        """A span that begins now (or began then), under the span that `parent` (a traceparent, or '') names.

        `kind`: server, client, consumer or internal.
        """
        from opentelemetry.trace import SpanKind  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        context = TraceContextTextMapPropagator().extract({"traceparent": parent})
        span = self._tracer.start_span(name, context, SpanKind[kind.upper()], attributes, start_time=begun_ns)
        return Span(span)

    async def close(self) -> None:
        """Send the remaining spans, within the time of one export."""
        await asyncio.to_thread(self._provider.shutdown)


def open_tracer(endpoint: str, service: str, version: str) -> Tracer:
    """A tracer that sends to `endpoint`/v1/traces (OTLP over HTTP). Raise TracingUnavailable."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise TracingUnavailable(
            f"traces need the extra `otel`: pip install '.[otel]' where Fairlane was installed from ({error})"
        ) from None
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    resource = Resource.create({"service.name": name, "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    timeout = None if "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ else EXPORT_S
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=timeout)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracer(provider)
