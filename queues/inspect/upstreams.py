"""What an operator sees of upstreams: the servers behind a model's workers, each with a breaker and a hold of its own. Pure."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlane.queues.keys import ANY_MODEL


class BreakerState(enum.StrEnum):
    """What a breaker lets start (upstreams.lua)."""

    CLOSED = "closed"
    """Everything."""
    OPEN = "open"
    """Nothing."""
    HALF_OPEN = "half_open"
    """A few tasks at a time, its probes."""


@dataclass(slots=True)
class Upstream:
    """One upstream of one model. Instants in ms."""

    upstream: str
    """'' of workers that name none."""
    workers: int = 0
    state: BreakerState = BreakerState.CLOSED
    forced: bool = False
    """An operator wants its breaker so."""
    since_ms: int | None = None
    """When the breaker opened, or was forced."""
    until_ms: int | None = None
    """When an open one lets probes through."""
    openings: int = 0
    """How often it opened since, without closing between."""
    why: str = ""
    """Failure code of the last failure that opened it."""
    probes: int = 0
    """Under way."""
    held_until_ms: int | None = None
    """Its provider said: not before."""
    held_by: str = ""
    """The worker that reported it."""


def upstream_of(name: str, fields: Mapping[str, str], probes: int, now_ms: int) -> Upstream:
    """One from its hash (keys.py, UPSTREAM)."""
    forced, till, held = (
        fields.get("forced"),
        int(fields.get("till", 0)),
        int(fields.get("cooldown_until", 0)),
    )
    state = BreakerState.CLOSED
    if forced == "open" or (not forced and till > now_ms):
        state = BreakerState.OPEN
    elif not forced and till:
        state = BreakerState.HALF_OPEN
    return Upstream(
        name,
        state=state,
        forced=bool(forced),
        since_ms=int(fields.get("since", 0)) or None,
        until_ms=till if state is BreakerState.OPEN and not forced else None,
        openings=int(fields.get("number", 0)),
        why=fields.get("why", ""),
        probes=probes,
        held_until_ms=held if held > now_ms else None,
        held_by=fields.get("cooldown_by", "") if held > now_ms else "",
    )


def upstreams_of(
    model: str, workers: Iterable[Mapping[str, Any]], known: Iterable[Upstream]
) -> list[Upstream]:
    """Those of a model, by name: of the workers that run it, and those with a stored state. None where its workers
    name none and nothing is known."""
    found = {upstream.upstream: upstream for upstream in known}
    for worker in workers:
        if model in worker["models"] or worker["models"] == [ANY_MODEL]:
            name = worker.get("upstream") or ""
            found.setdefault(name, Upstream(name)).workers += 1
    if set(found) <= {""} and all(one == Upstream("", one.workers) for one in found.values()):
        return []
    return [found[name] for name in sorted(found)]
