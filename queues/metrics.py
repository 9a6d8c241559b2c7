"""The metrics that a process counts: one table of them, and the counts of one process.

An observation costs two dictionary look-ups and an addition (histograms: a bisection over fixed bounds), less than with
the objects of prometheus_client, which writes the answer to a scrape (`gateway/metrics`). Labels are bounded: no users, no task
ids; of models the first MAX_MODELS keep their names.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from fairlane.queues.failures import category_of
from fairlane.queues.tasks import State, Used

MAX_MODELS = 100
MAX_CODES = 100
OTHER = "other"
"""Stands for every model (task type, code) beyond those that keep their names."""

OPERATIONS = {"openaiLike": "chat", "openaiCompletion": "text_completion", "openaiEmbedding": "embeddings"}
"""Task types by OpenTelemetry's names of operations; others are counted as OTHER."""


class EndedTask(msgspec.Struct, frozen=True):
    """Which task ended, for the log."""

    task_id: str
    request_id: str
    user: str
    model: str
    """As its caller named it."""
    worker: str
    attempt: int
    sentence: str
    """What the caller reads; '' where it is not at hand."""
    stage: str = ""
    """Of a chain: the one that failed."""


class _Failure(msgspec.Struct):
    error: str = ""


_failure = msgspec.json.Decoder(_Failure)


def error_message_of(error: bytes) -> str:
    """The sentence of an `error` event's data; '' of anything else."""
    try:
        return _failure.decode(error).error
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""


class TaskEnd(msgspec.Struct, frozen=True):
    """How a task ended, as reported by the replica that ended it. Durations in ms."""

    queue: str
    model: str
    task_type: str
    state: State
    code: str
    """Failure code, CANCELLED included; '' when it completed."""
    total_ms: float
    """From its submission."""
    ran_ms: float = -1
    """From the last grant; -1 = it waited until its end."""
    wrote_ms: float = -1
    """From the first output; -1 = unknown, or there was none."""
    used: Used = Used()
    task: EndedTask | None = None
    user: str = ""
    """For components that count by user, which metrics do not."""
    worker: str = ""
    """Name of the worker that ended it, `version 1` for all that have none; '' if no worker did."""


class Metric(NamedTuple):
    """A counter, or with `bounds` a histogram."""

    name: str
    labels: tuple[str, ...]
    help: str
    first: tuple[str, ...] = ()
    """Values of its label that are shown as 0 from the start, so that a first event is seen to be one more."""
    bounds: tuple[float, ...] = ()


# OpenTelemetry's advice for generative AI, continued to how long tasks may wait here.
_DURATIONS = (*(0.01 * 2**n for n in range(14)), 163.84, 327.68, 655.36)
_FIRST_OUTPUT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(30, 60, 120, 300, 600),
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKENS = tuple(4.0**n for n in range(14))
_WAITS = (0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 10_800)
_RUNS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_CALLS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STORE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)

_TASK, _GEN_AI = ("queue", "model"), ("gen_ai_operation_name", "gen_ai_request_model")

# fmt: off
TASKS_ACCEPTED = Metric("fairlane_tasks_accepted_total", _TASK, "Accepted tasks")
TASKS_REJECTED = Metric("fairlane_tasks_rejected_total", (*_TASK, "code"), "Rejected tasks, by error code")
TASKS_RESUBMITTED = Metric(
    "fairlane_tasks_resubmitted_total", ("outcome",), "Submissions with a known idempotency key",
    ("joined", "replayed", "gone", "conflict"))
TASKS_RETURNED = Metric("fairlane_tasks_returned_total", (*_TASK, "cause"), "Granted tasks that returned to their queue: lost, failed, declined, repair, lease")
TASKS_ENDED = Metric(
    "fairlane_tasks_ended_total", (*_TASK, "status", "code", "category"), "Ended tasks: completed, failed or cancelled; with error code and category")
MODEL_COOLDOWNS = Metric("fairlane_model_cooldowns_total", ("model",), "Cooldowns that a provider requested (429 with Retry-After)")
FALLBACKS = Metric("fairlane_fallbacks_total", ("model", "to", "cause"), "Tasks that fell back to another model: failed or unavailable")
USAGE_CORRECTED = Metric("fairlane_usage_corrections_total", ("model",), "Usage reports of workers that were impossible and were corrected")
REPAIRS = Metric(
    "fairlane_repairs_total", ("model", "outcome"), "Outputs that did not match their schema and were generated again: begun, repaired, failed")
