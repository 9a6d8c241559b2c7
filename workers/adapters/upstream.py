"""Runs tasks on an upstream, in its dialect: one request each, with time limits, over httpx2."""

import contextlib
import functools
import hmac
import logging
import math
import random
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from types import SimpleNamespace

import httpx2

from fairlane.workers.adapters.answer import Answer
from fairlane.workers.adapters.clock import Clock, Limits
from fairlane.workers.adapters.dialects.base import Call, Dialect, Output
from fairlane.workers.adapters.failures import (
    CallTarget,
    UpstreamFailure,
    from_status,
    from_transport,
    what_is_wrong,
)
from fairlane.workers.adapters.listing import read_models
from fairlane.workers.adapters.quirks import PER_USER, Quirks, learn, merged
from fairlane.workers.adapters.watch import Watch
from fairlane.workers.hosts import client_options, is_loopback
from fairlane.workers.protocol import ModelInfo
from fairlane.workers.sdk import Context, Task, TaskError, Worker
from fairlane.workers.sdk.handlers import ANY_MODEL
from fairlane.workers.secrets import check_secret
from fairlane.workers.tasktypes import TEXT

log = logging.getLogger("fairlane.worker")

CONNECT_TIMEOUT_S = 10.0
MAX_LIST_BYTES = 1024 * 1024
CHECK_TIMEOUT_MS = 5000
MAX_REPEATS = 4
"""Of a request that is rejected for what can be sent otherwise."""
MAX_MODELS = 256
"""Models whose quirks are remembered, if clients can name any."""
NEGOTIABLE = frozenset({"BAD_REQUEST", "UPSTREAM_ERROR"})
"""Failures of a request that the upstream may take otherwise: llama.cpp answers 500 for what its model's template rejects."""
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


