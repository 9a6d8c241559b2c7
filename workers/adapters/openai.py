"""Runs tasks on an OpenAI-compatible upstream: vLLM, Ollama, llama.cpp, DeepSeek, GLM, OpenAI itself."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
from msgspec import Raw

from fairlane.workers.adapters.chunks import (
    Answer,
    ChunkReader,
    StreamError,
    is_null,
    of_the_answer,
    usage_of,
)
from fairlane.workers.adapters.failures import (
    Asked,
    from_status,
    from_stream,
    from_transport,
    unreadable,
    what_is_wrong,
)
from fairlane.workers.adapters.listing import read_models
from fairlane.workers.adapters.sse import EventParser, EventTooLargeError
from fairlane.workers.adapters.steering import steering_member
from fairlane.workers.adapters.watch import Watch
from fairlane.workers.sdk import Context, Delta, Result, Task, TaskError, Usage, Worker
from fairlane.workers.sdk.backoff import requested_pause
from fairlane.workers.sdk.handlers import ANY_MODEL
from fairlane.workers.secrets import check_secret

PATHS = {
    "openaiLike": "/chat/completions",
    "openaiCompletion": "/completions",
    "openaiEmbedding": "/embeddings",
}
CONNECT_TIMEOUT_S = 10.0
MAX_ERROR_BYTES = 64 * 1024
MAX_LIST_BYTES = 1024 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
LINGER_S = 0.25
CHECK_TIMEOUT_S = 5.0
DOUBTFUL = frozenset(
    {
        "UPSTREAM_ERROR",
        "UPSTREAM_TRUNCATED",
        "MODEL_TOO_BUSY",
        "CONNECT_TIMEOUT",
        "FIRST_TOKEN_TIMEOUT",
        "STREAM_STALLED",
        "TOTAL_TIMEOUT",
        "UPSTREAM_TIMEOUT",
    }
)
"""Failures after which the upstream is asked whether it works."""

Output = Delta | Usage | Result


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an upstream may take, in milliseconds.

    `ttft_ms` to the first output (FIRST_TOKEN_TIMEOUT) and `idle_ms` between two signs of life (STREAM_STALLED; before the first
    output FIRST_TOKEN_TIMEOUT) hold for streams, `total_ms` for all tasks (TOTAL_TIMEOUT); the task's own remaining time shortens
    them, and when that is over no retry helps. A connection has CONNECT_TIMEOUT_S (CONNECT_TIMEOUT).
    """

    ttft_ms: int = 60_000
    idle_ms: int = 30_000
    total_ms: int = 300_000