PERMIT_CHECKS = Metric(
    "fairlane_permit_checks_total", ("outcome",), "Permits that proxies checked",
    ("allowed", "missing", "invalid", "used", "expired"))
WEBHOOK_REQUESTS = Metric("fairlane_webhook_requests_total", ("outcome",), "Webhook requests", ("accepted", "rejected", "failed"))
WEBHOOKS_GIVEN_UP = Metric(
    "fairlane_webhooks_given_up_total", ("kind",), "Deliveries that no receiver accepted, and webhooks disabled after failures", ("delivery", "webhook"))
BATCHES_ENDED = Metric(
    "fairlane_batches_ended_total", ("status",), "Ended batches", ("completed", "failed", "expired", "cancelled"))
BATCH_LINES = Metric("fairlane_batch_lines_total", ("outcome",), "Lines of ended batches", ("completed", "failed", "not_run"))
BATCH_ERRORS = Metric("fairlane_batch_errors_total", (), "Unexpected errors in a batch, which continues after ten seconds", ("",))
STORAGE_FAILURES = Metric("fairlane_storage_failures_total", ("cause",), "Failed operations of the file storage", ("full", "failed"))
RESPONSES_STORED = Metric("fairlane_responses_stored_total", ("outcome",), "Responses to store", ("written", "failed"))
RESPONSE_BYTES_STORED = Metric("fairlane_response_bytes_stored_total", (), "Request bytes of stored responses", ("",))
BREAKER_CHANGES = Metric(
    "fairlane_breaker_changes_total", ("model", "upstream", "status"), "Circuit breakers that became open or closed, and tasks that started as probes (probing)")
RESULTS_DROPPED = Metric(
    "fairlane_results_dropped_total", (), "Results dropped early to stay within max_retained_size", ("",))
RECORDS_WRITTEN = Metric("fairlane_records_written_total", (), "Records written to the SQL database: tasks, archived results, audit log entries, rejections")
BALANCES_CORRECTED = Metric("fairlane_balances_corrected_total", (), "Balances in Redis that differed from the ledger and were corrected", ("",))
CREDITS_CORRECTED = Metric("fairlane_credits_corrected_total", (), "Credits by which balances were corrected, up or down", ("",))
QUEUE_TIME = Metric("fairlane_task_queue_seconds", _TASK, "Submission to first grant", bounds=_WAITS)
RUN_TIME = Metric("fairlane_task_run_seconds", (*_TASK, "status"), "Last grant to end", bounds=_RUNS)
REQUEST_DURATION = Metric(
    "gen_ai_server_request_duration_seconds", (*_GEN_AI, "error_type"), "Submission to end", bounds=_DURATIONS)
FIRST_OUTPUT = Metric("gen_ai_server_time_to_first_token_seconds", _GEN_AI, "Submission to first output", bounds=_FIRST_OUTPUT)
PER_TOKEN = Metric(
    "gen_ai_server_time_per_output_token_seconds", _GEN_AI, "Time per output token after the first, of completed tasks",
    bounds=_PER_TOKEN)
TOKENS = Metric("gen_ai_client_token_usage", (*_GEN_AI, "gen_ai_token_type"), "Tokens per task", bounds=_TOKENS)
HTTP_REQUESTS = Metric(
    "fairlane_http_request_duration_seconds", ("method", "route", "status"), "Request to the end of its response, streams included; status 499: the client disconnected before it started",
    bounds=_CALLS)
REDIS_REPLIES = Metric("fairlane_redis_reply_seconds", (), "Command to Redis's reply", ("",), _STORE)
REDIS_CONNECTIONS = Metric("fairlane_redis_connections_total", (), "Connections opened to Redis")
REDIS_EMPTIED = Metric("fairlane_redis_emptied_total", (), "Times that Redis restarted empty, with all tasks lost", ("",))
LOOP_STALLS = Metric("fairlane_loop_stalls_total", ("cause",), "Stalls of the event loop above 250 ms: computing (the gateway itself) or waiting (the machine)", ("computing", "waiting"))
CONNECTIONS_REJECTED = Metric("fairlane_connections_rejected_total", (), "Connections rejected because the process, or their address, had the maximum open")
# fmt: on
METRICS = tuple(one for one in vars().values() if isinstance(one, Metric))
"""All of these, in their order."""


