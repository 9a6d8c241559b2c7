"""The load of a model, over all replicas, as the script `measure_load` returns it. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple


class ModelLoad(NamedTuple):
    """A model at one moment."""

    stopped: str
    """Why it begins nothing: 'paused', 'cooldown', 'no_worker' or 'throttled'; '' = it does."""
    wait_ms: int | None
    """How long its queue makes those wait who come now, at the pace at which tasks leave it. None: too little is known."""
    answers: Mapping[str, int]
    """How many recent answers fall into each bin, by the names that replicas gave."""


def read_model_load(reply: Any) -> ModelLoad:
    """Read the reply of `measure_load`."""
    stopped, wait_ms, periods = reply
    answers: Counter[str] = Counter()
    for flat in periods:
        for name, number in zip(flat[::2], flat[1::2], strict=True):
            answers[name.decode()] += int(number)
    return ModelLoad(stopped.decode(), None if wait_ms < 0 else wait_ms, answers)