class Upstream:
    """A handler for the task types that `dialect` can say.

    `base_url` is what precedes the dialect's paths, with its version (`http://localhost:11434/v1`). `models`
    are the names to offer, or a map from the name offered to the upstream's name; `"*"` offers any and passes
    names through. `task_types`: what it offers, if not what its dialect says by itself: media only
    where they are named here, as not every upstream has them. `quirks`: what it takes otherwise than OpenAI's reference
    (`quirks.py`), to which this adds what it learns from rejections. `transport` replaces httpx2's own,
    for tests or for speed. A cancelled task closes its upstream connection immediately.

    Attached to a worker, it asks the upstream for its models at the start, after a failure that may be the upstream's, and
    until it answers again; meanwhile the worker says that it is unhealthy. What the upstream reports about its models (owner,
    context length), the worker reports to the gateway.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        base_url: str,
        models: Iterable[str] | Mapping[str, str],
        api_key: str | None = None,
        task_types: Iterable[str] | None = None,
        limits: Limits | None = None,
        headers: Mapping[str, str] | None = None,
        quirks: Quirks | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        url = httpx2.URL(base_url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"{base_url!r} is not a base URL; write for example http://localhost:11434/v1.")
        check_secret(api_key or "", "The upstream's key")
        self.models = list(models)
        self.task_types = _known_types(dialect, task_types)
        self._dialect = dialect
        self._base_url = base_url.rstrip("/")
        self._upstream_names = dict(models) if isinstance(models, Mapping) else {}
        self._api_key = api_key or None
        self._limits = limits or Limits()
        self._headers = dict(headers or {})
        self._quirks = dict(quirks or {})
        self._salt = (api_key or "").encode() or secrets.token_bytes(16)
        """Keys the hashes of `per_user` quirks; workers with the same key of the upstream make the same ones."""
        self._learnt: dict[str, Quirks] = {}
        """By the upstream's names of models."""
        self._transport = transport
        self._client: httpx2.AsyncClient | None = None
        self._watch: Watch | None = None
        self._worker: Worker | None = None
        self.name = _name_of(url)
        """Distinguishes this upstream from others: workers of the same upstream have the same name."""
        self._shown_url = str(url.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")

    def attach(self, worker: Worker) -> None:
        """Make this adapter a handler of `worker` and let its connections end with the worker."""
        worker.handler(models=self.models, task_types=list(self.task_types))(self)
        self._worker = worker
        worker.upstream = worker.upstream or self.name
        worker.wants_user = worker.wants_user or PER_USER in self._quirks.values()

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
        """Return why the upstream does not work, in its own words, or ''. It has CHECK_TIMEOUT_MS to list its models.

        Any answer will do but a server's failure: not every upstream has that call, and not every key may make it.
        """
        where = f"{self._shown_url}{self._dialect.models_path}"
        try:
            status, body = await self._ask_for_models()
        except TaskError as error:
            return f"{where}: {error.message}"
        if status == 200 and self._worker is not None:
            listed = read_models(body)
            for name in self.models:
                info = listed.get(self._upstream_names.get(name, name))
                if info is not None:
                    self._worker.describe(name, context_length=info.context_length, owned_by=info.owned_by)
        wrong = what_is_wrong(status, body)
        if self._api_key:
            wrong = wrong.replace(self._api_key, "***")
        return f"{where} {wrong}" if wrong else ""

    def upstream_name(self, model: str) -> str:
        """What the upstream calls a model that callers name so."""
        known = self._upstream_names.get(model) or self._upstream_names.get(ANY_MODEL)
        return model if known is None or known == ANY_MODEL else known

    async def list_models(self) -> dict[str, ModelInfo]:
        """The models that the upstream lists, by its names. Raise `TaskError`."""
        status, body = await self._ask_for_models()
        if not 200 <= status < 300:
            asked = CallTarget(self._shown_url + self._dialect.models_path, "", secret=self._api_key)
            raise from_status(status, body, None, asked)
        return read_models(body)

    async def _ask_for_models(self) -> tuple[int, bytes]:
        """Status and body, cut at MAX_LIST_BYTES. Raise `TaskError` when there is none in time."""
        clock = Clock(Limits(total_ms=CHECK_TIMEOUT_MS), math.inf, stream=False)
        request = self._http().build_request("GET", self._base_url + self._dialect.models_path)
        async with contextlib.aclosing(await self._send(request, clock)) as response:
            return response.status_code, await Answer(response, clock).body(MAX_LIST_BYTES, cut=True)

    async def __call__(self, task: Task, context: Context) -> AsyncGenerator[Output, None]:
        """Run one task. Raise `TaskError` with the codes of `failures`."""
        if task.type not in self.task_types:
            raise TaskError("BAD_REQUEST", f"This worker does not run tasks of type {task.type!r}.")
        model = self.upstream_name(task.model)
        callers_choice = task.model not in self.models and model == task.model
        requests = _Requests(functools.partial(self._call, task, model), task)
        clock = Clock(self._limits, context.remaining(), stream=requests.call.stream)
        has_output = False
        while True:
            call = requests.call
            asked = CallTarget(self._shown_url + call.path, model, callers_choice, self._api_key)
            try:
                response = await self._send(self._request(call, task, context), clock)
                context.sent()  # where the transport does not report it
                async with (
                    contextlib.aclosing(response),
                    contextlib.aclosing(Answer(response, clock).items(call, asked)) as items,
                ):
                    async for item in items:
                        if requests.learnt and not has_output:
                            self._remember(model, requests.learnt)
                        has_output = True
                        yield item
                break
            except TaskError as error:
                failure = error if has_output else requests.change(error)
                if failure is None:
                    continue
                if self._watch is not None and failure.code in DOUBTFUL and failure.http_status != 429:
                    self._watch.doubt()
                raise failure from failure.__cause__
        if self._watch is not None:
            self._watch.worked()

    # ---- the request -----------------------------------------------------------------------------

    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            headers |= {**self._headers, **self._dialect.headers(self._api_key)}
            self._client = httpx2.AsyncClient(
                headers=headers,
                transport=self._transport,
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
                **client_options(self._base_url),
            )
        return self._client

    def _call(self, task: Task, model: str, learnt: Quirks) -> Call:
        """Return the request. Raise `TaskError` for a task that has none."""
        quirks = merged(merged(self._quirks, self._learnt.get(model, {})), learnt)
        for name in [name for name, value in quirks.items() if value == PER_USER]:
            user = (task.user or task.task_id).encode()
            quirks[name] = "=" + hmac.digest(self._salt, user, "sha256").hex()[:32]
        try:
            return self._dialect.call(task, model, quirks=quirks, now=time.time())
        except (
            ValueError,
            RecursionError,
        ) as error:  # an address that is none, a number beyond all: no failure of ours
            raise TaskError(
                "BAD_REQUEST", f"The payload cannot be encoded for the upstream: {error}."
            ) from error

    def _remember(self, model: str, news: Quirks) -> None:
        """Use what was learnt for all later tasks of the model, log it once, and report it to the gateway."""
        known = {name for learnt in self._learnt.values() for name in learnt.items()}
        self._learnt[model] = merged(self._learnt.pop(model, {}), news)
        if len(self._learnt) > MAX_MODELS:
            del self._learnt[next(iter(self._learnt))]
        for name, instead in news.items() - known:
            log.warning(
                "the upstream %s rejects what quirk %s=%s changes (model %s); it is applied from now on",
                *(self.name, name, instead, model),
            )
        if self._worker is not None:
            rows = {
                f"{name}={value}": None for learnt in self._learnt.values() for name, value in learnt.items()
            }
            self._worker.tag("quirks", " ".join(rows))

    def _request(self, call: Call, task: Task, context: Context) -> httpx2.Request:
        headers = {"Content-Type": call.content_type}
        if task.traceparent:
            headers["traceparent"] = task.traceparent
        extensions = _telling(context) if task.tell_sent else None
        url = self._base_url + call.path
        return self._http().build_request(
            "POST", url, content=call.body, headers=headers, extensions=extensions
        )

    async def _send(self, request: httpx2.Request, clock: Clock) -> httpx2.Response:
        try:
            async with clock.until_answer():
                return await self._http().send(request, stream=True)
        except TimeoutError as error:
            raise clock.failure() from error
        except httpx2.HTTPError as error:
            raise from_transport(error, streaming=False) from error


class _Requests:
    """The requests of one task: the first one, and others after rejections of what can be sent otherwise."""

    def __init__(self, make: Callable[[Quirks], Call], task: Task) -> None:
        self._make, self._task = make, task
        self.call = make({})
        self.learnt: Quirks = {}
        """By rejections; they hold if the present request succeeds."""
        self._tried = {self.call.body}
        self._failure: TaskError | None = None

    def change(self, failure: TaskError) -> TaskError | None:
        """Set the next request after a failure without output. Return the failure of the task if there is none: of the first of
        two requests that only rename what the upstream rejects by each of its names."""
        found: Quirks = {}
        if isinstance(failure, UpstreamFailure) and failure.code in NEGOTIABLE and self._task.type in TEXT:
            found = learn(failure.said, self._task.payload_bytes)
        calls = {name: self._make(merged(self.learnt, {name: found[name]})) for name in found}
        effective = {name: found[name] for name, call in calls.items() if call.body not in self._tried}
        if not effective or len(self._tried) > MAX_REPEATS:
            return self._failure if self._failure and found.keys() & {*self.learnt.values()} else failure
        self.learnt, self._failure = merged(self.learnt, effective), failure
        self.call = self._make(self.learnt)
        self._tried.add(self.call.body)
        return None


def _known_types(dialect: Dialect, asked: Iterable[str] | None) -> tuple[str, ...]:
    """Return the task types to offer. Raise `ValueError` for one that the API format does not have."""
    if asked is None:
        return dialect.task_types
    types = tuple(dict.fromkeys(asked))
    known = (*dialect.task_types, *dialect.named_types)
    for task_type in types:
        if task_type not in known:
            raise ValueError(f"{task_type!r} is not a task type of this upstream; use {', '.join(known)}.")
    if not types:
        raise ValueError("task_types is empty; leave it out for the upstream's default types.")
    return types


def _telling(context: Context) -> dict[str, object]:
    """What has httpx2 say when the whole request has left."""

    async def trace(event: str, _: object) -> None:
        if event.endswith(".send_request_body.complete"):
            context.sent()

    return {"trace": trace}


def _name_of(url: httpx2.URL) -> str:
    """Return host and port; a loopback name becomes this machine's name."""
    host = url.host
    if is_loopback(host):
        host = socket.gethostname() or host
    return f"{host}:{url.port}" if url.port else host
