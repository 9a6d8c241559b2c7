"""The measurements: what runs against what, and which figures come out."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench import procstat
from bench.measures import Figure, Outcome, figure
from bench.profiling import Profiler
from bench.specs import LoadResult, LoadSpec, WorkerSpec
from bench.stack import Cores, Stack, Workers, running, until

CONNECTIONS = 64
BEAT_CONNECTIONS = 256
"""Of calls on a fixed beat: enough for what comes in two seconds in which the machine does something else."""
WORKERS = 8
LIMITS = {"requests_per_minute": 10_000_000, "tokens_per_minute": 10_000_000_000}
"""Of a key: they are counted, and never reached."""
WORK_DEADLINE_S = 120.0
BETWEEN_ROUNDS_S = 0.5
DISTURBED = 0.08
"""Cores' worth of other processes' work above which a round is repeated."""


@dataclass(frozen=True)
class Options:
    """How long and how often."""

    cores: Cores
    rounds: int = 3
    repeats: int = 0
    """Rounds that may be added when other processes disturb them; the least disturbed `rounds` count."""
    seconds: float = 5.0
    warm_up_s: float = 1.5
    idle_streams: int = 5000
    async_tasks: int = 12_000
    profiler: Profiler | None = None
    profile_to: Path | None = None


@dataclass
class Rounds:
    """The results of one scenario, and the figures made of them."""

    scenario: str
    results: list[LoadResult]
    figures: list[Figure] = field(default_factory=list)
    yardstick: list[LoadResult] = field(default_factory=list)
    """What the same load cost the yardstick, right after each round."""

    def add(self, name: str, unit: str, value: Callable[[LoadResult], float]) -> None:
        """One figure, from each round's result."""
        self.figures.append(figure(self.scenario, name, unit, [value(result) for result in self.results]))

    def add_ratio(self, name: str, value: Callable[[LoadResult], float]) -> None:
        """One figure as a multiple of the yardstick's, round by round."""
        pairs = zip(self.results, self.yardstick, strict=bool(self.yardstick))
        ratios = [value(result) / value(beside) for result, beside in pairs if value(beside) > 0]
        if ratios:
            self.figures.append(figure(self.scenario, name, "x", ratios))

    def add_tasks(self) -> None:
        """What tasks that are waited for took of time and of processors."""
        self.add("latency_p99_to_p50", "", lambda r: r.task.p99_ms / max(r.task.p50_ms, 1e-6))
        self.add("tasks_per_s", "tasks/s", lambda r: r.tasks / r.seconds)
        self.add("gateway_cpu_ms_per_task", "ms", cpu_ms_per_task)
        self.add("redis_cpu_ms_per_task", "ms", redis_ms_per_task)
        self.add("latency_p50_ms", "ms", lambda r: r.task.p50_ms)
        self.add("latency_p99_ms", "ms", lambda r: r.task.p99_ms)

    def add_cores(self) -> None:
        """CPU use of each process and of the rest of the machine: shows whether a measurement is clean."""
        for name in ("gateway", "redis", "workers", "load"):
            self.add(f"{name}_core", "%", lambda r, name=name: 100 * r.cpu_s[name] / r.seconds)  # type: ignore[misc]
        self.add("others", "%", lambda r: 100 * others(r))

    def outcome(self, about: str, profile: Sequence[str] = ()) -> Outcome:
        """What the scenario found."""
        error = next((result.error for result in self.results if result.error), "")
        errors = sum(result.errors for result in self.results)
        return Outcome(self.scenario, about, self.figures, errors, error, list(profile))


def others(result: LoadResult) -> float:
    """Cores' worth of work of processes that are not the benchmark's, at least (the clocks tick in 10 ms)."""
    used = sum(result.core_busy_s.values()) - sum(result.cpu_s.values())
    return round(max(used / result.seconds, 0.0), 4)


