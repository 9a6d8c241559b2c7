"""The load of a model, over all replicas, as the script `measure_load` returns it. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class ModelLoad(NamedTuple):
    """A model at one moment."""

    stopped: str
    """Why it begins nothing: 'paused', 'cooldown', 'no_worker', 'breaker_open' or 'throttled'; '' = it does."""
    wait_ms: int | None
    """How long its queue makes new tasks wait, at the pace at which tasks leave it. None: too little is known."""


def read_model_load(said: Mapping[str, Any]) -> ModelLoad:
    """Read the reply of `measure_load`."""
    return ModelLoad(said["stopped"], said.get("wait_ms"))
