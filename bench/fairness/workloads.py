"""The workloads of the VTC paper, from the parameters and the random seed that its artifact publishes, and two of our own.

numpy's RandomState(42) draws the same numbers everywhere and for ever (it is frozen), so these are the artifact's requests, to
the microsecond. Our own are `overload_512`, of a length that no default hits by chance, and `trace_like`, which stands for the
artifact's recorded trace.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from bench.fairness.measures import Difference
from bench.fairness.simulator import SECOND, Request

SEED = 42
NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of arrival, with what the artifact measured for them."""

    name: str
    about: str
    """Requests per second; tokens in/out; for how long."""
    requests: tuple[Request, ...]
    measured_s: int = 600
    """The part of the run that the metric looks at."""
    artifact: dict[str, Difference] = field(default_factory=dict)
    """Service difference by policy, computed from the artifact's logs by the same metric."""
    fixed_length: bool = False
    """One of the rows whose requests are all equal, for which the artifact's VTC is the yardstick."""
    weights: dict[str, float] = field(default_factory=dict)


def with_max_output(workload: Workload) -> Workload:
    """The same from clients who say how long the output will be at most, and are right."""
    return replace(workload, requests=tuple(replace(r, max_output=r.output) for r in workload.requests))


def _sorted(requests: Iterator[Request]) -> tuple[Request, ...]:
    return tuple(sorted(requests, key=lambda request: request.at_us))


def _client(index: int) -> str:
    return f"client {index + 1:02d}"