async def _rounds(
    name: str,
    options: Options,
    stack: Stack,
    measure: Callable[[], Awaitable[LoadResult]],
    seconds: float,
    yardstick: Callable[[], Awaitable[LoadResult]] | None = None,
) -> tuple[Rounds, list[str]]:
    """Several rounds of a measurement, each of about `seconds`, and behind each one of the yardstick, if there is one.

    Those that were disturbed are repeated. With a profiler there is one more, which does not count.
    """
    everything: list[tuple[LoadResult, LoadResult]] = []
    for _ in range(options.rounds + options.repeats):
        result = await measure()
        await asyncio.sleep(BETWEEN_ROUNDS_S)
        everything.append((result, await yardstick() if yardstick else result))
        if sum(_disturbance(pair) < DISTURBED for pair in everything) >= options.rounds:
            break
    kept = sorted(everything, key=_disturbance)[: options.rounds]
    profile: list[str] = []
    if options.profiler is not None and options.profile_to is not None:
        recording = asyncio.create_task(
            options.profiler.record(stack.pid, options.profile_to / f"{name}.txt", seconds)
        )
        try:
            await measure()
            profile = await recording
        finally:
            recording.cancel()
    beside = [pair[1] for pair in kept] if yardstick else []
    return Rounds(name, [pair[0] for pair in kept], yardstick=beside), profile


def _disturbance(pair: tuple[LoadResult, LoadResult]) -> float:
    return max(others(result) for result in pair)


# ---- sync ----------


