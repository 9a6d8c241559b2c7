"""A collector of OpenTelemetry traces for tests (OTLP over HTTP), and an upstream that remembers what it was asked."""

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Seen:
    """One span that arrived."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, Any]
    events: list[str]
    service: str


@dataclass
class Heard:
    """What a server was sent so far."""

    url: str
    spans: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Seen:
        [span] = self.named(name)
        return span


@contextlib.contextmanager
def collector() -> Iterator[Heard]:
    """Takes traces at `url`/v1/traces."""

    def answer(heard: Heard, path: str, body: bytes) -> tuple[str, bytes]:
        assert path == "/v1/traces", path
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _values(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                heard.spans += [_seen(span, service) for span in scope.spans]
        return "application/x-protobuf", ExportTraceServiceResponse().SerializeToString()

    with _server(answer) as heard:
        yield heard


@contextlib.contextmanager
def upstream() -> Iterator[Heard]:
    """Answers every chat with the same stream."""

    def answer(_: Heard, path: str, body: bytes) -> tuple[str, bytes]:
        assert path == "/chat/completions", path
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        chunks = [
            {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": end}], "usage": None}
            for text, end in (("one ", None), ("two", "stop"))
        ]
        lines = [json.dumps({"object": "chat.completion.chunk", **chunk}) for chunk in chunks]
        lines += [json.dumps({"object": "chat.completion.chunk", "choices": [], "usage": usage}), "[DONE]"]
        return "text/event-stream", "".join(f"data: {line}\n\n" for line in lines).encode()

    with _server(answer) as heard:
        yield heard


@contextlib.contextmanager
def _server(answer: Any) -> Iterator[Heard]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.headers.append({name.lower(): value for name, value in self.headers.items()})
            kind, content = answer(heard, self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard = Heard(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _seen(span: Any, service: str) -> Seen:
    return Seen(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
        _values(span.attributes),
        [event.name for event in span.events],
        service,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in attributes}
