"""What clients see of a chain: its stages, and the result of each. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from fairlane.gateway.chains.plan import Head, read_head
from fairlane.gateway.chains.results import of_stage, usage_fields, used_by, whole
from fairlane.queues.chains import Chain
from fairlane.queues.tasks import Place, State, Used, WaitEstimate
from fairlane.streaming.jsontext import join_object

ENDED = {State.COMPLETED: "COMPLETED", State.FAILED: "FAILED", State.CANCELLED: "CANCELLED"}
"""What `stageStatus` says behind the end."""


def chain_fields(chain: Chain) -> dict[str, Any]:
    """Return a chain, as a poll shows it with its task: its stages, the one that it is in, and at its end the results."""
    head = read_head(chain.head)
    shown: dict[str, Any] = {
        "chain": head.name,
        "stageStatus": ENDED.get(chain.state) or head.stages[chain.stage.number].status,
        "stage": {"name": chain.stage.name, "index": chain.stage.number + 1, "of": len(head.stages)},
        "stages": stages_of(head, chain),
    }
    if chain.state is State.QUEUED and chain.parts and chain.begun:
        shown["status"] = "executing"
    if chain.state is State.FAILED:
        shown |= failure_fields(head, chain)
    elif chain.state in ENDED:
        shown["results"] = Raw(results_of(head, chain))
    return _with_usage(shown, used_by(chain.used)) if chain.state in ENDED else shown


def failure_fields(head: Head, chain: Chain) -> dict[str, Any]:
    """In which stage a chain failed, and the results so far."""
    return {"failedStage": chain.stage.name, "results": Raw(results_of(head, chain))}


def place_of_chain(place: Place, now: int, ran_ms: int, estimates: Sequence[WaitEstimate]) -> Place:
    """Return the place of a chain with the wait until its last stage begins. `now`: its current stage; `ran_ms`: the time that
    this stage has run, -1: it waits. `estimates`: of all stages, including those that may be skipped."""
    more = 0
    for number, (wait_ms, run_ms) in enumerate(estimates[now:], now):
        if number > now:
            more += wait_ms
        if number < len(estimates) - 1:
            if run_ms < 0:
                return place._replace(wait_ms=-1, low_ms=-1, high_ms=-1)
            more += max(run_ms - max(ran_ms, 0), 0) if number == now else run_ms
    if ran_ms >= 0:
        return Place(0, more, more // 2, 2 * more)
    if place.estimating:
        return place
    return Place(place.position, place.wait_ms + more, place.low_ms + more // 2, place.high_ms + 2 * more)


def stages_of(head: Head, chain: Chain) -> list[dict[str, Any]]:
    """Return each stage: its name and status, its usage if it is done, and its finished parts if it has several."""
    stages = []
    for number, stage in enumerate(head.stages):
        shown: dict[str, Any] = {"name": stage.name, "status": _status(chain, number)}
        results = len(of_stage(chain.results, number))
        if chain.stage.number == number and chain.parts:
            shown |= {"parts": chain.parts, "partsDone": max(chain.done, results)}
        elif results and stage.each:
            shown |= {"parts": results, "partsDone": results}
        stages.append(_with_usage(shown, used_by(chain.used, number)))
    return stages


def _with_usage(shown: dict[str, Any], used: Used | None) -> dict[str, Any]:
    usage = usage_fields(used)
    return {**shown, "usage": usage} if usage else shown


def _status(chain: Chain, number: int) -> str:
    """Return the status of a stage. Each one before the current stage has a result, or was skipped."""
    now, state = chain.stage.number, chain.state
    if number < now:
        return "completed" if any(stage == number for stage, _ in chain.results) else "skipped"
    if number > now:
        return "skipped" if state in ENDED else "waiting"
    if state is State.QUEUED and chain.parts and chain.begun:
        return "executing"
    return state.value


def final_stages(
    head: Head, used: Mapping[tuple[int, int], Used], done: Iterable[int], failed: int = -1
) -> bytes:
    """Return the stages of the terminal event as JSON: those that are `done`, the one that failed, and the rest as skipped."""
    completed = set(done)
    stages = []
    for number, stage in enumerate(head.stages):
        status = "completed" if number in completed else "failed" if number == failed else "skipped"
        stages.append(_with_usage({"name": stage.name, "status": status}, used_by(used, number)))
    return msgspec.json.encode(stages)


def results_of(head: Head, chain: Chain) -> bytes:
    """Return the results of the stages that are done, by their names, as JSON."""
    pairs = []
    for number, stage in enumerate(head.stages):
        if results := of_stage(chain.results, number):
            pairs.append((stage.name, whole(results, each=stage.each)))
    return join_object(pairs)