class Names:
    """Bounds the names of one kind: the first `most` stay, the rest is OTHER. It never forgets one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """The label for a name, which counts as known from now on."""
        known = self._known.get(name)
        if known is None:
            known = name if len(self._known) < self._most else OTHER
            if known != OTHER:
                self._known[name] = name
        return known

    def peek(self, name: str) -> str:
        """The label for a name that anybody may have made up: it does not become known."""
        return self._known.get(name, OTHER)


class Recorder:
    """The metrics of one process, from its start. `models` are known from the start, as far as they fit.

    `values` has for each metric the numbers by labels: of a counter its sum; of a histogram a row of the observations in each
    bucket, those above all bounds, and the sum.
    """

    def __init__(self, models: Iterable[str] = ()) -> None:
        self._model, self._code, self._upstream = Names(MAX_MODELS), Names(MAX_CODES), Names(MAX_MODELS)
        names = {"model": self._model, "to": self._model, "code": self._code, "upstream": self._upstream}
        self.values: dict[str, dict[tuple[str, ...], Any]] = {}
        self._bounded: dict[str, list[Names | None]] = {}
        for metric in METRICS:
            rows = self.values[metric.name] = {}
            for value in metric.first:
                rows[(value,) if metric.labels else ()] = (
                    [0.0] * (len(metric.bounds) + 2) if metric.bounds else 0
                )
            if names.keys() & {*metric.labels}:
                self._bounded[metric.name] = [names.get(label) for label in metric.labels]
        for model in models:
            self._model(model)

    def label(self, model: str) -> str:
        """Return the label of a model."""
        return self._model(model)

    def count(self, metric: Metric, *labels: str, number: float = 1) -> None:
        """Add to a counter."""
        bounded = self._bounded.get(metric.name)
        if bounded:
            labels = tuple(
                names(label) if names else label for names, label in zip(bounded, labels, strict=True)
            )
        rows = self.values[metric.name]
        rows[labels] = rows.get(labels, 0) + number

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        """Add an observation to a histogram. Its labels are bounded already."""
        rows = self.values[metric.name]
        row = rows.get(labels)
        if row is None:
            row = rows[labels] = [0.0] * (len(metric.bounds) + 2)
        row[bisect_left(metric.bounds, value)] += 1
        row[-1] += value

    def accepted(self, queue: str, model: str) -> None:
        """Count a task that was accepted."""
        self.count(TASKS_ACCEPTED, queue, model)

    def rejected(self, queue: str, model: str, code: str) -> None:
        """Count a task that was not accepted. Its model becomes no label, as clients make names up."""
        self.count(TASKS_REJECTED, queue, self._model.peek(model), code)

    def granted(self, queue: str, model: str, waited_ms: float) -> None:
        """Count the first grant of a task."""
        self.observe(QUEUE_TIME, max(waited_ms, 0) / 1000, queue, self._model(model))

    def began_output(self, model: str, task_type: str, since_ms: float) -> None:
        """Count the first output of a task."""
        operation = OPERATIONS.get(task_type, OTHER)
        self.observe(FIRST_OUTPUT, max(since_ms, 0) / 1000, operation, self._model(model))

    def fell_back(self, model: str, other: str, cause: str, number: int = 1) -> None:
        """Count tasks that fell back to another model. `cause`: failed (an attempt), or unavailable."""
        self.count(FALLBACKS, model, other, cause, number=number)

    def declare_fallbacks(self, moves: Iterable[tuple[str, str]]) -> None:
        """Show fallbacks between these models as 0."""
        for model, other in sorted(moves):
            for cause in ("failed", "unavailable"):
                self.count(FALLBACKS, model, other, cause, number=0)

    def ended(self, end: TaskEnd) -> None:
        """Count a task that ended: once, over all replicas."""
        model, code, state = self._model(end.model), self._code(end.code) if end.code else "", end.state.value
        kind = OPERATIONS.get(end.task_type, OTHER), model
        ended, labels = self.values[TASKS_ENDED.name], (end.queue, model, state, code, category_of(end.code))
        ended[labels] = ended.get(labels, 0) + 1
        failed = "" if end.state is State.COMPLETED else code or state
        self.observe(REQUEST_DURATION, max(end.total_ms, 0) / 1000, *kind, failed)
        if end.ran_ms >= 0:
            self.observe(RUN_TIME, end.ran_ms / 1000, end.queue, model, state)
        read, wrote = end.used.input, end.used.output
        if read >= 0:
            self.observe(TOKENS, read, *kind, "input")
        if wrote >= 0:
            self.observe(TOKENS, wrote, *kind, "output")
        if wrote > 1 and end.wrote_ms >= 0 and end.state is State.COMPLETED:
            self.observe(PER_TOKEN, end.wrote_ms / 1000 / (wrote - 1), *kind)
