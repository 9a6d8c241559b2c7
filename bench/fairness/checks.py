"""What must hold, and what was found. Pure."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from bench.fairness.simulator import Policy

Maker = Callable[[int, Mapping[str, float]], Policy]
"""Makes a policy for one run: with this number of slots, these queues and weights."""

ONE_QUEUE: Mapping[str, float] = {"free_batch": 1.0}
TIERS: Mapping[str, float] = {"paid_stream": 8.0, "paid_batch": 4.0, "free_stream": 2.0, "free_batch": 1.0}


class Check(NamedTuple):
    """One promise, with the figure that was measured and the one that it may reach."""

    gate: str
    what: str
    measured: str
    limit: str
    passed: bool


def at_most(gate: str, what: str, measured: float, limit: float, unit: str = "") -> Check:
    """A check that a figure does not exceed a limit."""
    return Check(gate, what, f"{number(measured)}{unit}", f"≤ {number(limit)}{unit}", measured <= limit)


def at_least(gate: str, what: str, measured: float, limit: float) -> Check:
    """A check that a figure reaches a limit."""
    return Check(gate, what, f"{measured:.4f}", f"≥ {limit:g}", measured >= limit)


def around(gate: str, what: str, measured: float, middle: float, off: float, unit: str = "") -> Check:
    """A check that a figure is not further than `off` from another."""
    limit = f"{number(middle)}{unit} ± {number(off)}{unit}"
    return Check(gate, what, f"{number(measured)}{unit}", limit, abs(measured - middle) <= off)


def number(value: float) -> str:
    """Whole from 100 on, one digit from 10 on, else two; as far as they are not zero."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
