"""What an operator sees of upstreams: the servers behind a model's workers, each with a breaker and a hold of its own. Pure."""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from fairlane.queues.keys import ANY_MODEL


class BreakerState(enum.StrEnum):
    """What a breaker lets start (upstreams.lua)."""

    CLOSED = "closed"
    """Everything."""
    OPEN = "open"
    """Nothing."""
    HALF_OPEN = "half_open"
    """A few tasks at a time, its probes."""


class Upstream(msgspec.Struct, rename="camel"):
    """One upstream of one model. Times in ms."""

    upstream: str
    """'' of workers that name none."""
    workers: int = 0
    breaker: BreakerState = BreakerState.CLOSED
    forced: bool = False
    """An operator has set the breaker."""
    since: int | None = None
    """When the breaker opened, or was forced."""
    until: int | None = None
    """When an open one lets probes through."""
    openings: int = 0
    """How often it opened since, without closing between."""
    reason: str | None = None
    """Failure code of the last failure that opened it."""
    probes: int = 0
    """Under way."""
    cooldown_until: int | None = None
    """Its provider rejects requests until then."""
    cooldown_by: str | None = None
    """The worker that reported it."""


def cooldown_of(fields: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Return the members `cooldown_until` and `cooldown_by` of a model or an upstream; none without a cooldown."""
    until_ms = int(fields.get("cooldown_until", 0))
    if until_ms <= now_ms:
        return {}
    return {"cooldown_until": until_ms, "cooldown_by": fields.get("cooldown_by") or None}


def upstream_of(name: str, fields: Mapping[str, str], probes: int, now_ms: int) -> Upstream:
    """Return an upstream from its hash (keys.py, UPSTREAM)."""
    forced, till = fields.get("forced"), int(fields.get("till", 0))
    breaker = BreakerState.CLOSED
    if forced == "open" or (not forced and till > now_ms):
        breaker = BreakerState.OPEN
    elif not forced and till:
        breaker = BreakerState.HALF_OPEN
    return Upstream(
        name,
        breaker=breaker,
        forced=bool(forced),
        since=int(fields.get("since", 0)) or None,
        until=till if breaker is BreakerState.OPEN and not forced else None,
        openings=int(fields.get("number", 0)),
        reason=fields.get("why") or None,
        probes=probes,
        **cooldown_of(fields, now_ms),
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
