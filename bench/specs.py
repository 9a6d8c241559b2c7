"""Arguments and answers of the benchmark's processes: JSON, one argument in, lines out. Pure values."""

from typing import Literal

import msgspec

MODEL = "bench"


class WorkerSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A process of workers: echoes, streams, or one task that never ends."""

    port: int
    connections: int
    slots: int
    """Per connection."""
    models: tuple[str, ...] = (MODEL,)
    """A connection serves one of them, the next connection the next one."""
    kind: Literal["echo", "stream", "hold"] = "echo"
    version: Literal[1, 2] = 2
    """Of the worker protocol. Version 1 knows no slots: a connection runs one task, and nothing is acknowledged."""
    acknowledge: bool = True
    """Send `taskAck`, as the SDK does; the protocol permits to leave it out when an output follows immediately."""
    tokens: int = 100
    tokens_per_s: float = 50.0
    tokens_per_frame: int = 1
    write_together: bool = False
    """Frames of one connection that are due at the same instant share a write: cheaper for this process, which must not
    be the bottleneck when more is offered than a gateway can take.
    """
    token: str = ""
    """Of a gateway that wants one."""


class UpstreamSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A process of model servers over HTTP, for the yardstick."""

    port: int
    tokens: int = 100
    tokens_per_s: float = 50.0


class WorkerCount(msgspec.Struct):
    """What a worker process says ten times a second."""

    registered: int
    acknowledged: int
    """Results that the gateway has confirmed."""
    last_ns: int
    """When it confirmed the last one, CLOCK_MONOTONIC."""


class LoadSpec(msgspec.Struct, forbid_unknown_fields=True):
    """A process of callers. `watch`: processes whose CPU time it reads at both ends of its measuring window, with its own."""

    port: int
    kind: Literal["closed", "open", "streams", "submit", "poll", "idle"]
    connections: int
    path: str = "/api/openai"
    warm_up_s: float = 1.0
    seconds: float = 4.0
    watch: dict[str, int] = {}
    models: tuple[str, ...] = (MODEL,)
    """kind `closed`: a connection calls one of them, the next connection the next one."""
    key: str = ""
    """Of a gateway that wants one."""
    per_s: float = 100.0
    """kind `open`: tasks per second."""
    tasks: int = 0
    """kind `submit`: tasks in all."""
    window: int = 16
    """kind `poll`: tasks that a connection submits before it asks for their results."""
    spread_s: float = 1.0
    """kind `streams`: the first streams begin evenly over this time."""
    read_task: bool = False
    """kind `idle`: readers of one running task's events instead of callers whose tasks wait."""


class Spread(msgspec.Struct, frozen=True):
    """Many durations in short, milliseconds."""

    count: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


def spread(values_ns: list[int]) -> Spread:
    """Median and 99th percentile (the nearest value at or above it) of durations in nanoseconds."""
    if not values_ns:
        return Spread()
    values = sorted(values_ns)
    last = len(values) - 1
    return Spread(len(values), values[last // 2] / 1e6, values[min(-(-len(values) * 99 // 100), last)] / 1e6)


class LoadResult(msgspec.Struct):
    """What a load process measured in its window."""

    seconds: float
    tasks: int = 0
    tokens: int = 0
    """Inside the window."""
    tokens_in_all: int = 0
    """From the first to the last, warm-up included."""
    events: int = 0
    """Frames that carried tokens, inside the window."""
    polls: int = 0
    cpu_s: dict[str, float] = {}
    """`gateway`, `redis`, `workers`, `load`."""
    core_busy_s: dict[str, float] = {}
    """Per core of the machine: busy time of all processes."""
    task: Spread = Spread()
    """A task from request to answer; kind `open`: without the worker's own time."""
    first_token: Spread = Spread()
    """From request to first token, without the worker's own time."""
    token: Spread = Spread()
    """A token from its sending by the worker to its reading by the caller."""
    late: Spread = Spread()
    """kind `open`: how late a request was sent, by this process's own fault."""
    begun_ns: int = 0
    """When the window began, CLOCK_MONOTONIC."""
    redis_calls: dict[str, int] = {}
    """How often Redis ran each command meanwhile, warm-up included. Filled in by the code that started the load."""
    rss_before: int = 0
    rss_after: int = 0
    """kind `idle`: resident bytes of the process watched as `gateway`."""
    errors: int = 0
    error: str = ""
    """The first of them."""
