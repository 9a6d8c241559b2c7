"""The load of a model, over all replicas, as the script `measure_load` returns it. Pure."""

from typing import Any, NamedTuple


class ModelLoad(NamedTuple):
    """A model at one moment."""

    stopped: str
    """Why it begins nothing: 'paused', 'cooldown', 'no_worker', 'breaker_open' or 'throttled'; '' = it does."""
    wait_ms: int | None
    """How long its queue makes new tasks wait, at the pace at which tasks leave it. None: too little is known."""


def read_model_load(reply: Any) -> ModelLoad:
    """Read the reply of `measure_load`."""
    stopped, wait_ms = reply
    return ModelLoad(stopped.decode(), None if wait_ms < 0 else wait_ms)