def _even(
    draw: np.random.RandomState,
    rates: Sequence[float],
    length_s: float,
    *,
    start_s: float = 0,
    on_off_s: int = 0,
    tokens: int = 256,
    weights: Sequence[float] = (),
) -> Iterator[Request]:
    """Equal gaps, from a random instant within the first. With `on_off_s` the first client falls silent every other so long."""
    for index, rate in enumerate(rates):
        at = start_s + draw.rand() / rate
        for _ in range(int(rate * length_s)):
            at += 1 / rate
            if on_off_s and index == 0 and int(at // on_off_s) % 2:
                continue
            weight = weights[index] if weights else 1.0
            yield Request(round(at * SECOND), _client(index), tokens, tokens, weight=weight)


def _increase(first: float, start: float, end: float, length_s: float) -> Iterator[Request]:
    """The first client at an even rate, the second from rate `start` up to `end`."""
    for n in range(int(first * length_s)):
        yield Request(round((n + 1) / first * SECOND), _client(0), 256, 256)
    at = 0.0
    for _ in range(int((start + end) / 2 * length_s)):
        at += 1 / (start + (end - start) * at / length_s)
        yield Request(round(at * SECOND), _client(1), 256, 256)


def _poisson_pair(
    draw: np.random.RandomState,
    rates: tuple[float, float],
    sizes: tuple[tuple[int, int], tuple[int, int]],
    length_s: float,
) -> Iterator[Request]:
    """Two clients who send at random, each requests of one size."""
    total = int(sum(rates) * length_s)
    second = draw.rand(total) > rates[0] / sum(rates)
    at = 0.0
    for index, gap in zip(second.astype(int), draw.gamma(1.0, 1 / sum(rates), total), strict=True):
        at += float(gap)
        yield Request(round(at * SECOND), _client(index), *sizes[index])


def _dist_shift(draw: np.random.RandomState) -> Iterator[Request]:
    """Three phases of five minutes: one client on and off, both beyond their share, one below it."""
    yield from _even(draw, (0.5, 2), 300, on_off_s=60)
    yield from _even(draw, (1, 1), 300, start_s=300)
    yield from _even(draw, (0.5, 1.5), 300, start_s=600)


TRACE_CLIENTS = (
    (296, 0, 598), (262, 206, 600), (199, 0, 582), (120, 1, 597), (67, 14, 583), (66, 288, 596), (56, 1, 598),
    (46, 218, 582), (44, 0, 597), (43, 105, 579), (40, 20, 577), (36, 9, 597), (31, 413, 593), (26, 19, 587),
    (25, 206, 598), (23, 50, 573), (22, 44, 269), (22, 453, 589), (19, 13, 150), (19, 409, 571), (12, 4, 149),
    (11, 11, 83), (7, 16, 118), (3, 15, 28), (2, 27, 64), (2, 590, 594), (1, 592, 592),
)  # fmt: skip
"""Of each client of the artifact's trace: how many requests, the second of the first and of the last."""
TRACE_INPUT = (2, 2, 5, 8, 10, 13, 16, 19, 24, 31, 40, 52, 68, 92, 124, 161, 215, 299, 432, 656, 1021)
TRACE_OUTPUT = (
    2,
    10,
    18,
    29,
    43,
    62,
    85,
    109,
    141,
    173,
    211,
    256,
    309,
    351,
    400,
    462,
    511,
    512,
    513,
    513,
    977,
)
"""Tokens in and out there: smallest, every twentieth part, largest."""
TRACE_CORRELATION = 0.29
"""Of the logarithms of both."""


def _trace_like(draw: np.random.RandomState) -> Iterator[Request]:
    """1,500 requests of 27 clients in ten minutes, like the artifact's trace (of LMSYS's Chatbot Arena) by its statistics.

    Taken from it: the numbers above. Not taken: the requests themselves, when a client sends between its first and its last
    request (evenly at random here), and differences between the clients' lengths.
    """
    parts = np.linspace(0, 1, len(TRACE_INPUT))
    for index, (count, first_s, last_s) in enumerate(TRACE_CLIENTS):
        for at in draw.uniform(first_s, last_s + 1, count):
            z_in, z_other = draw.normal(size=2)
            z_out = TRACE_CORRELATION * z_in + math.sqrt(1 - TRACE_CORRELATION**2) * z_other
            tokens_in, tokens_out = (
                int(np.interp(NORMAL.cdf(z), parts, quantiles))
                for z, quantiles in ((z_in, TRACE_INPUT), (z_out, TRACE_OUTPUT))
            )
            yield Request(round(float(at) * SECOND), _client(index), tokens_in, tokens_out)


def _draw(seed: int = SEED) -> np.random.RandomState:
    return np.random.RandomState(seed)


def overload() -> Workload:
    return Workload(
        "overload",
        "1.5 and 3 rps; 256/256; 6 min",
        _sorted(_even(_draw(), (1.5, 3), 360)),
        artifact={"FCFS": Difference(447, 439), "VTC": Difference(193, 104)},
        fixed_length=True,
    )


def overload_multi() -> Workload:
    return Workload(
        "overload-multi",
        "three clients at 0.4, five at 0.6 rps; 256/256; 6 min",
        _sorted(_even(_draw(), (0.4,) * 3 + (0.6,) * 5, 360)),
        artifact={"FCFS": Difference(248, 231), "VTC": Difference(322, 162)},
        fixed_length=True,
    )


def on_off_overload() -> Workload:
    return Workload(
        "on_off_overload",
        "2 (60 s on, 60 s off) and 3 rps; 256/256; 10 min",
        _sorted(_even(_draw(), (2, 3), 600, on_off_s=60)),
        artifact={"FCFS": Difference(1317, 433), "VTC": Difference(223, 110)},
        fixed_length=True,
    )


def overload_512() -> Workload:
    return Workload(
        "overload-512",
        "0.75 and 1.5 rps; 512/512; 6 min",
        _sorted(_even(_draw(), (0.75, 1.5), 360, tokens=512)),
    )


def short_long() -> Workload:
    return Workload(
        "short_long",
        "Poisson: 8 rps of 64/64 and 1.5 of 256/256; 10 min",
        _sorted(_poisson_pair(_draw(), (8, 1.5), ((64, 64), (256, 256)), 600)),
        artifact={"FCFS": Difference(355, 209), "VTC": Difference(133, 34)},
    )


def short_long_2() -> Workload:
    return Workload(
        "short_long_2",
        "Poisson: 8 rps of 512/32 and 1.5 of 32/512; 10 min",
        _sorted(_poisson_pair(_draw(), (8, 1.5), ((512, 32), (32, 512)), 600)),
        artifact={"FCFS": Difference(1124, 871), "VTC": Difference(47, 14)},
    )


def weighted() -> Workload:
    weights = (1.0, 2.0, 3.0, 4.0)
    return Workload(
        "weighted",
        "weights 1:2:3:4; 0.8, 0.8, 1.2, 1.6 rps; 256/256; 6 min",
        _sorted(_even(_draw(), (0.8, 0.8, 1.2, 1.6), 360, weights=weights)),
        weights={_client(index): weight for index, weight in enumerate(weights)},
    )


def proportional() -> Workload:
    return Workload(
        "proportional",
        "0.25, 0.5 and 1.5 rps; 256/256; 10 min",
        _sorted(_even(_draw(), (0.25, 0.5, 1.5), 600)),
        artifact={"FCFS": Difference(157, 145), "VTC": Difference(26, 10)},
    )


def on_off_less() -> Workload:
    return Workload(
        "on_off_less",
        "0.5 (60 s on, 60 s off) and 2 rps; 256/256; 10 min",
        _sorted(_even(_draw(), (0.5, 2), 600, on_off_s=60)),
        artifact={"FCFS": Difference(276, 116), "VTC": Difference(69, 56)},
    )


def increase() -> Workload:
    return Workload(
        "increase",
        "0.5, and from 0.2 up to 2 rps; 256/256; 10 min",
        _sorted(_increase(0.5, 0.2, 2, 600)),
        artifact={"FCFS": Difference(90, 28), "VTC": Difference(23, 6)},
    )


def dist_shift() -> Workload:
    return Workload(
        "dist_shift",
        "0.5 on/off and 2, then 1 and 1, then 0.5 and 1.5 rps; 256/256; 3 × 5 min",
        _sorted(_dist_shift(_draw())),
        measured_s=900,
        artifact={"VTC": Difference(119, 31), "LCF": Difference(186, 72)},
    )


def trace_like(seed: int = SEED) -> Workload:
    return Workload(
        "trace-like",
        "27 clients, 1,500 requests of 2 to 1,021 / 2 to 977 tokens, by the trace's statistics; 10 min",
        _sorted(_trace_like(_draw(seed))),
    )


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "overload": overload,
    "overload-multi": overload_multi,
    "on_off_overload": on_off_overload,
    "overload-512": overload_512,
    "short_long": short_long,
    "short_long_2": short_long_2,
    "weighted": weighted,
    "trace-like": trace_like,
    "proportional": proportional,
    "on_off_less": on_off_less,
    "increase": increase,
    "dist_shift": dist_shift,
}