class OpenAIAdapter:
    """A handler for the task types `openaiLike`, `openaiCompletion` and `openaiEmbedding`.

    `base_url` is what precedes `/chat/completions`, with its version (`http://localhost:11434/v1`). `models`
    are the names to offer, or a map from the name offered to the upstream's name; `"*"` offers any and passes
    names through. The payload goes out as it came, except `model`, `stream` (as the task says) and, for a
    stream, `stream_options.include_usage`. A payload with a member that would steer the upstream to another
    server, key or model fails with BAD_REQUEST (`steering.py`), unless `allow_fields` names it. `transport`
    replaces httpx's own, for tests or for speed. A cancelled task closes its upstream connection at once.

    Attached to a worker, it asks the upstream for its models at the start, after a failure that may be the upstream's, and
    until it answers again; meanwhile the worker says that it is unhealthy. What the upstream tells of its models (whose they are,
    how much context they have), the worker tells the gateway.
    """

    def __init__(
        self,
        *,
        base_url: str,
        models: Iterable[str] | Mapping[str, str],
        api_key: str | None = None,
        limits: Limits | None = None,
        headers: Mapping[str, str] | None = None,
        allow_fields: Iterable[str] = (),
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        url = httpx.URL(base_url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"{base_url!r} is not a base URL; write for example http://localhost:11434/v1.")
        check_secret(api_key or "", "The upstream's key")
        self.models = list(models)
        self._base_url = base_url.rstrip("/")
        self._upstream_names = dict(models) if isinstance(models, Mapping) else {}
        self._api_key = api_key or None
        self._limits = limits or Limits()
        self._headers = dict(headers or {})
        self._allowed = frozenset(allow_fields)
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._watch: Watch | None = None
        self._worker: Worker | None = None
        self._shown_url = str(url.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")

    def attach(self, worker: Worker) -> None:
        """Make this adapter a handler of `worker` and let its connections end with the worker."""
        worker.handler(models=self.models, task_types=list(PATHS))(self)
        self._worker = worker

        @worker.on_startup
        async def begin(_: SimpleNamespace) -> None:
            self._watch = Watch(self.check, worker.report, random.Random())  # noqa: S311 (spreads questions)
            await self._watch.begin()

        @worker.on_shutdown
        async def close(_: SimpleNamespace) -> None:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connections to the upstream; a later task opens new ones."""
        if self._watch is not None:
            self._watch.close()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def check(self) -> str:
        """Why the upstream does not work, in its own words; '' when it does. It has CHECK_TIMEOUT_S to answer what models it has.

        Any answer will do but a server's failure: not every upstream has that call, and not every key may make it.
        """
        where = f"{self._shown_url}/models"
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                request = self._http().build_request("GET", self._base_url + "/models")
                response = await self._http().send(request, stream=True)
                try:
                    body = b""
                    async for part in response.aiter_bytes():
                        body += part
                        if len(body) > MAX_LIST_BYTES:
                            break
                finally:
                    await response.aclose()
        except TimeoutError:
            return f"{where} did not answer within {CHECK_TIMEOUT_S:.0f} s"
        except httpx.HTTPError as error:
            return f"{where}: {from_transport(error, streaming=False).message}"
        if response.status_code == 200 and self._worker is not None:
            told = read_models(body)
            for name in self.models:
                info = told.get(self._upstream_names.get(name, name))
                if info is not None:
                    self._worker.describe(name, context_length=info.context_length, owned_by=info.owned_by)
        wrong = what_is_wrong(response.status_code, body)
        if self._api_key:
            wrong = wrong.replace(self._api_key, "***")
        return f"{where} {wrong}" if wrong else ""

    async def __call__(self, task: Task, context: Context) -> AsyncGenerator[Output, None]:
        """Run one task. Raises `TaskError` with the codes of `failures`."""
        if task.type not in PATHS:
            raise TaskError("BAD_REQUEST", f"This worker does not run tasks of type {task.type!r}.")
        stream = task.stream and task.type != "openaiEmbedding"
        clock = _Clock(self._limits, context.remaining(), stream=stream)
        request = self._http().build_request(
            "POST",
            self._base_url + PATHS[task.type],
            content=self._body(task, stream),
            headers={"traceparent": task.traceparent} if task.traceparent else None,
        )
        asked = self._asked(task)
        try:
            response = await self._send(request, clock)
            try:
                if response.status_code != 200:
                    body = await self._read_all(response, clock, MAX_ERROR_BYTES, cut=True)
                    raise from_status(response.status_code, body, requested_pause(response.headers), asked)
                if stream and "json" not in response.headers.get("Content-Type", ""):
                    async with contextlib.aclosing(self._stream(response, clock, asked)) as items:
                        async for item in items:
                            yield item
                else:
                    for item in self._whole(await self._read_all(response, clock, MAX_ANSWER_BYTES), asked):
                        yield item
            finally:
                await response.aclose()
        except TaskError as error:
            if self._watch is not None and error.code in DOUBTFUL and error.http_status != 429:
                self._watch.doubt()
            raise
        if self._watch is not None:
            self._watch.worked()

    # ---- the request -----------------------------------------------------------------------------

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **self._headers}
            if self._api_key is not None:
                headers["Authorization"] = f"Bearer {self._api_key}"
            self._client = httpx.AsyncClient(
                headers=headers,
                transport=self._transport,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            )
        return self._client

    def _body(self, task: Task, stream: bool) -> bytes:
        """The payload with our few changes; every other member keeps its bytes."""
        try:
            members = msgspec.json.decode(task.payload_bytes, type=dict[str, Raw])
        except msgspec.DecodeError as error:
            raise TaskError("BAD_REQUEST", f"The payload is not a JSON object: {error}") from error
        if (name := steering_member(members, self._allowed)) is not None:
            raise TaskError(
                "BAD_REQUEST",
                f"{name!r} is not taken from callers: it would direct the request to another server, key or model.",
            )
        body: dict[str, Any] = {**members, "model": self._asked(task).model}
        if task.type != "openaiEmbedding":
            body["stream"] = stream
            if stream:
                body["stream_options"] = _with_usage(members.get("stream_options"))
            else:
                body.pop("stream_options", None)  # upstreams refuse it without a stream
        return msgspec.json.encode(body)

    def _asked(self, task: Task) -> Asked:
        """Which model of which address a task is for."""
        model = self._upstream_names.get(task.model) or self._upstream_names.get(ANY_MODEL)
        named = task.model in self.models or model not in (ANY_MODEL, None)
        if model == ANY_MODEL or model is None:
            model = task.model
        return Asked(self._shown_url + PATHS[task.type], model, not named, self._api_key)

    async def _send(self, request: httpx.Request, clock: "_Clock") -> httpx.Response:
        try:
            async with clock.until_answer():
                return await self._http().send(request, stream=True)
        except TimeoutError as error:
            raise clock.failure() from error
        except httpx.HTTPError as error:
            raise from_transport(error, streaming=False) from error

    # ---- the answer ------------------------------------------------------------------------------

    async def _read_all(
        self, response: httpx.Response, clock: "_Clock", limit: int, *, cut: bool = False
    ) -> bytes:
        """The whole body; more than `limit` is cut off or, without `cut`, a failure."""
        body = bytearray()
        parts = response.aiter_bytes()
        while (part := await self._next(parts, clock, streaming=False)) is not None:
            body += part
            if len(body) > limit:
                if cut:
                    break
                raise unreadable(f"it has more than {limit} bytes")
        return bytes(body[:limit])

    def _whole(self, body: bytes, asked: Asked) -> list[Output]:
        """A complete answer: its usage, and itself as the result."""
        try:
            body.decode()
            answer = msgspec.json.decode(body, type=Answer)
            usage = None if is_null(answer.usage) else usage_of(answer.usage)
        except (ValueError, RecursionError) as error:
            raise unreadable(str(error)) from error
        if not is_null(answer.error):
            raise from_stream(answer.error, asked)
        return [*([usage] if usage is not None else []), Result(Raw(body))]

    async def _stream(
        self, response: httpx.Response, clock: "_Clock", asked: Asked
    ) -> AsyncGenerator[Output, None]:
        parser, reader = EventParser(), ChunkReader()
        parts = response.aiter_bytes()
        done = False
        while not done:
            part = await self._next(parts, clock, streaming=True)
            try:
                if part is None:
                    last = parser.close()
                    events = [] if last is None else [last]
                else:
                    events = parser.feed(part)
                for event in events:
                    if event.strip() == b"[DONE]":
                        done = True
                        break
                    for delta in reader.read(event):
                        clock.has_output = True
                        yield delta
            except StreamError as error:
                raise from_stream(error.error, asked) from error
            except (ValueError, RecursionError, EventTooLargeError) as error:
                if part is None:
                    break  # the last event was cut off
                raise unreadable(str(error)) from error
            if part is None:
                break
        if reader.timings is not None and clock.has_output:
            yield Delta(extra=of_the_answer({"timings": reader.timings}))
        if reader.usage is not None:
            yield reader.usage
        if not done and not reader.complete:
            raise TaskError("UPSTREAM_TRUNCATED", "The upstream's stream ended without its end.")
        if done:
            await _linger(parts)

    async def _next(self, parts: AsyncIterator[bytes], clock: "_Clock", *, streaming: bool) -> bytes | None:
        """The next bytes, or None at the end. The time limits count only while this waits."""
        try:
            async with clock.until_next():
                return await anext(parts, None)
        except TimeoutError as error:
            raise clock.failure() from error
        except httpx.HTTPError as error:
            raise from_transport(error, streaming=streaming or clock.has_output) from error


class _Clock:
    """The three limits of one request.

    They count only while something is awaited: a handler that is held up between two reads is not the
    upstream's silence.
    """

    def __init__(self, limits: Limits, remaining_s: float, *, stream: bool) -> None:
        self.has_output = False
        self._limits = limits
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._total_at = self._started + min(limits.total_ms / 1000, remaining_s)
        self._of_task = remaining_s * 1000 <= limits.total_ms
        self._limit = "TOTAL_TIMEOUT", ""

    def until_answer(self) -> asyncio.Timeout:
        """For the wait until the answer's head."""
        return self._sooner(*self._first_output())

    def until_next(self) -> asyncio.Timeout:
        """For one read of the answer's body."""
        if not self._stream:
            return self._sooner(None)
        idle_at = self._loop.time() + self._limits.idle_ms / 1000
        first_at, *first = self._first_output()
        if self.has_output or first_at is None or idle_at < first_at:
            sentence = f"The upstream was silent for {self._limits.idle_ms} ms."
            code = "STREAM_STALLED" if self.has_output else "FIRST_TOKEN_TIMEOUT"
            return self._sooner(idle_at, code, sentence)
        return self._sooner(first_at, *first)

    def failure(self) -> TaskError:
        """The failure for the limit that was waited for last."""
        code, sentence = self._limit
        return TaskError(code, sentence, retryable=not (code == "TOTAL_TIMEOUT" and self._of_task))

    def _first_output(self) -> tuple[float | None, str, str]:
        if not self._stream:
            return None, "", ""
        limit_ms = self._limits.ttft_ms
        sentence = f"The upstream gave no output within {limit_ms} ms."
        return self._started + limit_ms / 1000, "FIRST_TOKEN_TIMEOUT", sentence

    def _sooner(self, at: float | None, code: str = "", sentence: str = "") -> asyncio.Timeout:
        if at is None or self._total_at <= at:
            at, code = self._total_at, "TOTAL_TIMEOUT"
            sentence = f"The upstream was not done after {round((at - self._started) * 1000)} ms."
        self._limit = code, sentence
        return asyncio.timeout_at(at)


def _with_usage(options: Raw | None) -> dict[str, Any]:
    known: Any = None if options is None else msgspec.json.decode(options)
    return {**(known if isinstance(known, dict) else {}), "include_usage": True}


async def _linger(parts: AsyncIterator[bytes]) -> None:
    """Read the stream's end, which follows at once as a rule, so that the connection can be used again."""
    try:
        async with asyncio.timeout(LINGER_S):
            while await anext(parts, None) is not None:
                pass
    except (TimeoutError, httpx.HTTPError):
        return  # the answer is complete; only the connection is lost
