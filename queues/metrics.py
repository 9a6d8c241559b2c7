"""What is counted while tasks pass: one small interface for all layers, and its implementation inside one process.

Nothing here knows Prometheus. An observation costs a dictionary lookup and an addition (histograms: a bisection over fixed
bounds). Labels are bounded: no users, no task ids; of models the first `MOST_MODELS` keep their names.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from fairlane.queues.failures import family_of
from fairlane.queues.tasks import State, Used

MOST_MODELS = 100
MOST_CODES = 100
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


def sentence_of(error: bytes) -> str:
    """The sentence of an `error` event's data; '' of anything else."""
    try:
        return _failure.decode(error).error
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""


class TaskEnd(msgspec.Struct, frozen=True):
    """How a task ended, told by whoever ended it. Durations in ms."""

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
    """Whose it was: for those who count by user, which metrics do not."""
    worker: str = ""
    """Name of the worker that ended it, `version 1` for all that have none; '' when somebody else did."""


class EndLabels(NamedTuple):
    """The labels under which tasks that end alike are counted."""

    ended: tuple[str, ...]
    duration: tuple[str, ...]
    run: tuple[str, ...]
    read: tuple[str, ...]
    wrote: tuple[str, ...]
    per_token: tuple[str, ...]


class Metrics(Protocol):
    """Where the layers tell what happens. Every method returns at once and never fails."""

    def accepted(self, queue: str, model: str) -> None:
        """A task was accepted."""

    def refused(self, queue: str, model: str, reason: str) -> None:
        """A task was refused at once; nothing of it is left."""

    def resubmitted(self, outcome: str) -> None:
        """Somebody submitted with an idempotency key that is known: `joined` a task under way, `replayed` one that has ended,
        `gone` one that is not kept any more, or `conflict`: for another request."""

    def granted(self, queue: str, model: str, waited_ms: float) -> None:
        """A task was granted for the first time."""

    def began_output(self, model: str, task_type: str, since_ms: float) -> None:
        """The first output of a task came, so long after its submission."""

    def returned(self, queue: str, model: str, cause: str) -> None:
        """A granted task went back to its queue. `cause`: lost, failed, declined, or lease (nobody renewed it)."""

    def held(self, model: str) -> None:
        """A provider said: not before; its model starts nothing until then."""

    def fell(self, model: str, other: str, cause: str, number: int = 1) -> None:
        """So many tasks went on from a model to another one. `cause`: failed (an attempt), or unavailable (nobody
        offers the model, or it is held, paced or paused)."""

    def repaired(self, model: str, outcome: str) -> None:
        """An answer that did not match its schema was asked for again. `outcome`: begun; then mended, or failed: the second one
        does not match either."""

    def permit(self, outcome: str) -> None:
        """A proxy asked whether a request may pass. `in`: it may; `needed`: it has no permit; `invalid`: that is not genuine;
        `used`; `over`: its time is."""

    def webhook(self, outcome: str, number: int = 1) -> None:
        """Requests of webhooks were `taken`, `refused` by their receivers, or `failed`: there was no answer. Deliveries were
        `given_up`; a webhook is `off`."""

    def batch_ended(self, status: str, completed: int, failed: int, not_run: int) -> None:
        """A batch has ended, and so many of its lines were answered, failed, or were not carried out."""

    def batch_left(self) -> None:
        """Something failed in a batch that nobody thought of: it is left for a while, and taken up again."""

    def storage_failed(self, cause: str) -> None:
        """The storage of files did not do what it was asked for: `full`, or anything else, `failed`."""

    def response_kept(self, size: int) -> None:
        """A response was written down that is to be kept, of so many bytes; 0: it could not be."""

    def breaker(self, model: str, upstream: str, became: str) -> None:
        """The breaker of a model's upstream is `open` or `closed` now, or lets a task probe it: `probing`."""

    def ended(self, end: TaskEnd) -> None:
        """A task ended. Told once per task, over all replicas."""

    def dropped(self, number: int) -> None:
        """Ended tasks were dropped before their time, because all of them together took too much room."""

    def recorded(self, number: int) -> None:
        """Records were written to SQL that were not there before."""

    def put_right(self, credits: float) -> None:
        """A balance differed from the ledger by so many credits, and was put right."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """An HTTP answer is over, streams included. `status`: 499 when the caller left before it began."""

    def store_emptied(self) -> None:
        """The store has come back empty: all of its tasks are lost."""

    def store_replied(self, seconds: float) -> None:
        """Redis answered a command."""

    def store_connected(self) -> None:
        """The connection to Redis is up (again)."""

    def loop_stalled(self, *, computing: bool) -> None:
        """The event loop stood still for long: it computed, or it waited for the processor or a system call."""

    def connection_refused(self, reason: str) -> None:
        """A connection was turned away: `limit` or `address`."""


@dataclass(slots=True)
class Counter:
    """A sum per combination of labels."""

    name: str
    labels: tuple[str, ...]
    help: str
    values: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, key: tuple[str, ...], amount: float = 1) -> None:
        self.values[key] = self.values.get(key, 0) + amount


@dataclass(slots=True)
class Histogram:
    """Numbers of observations between fixed bounds, and their sum, per combination of labels.

    A row holds one number per bound (observations up to it, and above the one before), one for those above all, and the sum.
    """

    name: str
    labels: tuple[str, ...]
    help: str
    bounds: tuple[float, ...]
    values: dict[tuple[str, ...], list[float]] = field(default_factory=dict)

    def observe(self, key: tuple[str, ...], value: float) -> None:
        row = self.values.get(key)
        if row is None:
            row = self.values[key] = [0.0] * (len(self.bounds) + 2)
        row[bisect_left(self.bounds, value)] += 1
        row[-1] += value


# OpenTelemetry's advice for generative AI, continued to how long tasks may wait here.
_DURATIONS = (*(0.01 * 2**n for n in range(14)), 163.84, 327.68, 655.36)
_FIRST_OUTPUT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    30,
    60,
    120,
    300,
    600,
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKENS = tuple(4.0**n for n in range(14))
_WAITS = (0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 10_800)
_RUNS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_CALLS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STORE = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)

_OPERATION, _MODEL = "gen_ai_operation_name", "gen_ai_request_model"


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
            if known is name:
                self._known[name] = name
        return known

    def peek(self, name: str) -> str:
        """The label for a name that anybody may have made up: it does not become known."""
        return self._known.get(name, OTHER)


_GIVEN_UP = {"given_up": "delivery", "off": "webhook"}


class Recorder:
    """The metrics of one process, from its beginning. `models` are known from the start, as far as they fit."""

    def __init__(self, models: Iterable[str] = ()) -> None:
        task = ("queue", "model")
        self._model = Names(MOST_MODELS)
        self._code = Names(MOST_CODES)
        self._upstream = Names(MOST_MODELS)
        self.accepted_tasks = Counter("fairlane_tasks_accepted_total", task, "Tasks that were accepted")
        self.refused_tasks = Counter(
            "fairlane_tasks_refused_total",
            (*task, "reason"),
            "Tasks that were refused at once; nothing was kept of them",
        )
        self.resubmitted_tasks = Counter(
            "fairlane_tasks_resubmitted_total",
            ("outcome",),
            "Submissions whose idempotency key was known: its task was joined, replayed or gone, or another one was asked for",
            {(outcome,): 0 for outcome in ("joined", "replayed", "gone", "conflict")},
        )
        self.returned_tasks = Counter(
            "fairlane_tasks_returned_total",
            (*task, "cause"),
            "Times that a granted task went back to its queue",
        )
        self.ended_tasks = Counter(
            "fairlane_tasks_ended_total",
            (*task, "state", "code", "family"),
            "Tasks that ended, by state, failure code and the code's family",
        )
        self.model_holds = Counter(
            "fairlane_model_holds_total",
            ("model",),
            "Times that a provider asked to be left alone for a while",
        )
        self.fallen_tasks = Counter(
            "fairlane_fallbacks_total",
            ("model", "to", "cause"),
            "Tasks that went on to another model, because an attempt failed or theirs started nothing",
        )
        self.repairs = Counter(
            "fairlane_repairs_total",
            ("model", "outcome"),
            "Answers that did not match their schema and were asked for again: begun, mended, failed",
        )
        self.permit_checks = Counter(
            "fairlane_permit_checks_total",
            ("outcome",),
            "Requests to endpoints that proxies asked about: let in, or refused and why",
            {(outcome,): 0 for outcome in ("in", "needed", "invalid", "used", "over")},
        )
        self.webhook_requests = Counter(
            "fairlane_webhook_requests_total",
            ("outcome",),
            "Requests of webhooks: taken, refused by their receivers, or failed, without an answer",
            {(outcome,): 0 for outcome in ("taken", "refused", "failed")},
        )
        self.given_up_webhooks = Counter(
            "fairlane_webhooks_given_up_total",
            ("what",),
            "Deliveries that nobody took in all their time, and webhooks that were switched off as they failed",
            {(what,): 0 for what in ("delivery", "webhook")},
        )
        self.ended_batches = Counter(
            "fairlane_batches_ended_total",
            ("status",),
            "Batches that ended: completed, failed, expired, cancelled",
            {(status,): 0 for status in ("completed", "failed", "expired", "cancelled")},
        )
        self.batch_lines = Counter(
            "fairlane_batch_lines_total",
            ("outcome",),
            "Lines of batches that ended: completed, failed, not_run",
            {(outcome,): 0 for outcome in ("completed", "failed", "not_run")},
        )
        self.batches_left = Counter(
            "fairlane_batches_left_total",
            (),
            "Times that a batch was left for a while, as something failed that nobody thought of",
            {(): 0},
        )
        self.storage_failures = Counter(
            "fairlane_storage_failures_total",
            ("cause",),
            "Times that the storage of files did not do what it was asked for: it was full, or failed otherwise",
            {(cause,): 0 for cause in ("full", "failed")},
        )
        self.kept_responses = Counter(
            "fairlane_responses_kept_total",
            ("outcome",),
            "Responses to be kept that were written to the SQL database, and those that could not be",
            {(outcome,): 0 for outcome in ("written", "refused")},
        )
        self.kept_response_bytes = Counter(
            "fairlane_response_bytes_kept_total", (), "Bytes of their requests", {(): 0}
        )
        self.breaker_changes = Counter(
            "fairlane_breaker_changes_total",
            ("model", "upstream", "became"),
            "Breakers that opened or closed, and tasks that probed an upstream",
        )
        self.dropped_results = Counter(
            "fairlane_results_dropped_total",
            (),
            "Ended tasks that were dropped before their time, as together they took more than max_retained_bytes",
            {(): 0},  # a first one is seen to be one more, here and below
        )
        self.written_records = Counter(
            "fairlane_records_written_total",
            (),
            "Records that were written to the SQL database: ended tasks, archived results, what operators did, refusals",
        )
        self.balances_put_right = Counter(
            "fairlane_balances_put_right_total",
            (),
            "Balances in Redis that were not what the ledger says, and were put right",
            {(): 0},
        )
        self.credits_put_right = Counter(
            "fairlane_credits_put_right_total", (), "Credits by which they differed, up or down", {(): 0}
        )
        self.waiting_time = Histogram(
            "fairlane_task_queue_seconds", task, "Time from a task's submission to its first grant", _WAITS
        )
        self.run_time = Histogram(
            "fairlane_task_run_seconds", (*task, "state"), "Time from a task's last grant to its end", _RUNS
        )
        self.request_duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            (_OPERATION, _MODEL, "error_type"),
            "Time from a task's submission to its end",
            _DURATIONS,
        )
        self.first_output = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            (_OPERATION, _MODEL),
            "Time from a task's submission to its first output",
            _FIRST_OUTPUT,
        )
        self.per_token = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            (_OPERATION, _MODEL),
            "Time per output token behind the first one, of completed tasks",
            _PER_TOKEN,
        )
        self.tokens = Histogram(
            "gen_ai_client_token_usage",
            (_OPERATION, _MODEL, "gen_ai_token_type"),
            "Tokens of input and of output per task that a worker ended",
            _TOKENS,
        )
        self.answers = Histogram(
            "fairlane_http_request_duration_seconds",
            ("method", "route", "status"),
            "Time from a request to the end of its answer, streams included",
            _CALLS,
        )
        self.store_replies = Histogram(
            "fairlane_redis_reply_seconds", (), "Time from a command to Redis's reply", _STORE
        )
        self.store_connections = Counter(
            "fairlane_redis_connections_total", (), "Connections to Redis that came to be used"
        )
        self.store_emptyings = Counter(
            "fairlane_redis_emptied_total",
            (),
            "Times that Redis came back empty, so that all tasks were lost",
            {(): 0},
        )
        self.loop_stalls = Counter(
            "fairlane_loop_stalls_total",
            ("cause",),
            "Times that the event loop stood still for more than 250 ms: computing, or waiting for the processor",
            {("computing",): 0, ("waiting",): 0},
        )
        self.refused_connections = Counter(
            "fairlane_connections_refused_total", ("reason",), "Connections that were turned away"
        )
        self.series = [made for made in vars(self).values() if isinstance(made, Counter | Histogram)]
        """All of these, in their order."""
        self._store_row = self.store_replies.values[()] = [0.0] * (len(_STORE) + 2)
        for model in models:
            self._model(model)

    def label(self, model: str) -> str:
        """What stands for a model in labels."""
        return self._model(model)

    def accepted(self, queue: str, model: str) -> None:
        self.accepted_tasks.add((queue, self._model(model)))

    def refused(self, queue: str, model: str, reason: str) -> None:
        self.refused_tasks.add((queue, self._model.peek(model), reason))

    def resubmitted(self, outcome: str) -> None:
        self.resubmitted_tasks.add((outcome,))

    def granted(self, queue: str, model: str, waited_ms: float) -> None:
        self.waiting_time.observe((queue, self._model(model)), max(waited_ms, 0) / 1000)

    def began_output(self, model: str, task_type: str, since_ms: float) -> None:
        key = (OPERATIONS.get(task_type, OTHER), self._model(model))
        self.first_output.observe(key, max(since_ms, 0) / 1000)

    def returned(self, queue: str, model: str, cause: str) -> None:
        self.returned_tasks.add((queue, self._model(model), cause))

    def held(self, model: str) -> None:
        self.model_holds.add((self._model(model),))

    def fell(self, model: str, other: str, cause: str, number: int = 1) -> None:
        self.fallen_tasks.add((self._model(model), self._model(other), cause), number)

    def may_fall(self, moves: Iterable[tuple[str, str]]) -> None:
        """Tasks may go on from these models to those: a first one is then seen to be one more."""
        for model, other in sorted(moves):
            for cause in ("failed", "unavailable"):
                self.fallen_tasks.add((self._model(model), self._model(other), cause), 0)

    def repaired(self, model: str, outcome: str) -> None:
        self.repairs.add((self._model(model), outcome))

    def permit(self, outcome: str) -> None:
        self.permit_checks.add((outcome,))

    def webhook(self, outcome: str, number: int = 1) -> None:
        if outcome in _GIVEN_UP:
            self.given_up_webhooks.add((_GIVEN_UP[outcome],), number)
        else:
            self.webhook_requests.add((outcome,), number)

    def batch_ended(self, status: str, completed: int, failed: int, not_run: int) -> None:
        self.ended_batches.add((status,))
        for outcome, number in (("completed", completed), ("failed", failed), ("not_run", not_run)):
            self.batch_lines.add((outcome,), number)

    def batch_left(self) -> None:
        self.batches_left.add(())

    def storage_failed(self, cause: str) -> None:
        self.storage_failures.add((cause,))

    def response_kept(self, size: int) -> None:
        self.kept_responses.add(("written" if size else "refused",))
        self.kept_response_bytes.add((), size)

    def breaker(self, model: str, upstream: str, became: str) -> None:
        self.breaker_changes.add((self._model(model), self._upstream(upstream), became))

    def ended(self, end: TaskEnd) -> None:
        self.count_end(end, self.labels_of(end))

    def labels_of(self, end: TaskEnd) -> EndLabels:
        """The labels of all tasks with the same queue, model, type, state and code."""
        model, code, state = self._model(end.model), self._code(end.code) if end.code else "", end.state.value
        operation = OPERATIONS.get(end.task_type, OTHER)
        failed = "" if end.state is State.COMPLETED else code or state
        return EndLabels(
            (end.queue, model, state, code, family_of(end.code)),
            (operation, model, failed),
            (end.queue, model, state),
            (operation, model, "input"),
            (operation, model, "output"),
            (operation, model),
        )

    def count_end(self, end: TaskEnd, labels: EndLabels) -> None:
        """Count a task that ended, whose labels are known."""
        self.ended_tasks.add(labels.ended)
        self.request_duration.observe(labels.duration, max(end.total_ms, 0) / 1000)
        if end.ran_ms >= 0:
            self.run_time.observe(labels.run, end.ran_ms / 1000)
        read, wrote = end.used.input, end.used.output
        if read >= 0:
            self.tokens.observe(labels.read, read)
        if wrote >= 0:
            self.tokens.observe(labels.wrote, wrote)
        if wrote > 1 and end.wrote_ms >= 0 and end.state is State.COMPLETED:
            self.per_token.observe(labels.per_token, end.wrote_ms / 1000 / (wrote - 1))

    def dropped(self, number: int) -> None:
        self.dropped_results.add((), number)

    def recorded(self, number: int) -> None:
        if number:
            self.written_records.add((), number)

    def put_right(self, credits: float) -> None:
        self.balances_put_right.add(())
        self.credits_put_right.add((), credits)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self.answers.observe((method, route, str(status)), seconds)

    def store_emptied(self) -> None:
        self.store_emptyings.add(())

    def store_replied(self, seconds: float) -> None:
        row = self._store_row
        row[bisect_left(_STORE, seconds)] += 1
        row[-1] += seconds

    def store_connected(self) -> None:
        self.store_connections.add(())

    def loop_stalled(self, *, computing: bool) -> None:
        self.loop_stalls.add(("computing" if computing else "waiting",))

    def connection_refused(self, reason: str) -> None:
        self.refused_connections.add((reason,))