async def _sync(
    name: str,
    about: str,
    options: Options,
    path: str,
    acknowledge: bool = True,
    *,
    sockets: int = 0,
    processes: int = 1,
) -> Outcome:
    """`sockets`: number of version 1 workers instead of four connections with slots."""
    async with running(options.cores, _processes(processes)) as stack:
        yardstick = await stack.yardstick()
        rss_before = procstat.rss_bytes(stack.pid)
        connections = 4 * processes  # each process has some of them
        worker = WorkerSpec(stack.port, connections, slots=CONNECTIONS // 4, acknowledge=acknowledge)
        if sockets:
            worker = WorkerSpec(stack.port, connections=sockets, slots=1, version=1)
        await stack.workers(worker)
        spec = LoadSpec(
            stack.port,
            "closed",
            CONNECTIONS,
            path,
            warm_up_s=options.warm_up_s,
            seconds=options.seconds,
            watch=stack.watch,
        )
        rounds, profile = await _rounds(
            name,
            options,
            stack,
            lambda: stack.load(spec),
            spec.warm_up_s + spec.seconds,
            lambda: stack.load(yardstick.aim(spec)),
        )
        worker_bytes = procstat.rss_bytes(stack.pid) - rss_before
    rounds.add_ratio("cpu_per_task_to_yardstick", cpu_ms_per_task)
    rounds.add_tasks()
    if sockets:
        rounds.figures.append(figure(name, "worker_kib", "KiB", [worker_bytes / 1024 / sockets]))
    rounds.add_cores()
    return rounds.outcome(about, profile)


async def sync(options: Options) -> Outcome:
    """Native sync calls, as many as go through."""
    return await _sync("sync", "native sync calls at saturation, 64 connections", options, "/api/openai")


async def sync_no_ack(options: Options) -> Outcome:
    """The same with a worker that sends its result without `taskAck`."""
    about = "the same, the worker sends no taskAck (an SDK worker does)"
    return await _sync("sync_no_ack", about, options, "/api/openai", acknowledge=False)


async def sync_openai(options: Options) -> Outcome:
    """OpenAI sync calls, as many as go through."""
    about = "/v1/chat/completions without stream at saturation, 64 connections"
    return await _sync("sync_openai", about, options, "/v1/chat/completions")


async def accounts(options: Options) -> Outcome:
    """Cost of authentication and limits: a gateway with keys and an open one, in turns."""
    async with running(options.cores) as plain, running(options.cores) as stack:
        await stack.close_gateway(LIMITS)
        for each in (plain, stack):
            await each.workers(WorkerSpec(each.port, connections=4, slots=CONNECTIONS // 4))
        spec = LoadSpec(
            stack.port,
            "closed",
            CONNECTIONS,
            "/v1/chat/completions",
            warm_up_s=options.warm_up_s,
            seconds=options.seconds,
        )
        rounds, profile = await _rounds(
            "accounts",
            options,
            stack,
            lambda: stack.load(stack.target.aim(spec)),
            spec.warm_up_s + spec.seconds,
            lambda: plain.load(plain.target.aim(spec)),
        )
    rounds.add_ratio("cpu_per_task_to_open", cpu_ms_per_task)
    rounds.add_ratio("redis_cpu_per_task_to_open", redis_ms_per_task)
    rounds.add_tasks()
    rounds.add_cores()
    about = "the same with a key of the database that has limits of a minute, against an open gateway"
    return rounds.outcome(about, profile)


async def sync_v1_400(options: Options) -> Outcome:
    """OpenAI sync calls over many workers of one slot."""
    about = "the same over 400 version 1 workers"
    return await _sync("sync_v1_400", about, options, "/v1/chat/completions", sockets=400)


async def sync_v1_1600(options: Options) -> Outcome:
    """OpenAI sync calls over very many workers of one slot."""
    about = "the same over 1,600 version 1 workers"
    return await _sync("sync_v1_1600", about, options, "/v1/chat/completions", sockets=1600)


def cpu_ms_per_task(result: LoadResult) -> float:
    """CPU time of the processes under test for each call."""
    return 1000 * _cpu_s(result) / max(result.tasks, 1)


def redis_ms_per_task(result: LoadResult) -> float:
    """CPU time of Redis for each call."""
    return 1000 * result.cpu_s["redis"] / max(result.tasks, 1)


def cpu_ms_per_1k_tokens(result: LoadResult) -> float:
    """CPU time of the processes under test for a thousand tokens."""
    return 1e6 * _cpu_s(result) / max(result.tokens, 1)


def _cpu_s(result: LoadResult) -> float:
    return sum(used for name, used in result.cpu_s.items() if name.startswith("gateway"))


def _processes(count: int) -> dict[str, str]:
    """Return the setting for this number of gateway processes."""
    return {"FAIRLANE_PROCESSES": str(count)} if count > 1 else {}


async def latency(options: Options) -> Outcome:
    """What the gateway adds to a task when it has little to do."""
    async with running(options.cores) as stack:
        await stack.workers(WorkerSpec(stack.port, connections=4, slots=16))
        spec = LoadSpec(
            stack.port,
            "open",
            BEAT_CONNECTIONS,
            warm_up_s=options.warm_up_s,
            seconds=options.seconds,
            watch=stack.watch,
            per_s=100,
        )
        rounds, _ = await _rounds("latency", without_profiler(options), stack, lambda: stack.load(spec), 0)
    rounds.add("added_p50_ms", "ms", lambda r: r.task.p50_ms)
    rounds.add("added_p99_ms", "ms", lambda r: r.task.p99_ms)
    rounds.add("sent_late_p99_ms", "ms", lambda r: r.late.p99_ms)
    rounds.add_cores()
    return rounds.outcome("100 tasks/s on a fixed beat, the worker's own time subtracted")


def without_profiler(options: Options) -> Options:
    """For measurements that leave the gateway idle most of the time."""
    return replace(options, profiler=None)


# ---- streams ----------


async def _streams(
    name: str,
    about: str,
    options: Options,
    streams: int,
    per_s: float,
    *,
    path: str = "/v1/chat/completions",
    per_frame: int = 1,
    together: bool = False,
    tokens: int = 100,
    compare: bool = False,
    sockets: int = 0,
    processes: int = 1,
) -> Outcome:
    """`compare`: with the yardstick; `sockets`: number of version 1 workers."""
    async with running(options.cores, _processes(processes)) as stack:
        yardstick = await stack.yardstick(tokens, per_s) if compare else None
        await stack.workers(
            WorkerSpec(
                stack.port,
                connections=sockets or WORKERS,
                slots=1 if sockets else max(streams // 4, 8),
                version=1 if sockets else 2,
                kind="stream",
                tokens=tokens,
                tokens_per_s=per_s,
                tokens_per_frame=per_frame,
                write_together=together,
            )
        )
        length_s = tokens / per_s
        spec = LoadSpec(
            stack.port,
            "streams",
            streams,
            path,
            warm_up_s=max(options.warm_up_s, length_s),
            seconds=max(options.seconds, length_s),
            watch=stack.watch,
            spread_s=length_s,
        )
        rounds, profile = await _rounds(
            name,
            options,
            stack,
            lambda: stack.load(spec),
            spec.warm_up_s + spec.seconds,
            None if yardstick is None else lambda: stack.load(yardstick.aim(spec)),
        )
    rounds.add_ratio("cpu_per_token_to_yardstick", cpu_ms_per_1k_tokens)
    rounds.add_ratio("first_token_p50_to_yardstick", lambda r: r.first_token.p50_ms)
    rounds.add_ratio("first_token_p99_to_yardstick", lambda r: r.first_token.p99_ms)
    rounds.add("redis_writes_per_token", "", lambda r: r.redis_calls.get("xadd", 0) / max(r.tokens_in_all, 1))
    rounds.add(
        "redis_scripts_per_token", "", lambda r: r.redis_calls.get("fcall", 0) / max(r.tokens_in_all, 1)
    )
    rounds.add("tokens_per_s", "tokens/s", lambda r: r.tokens / r.seconds)
    rounds.add("gateway_cpu_ms_per_1k_tokens", "ms", cpu_ms_per_1k_tokens)
    rounds.add("redis_cpu_ms_per_1k_tokens", "ms", lambda r: 1e6 * r.cpu_s["redis"] / max(r.tokens, 1))
    rounds.add("tokens_per_event", "", lambda r: r.tokens / max(r.events, 1))
    rounds.add("first_token_added_p50_ms", "ms", lambda r: r.first_token.p50_ms)
    rounds.add("first_token_added_p99_ms", "ms", lambda r: r.first_token.p99_ms)
    rounds.add("token_delay_p50_ms", "ms", lambda r: r.token.p50_ms)
    rounds.add("token_delay_p99_ms", "ms", lambda r: r.token.p99_ms)
    rounds.add_cores()
    return rounds.outcome(about, profile)


async def streams_50(options: Options) -> Outcome:
    """Few streams at a usual rate."""
    about = "50 chat streams, 50 tokens/s each"
    return await _streams("streams_50", about, without_profiler(options), 50, 50, compare=True)


async def streams_200(options: Options) -> Outcome:
    """Many streams at a usual rate."""
    about = "200 chat streams, 50 tokens/s each"
    return await _streams("streams_200", about, options, 200, 50, compare=True)


async def streams_200_v1(options: Options) -> Outcome:
    """Many streams over many workers of one slot."""
    about = "the same over 400 version 1 workers"
    return await _streams("streams_200_v1", about, options, 200, 50, compare=True, sockets=400)


async def streams_200_native(options: Options) -> Outcome:
    """The same, read as native events."""
    about = "200 native streams, 50 tokens/s each"
    return await _streams("streams_200_native", about, without_profiler(options), 200, 50, path="/api/openai")


async def two_processes(options: Options) -> Outcome:
    """How much more two processes do than one, by the CPU time that a call and a token cost: this machine has not the cores to
    let them run side by side."""
    options = without_profiler(options)
    speed_up: list[Figure] = []
    errors, error = 0, ""
    for what, measure, cost in (
        (
            "sync",
            lambda n: _sync("sync", "", options, "/api/openai", processes=n),
            "cpu_per_task_to_yardstick",
        ),
        (
            "streams",
            lambda n: _streams("streams", "", options, 200, 50, compare=True, processes=n),
            "cpu_per_token_to_yardstick",
        ),
    ):
        one, two = [await measure(processes) for processes in (1, 2)]
        costs = [figure.value for found in (one, two) for figure in found.figures if figure.name == cost]
        errors += one.errors + two.errors
        error = error or one.error or two.error
        if len(costs) == 2 and costs[1]:
            speed_up.append(figure("two_processes", f"{what}_speed_up", "x", [2 * costs[0] / costs[1]]))
    about = "two processes of one gateway against one, by CPU time per call and per token"
    return Outcome("two_processes", about, speed_up, errors, error)


async def tokens_40k(options: Options) -> Outcome:
    """More tokens a second than most gateways take."""
    about = "40,000 tokens/s offered: 200 chat streams, 200 tokens/s each, a frame per token"
    return await _streams("tokens_40k", about, options, 200, 200, together=True, tokens=400)


async def tokens_200k(options: Options) -> Outcome:
    """More tokens a second than it can take, one by one."""
    about = "200,000 tokens/s offered: 400 chat streams, 500 tokens/s each, a frame per token"
    return await _streams("tokens_200k", about, options, 400, 500, together=True, tokens=1000)


async def tokens_200k_batched(options: Options) -> Outcome:
    """More tokens a second than it can take, several in a frame."""
    about = "200,000 tokens/s offered: 400 chat streams, 500 tokens/s each, 8 tokens per frame"
    return await _streams(
        "tokens_200k_batched", about, options, 400, 500, per_frame=8, together=True, tokens=1000
    )


# ---- async ----------


async def asynchronous(options: Options) -> Outcome:
    """Tasks without a waiting client, from the first submit to the last result."""
    tasks = options.async_tasks
    async with running(options.cores, {"FAIRLANE_MAX_QUEUE_LENGTH": str(10 * tasks)}) as stack:
        workers = await stack.workers(WorkerSpec(stack.port, connections=4, slots=CONNECTIONS // 4))
        spec = LoadSpec(stack.port, "submit", CONNECTIONS, watch=stack.watch, tasks=tasks)

        async def measure() -> LoadResult:
            expected = workers.count.acknowledged + tasks
            used = {who: procstat.cpu_s(pid) for who, pid in stack.watch.items()}
            busy = procstat.core_busy_s()
            result = await stack.load(spec)
            await until(_finished(workers, expected), "all async tasks to be finished", WORK_DEADLINE_S)
            result.cpu_s |= {who: procstat.cpu_s(pid) - used[who] for who, pid in stack.watch.items()}
            result.core_busy_s = {core: s - busy[core] for core, s in procstat.core_busy_s().items()}
            result.seconds = (workers.count.last_ns - result.begun_ns) / 1e9
            return result

        rounds, profile = await _rounds("async", options, stack, measure, options.seconds)
    rounds.add("tasks_per_s", "tasks/s", lambda r: r.tasks / r.seconds)
    rounds.add("tasks_per_gateway_core_s", "tasks/s", lambda r: r.tasks / r.cpu_s["gateway"])
    rounds.add("gateway_cpu_ms_per_task", "ms", lambda r: 1000 * r.cpu_s["gateway"] / r.tasks)
    rounds.add("redis_cpu_ms_per_task", "ms", lambda r: 1000 * r.cpu_s["redis"] / r.tasks)
    rounds.add_cores()
    return rounds.outcome(f"{tasks} async tasks, submit to worker to result, 64 connections", profile)


def _finished(workers: Workers, expected: int) -> Callable[[], Awaitable[bool]]:
    async def finished() -> bool:
        return workers.count.acknowledged >= expected

    return finished


async def async_polled(options: Options) -> Outcome:
    """The same, with each result read by its caller."""
    async with running(options.cores) as stack:
        await stack.workers(WorkerSpec(stack.port, connections=4, slots=CONNECTIONS // 4))
        spec = LoadSpec(
            stack.port,
            "poll",
            CONNECTIONS,
            warm_up_s=options.warm_up_s,
            seconds=options.seconds,
            watch=stack.watch,
            window=8,
        )
        rounds, profile = await _rounds(
            "async_polled", without_profiler(options), stack, lambda: stack.load(spec), 0
        )
    rounds.add("tasks_per_s", "tasks/s", lambda r: r.tasks / r.seconds)
    rounds.add("gateway_cpu_ms_per_task", "ms", lambda r: 1000 * r.cpu_s["gateway"] / max(r.tasks, 1))
    rounds.add("polls_per_task", "", lambda r: r.polls / max(r.tasks, 1))
    rounds.add_cores()
    return rounds.outcome("async tasks whose results are polled, 64 connections", profile)


# ---- idle ----------


async def _idle(name: str, about: str, options: Options, path: str, read_task: bool = False) -> Outcome:
    results = []
    for _ in range(min(options.rounds, 2)):
        most = str(4 * options.idle_streams)
        settings = {"FAIRLANE_MAX_QUEUE_LENGTH": most, "FAIRLANE_MAX_CALLS_PER_CALLER": most}
        async with running(options.cores, settings) as stack:
            await stack.workers(WorkerSpec(stack.port, connections=1, slots=1, kind="hold"))
            spec = LoadSpec(
                stack.port,
                "idle",
                options.idle_streams,
                path,
                seconds=options.seconds,
                watch=stack.watch,
                read_task=read_task,
            )
            results.append(await stack.load(spec))
    rounds = Rounds(name, results)
    rounds.add("kib_per_stream", "KiB", lambda r: (r.rss_after - r.rss_before) / 1024 / r.tasks)
    rounds.add("gateway_rss_mib", "MiB", lambda r: r.rss_after / 1024 / 1024)
    rounds.add_cores()
    return rounds.outcome(about)


async def idle_chat(options: Options) -> Outcome:
    """Chat streams whose tasks wait in the queue."""
    about = f"{options.idle_streams} chat streams whose tasks wait in the queue"
    return await _idle("idle_chat", about, options, "/v1/chat/completions")


async def idle_native(options: Options) -> Outcome:
    """Native streams whose tasks wait in the queue."""
    about = f"{options.idle_streams} native streams whose tasks wait in the queue"
    return await _idle("idle_native", about, options, "/api/openai")


async def idle_events(options: Options) -> Outcome:
    """Readers of one running task."""
    about = f"{options.idle_streams} readers of the events of one running task"
    return await _idle("idle_events", about, options, "/api/openai", read_task=True)


SCENARIOS: dict[str, Callable[[Options], Awaitable[Outcome]]] = {
    "sync": sync,
    "sync_no_ack": sync_no_ack,
    "sync_openai": sync_openai,
    "accounts": accounts,
    "sync_v1_400": sync_v1_400,
    "sync_v1_1600": sync_v1_1600,
    "latency": latency,
    "streams_50": streams_50,
    "streams_200": streams_200,
    "streams_200_v1": streams_200_v1,
    "streams_200_native": streams_200_native,
    "two_processes": two_processes,
    "tokens_40k": tokens_40k,
    "tokens_200k": tokens_200k,
    "tokens_200k_batched": tokens_200k_batched,
    "async": asynchronous,
    "async_polled": async_polled,
    "idle_chat": idle_chat,
    "idle_native": idle_native,
    "idle_events": idle_events,
}
QUICK = ("sync", "latency", "streams_200", "tokens_200k_batched", "async", "idle_chat")
"""The scenarios of the short run: those that have a target."""
