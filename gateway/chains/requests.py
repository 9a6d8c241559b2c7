"""Turns a request that names a chain into the task to submit. Pure, except for threads."""

import asyncio
import re
from collections.abc import Iterable
from copy import copy
from typing import Any, NamedTuple

import msgspec

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.chains.engine import NoStage, StageFailed, next_stage
from fairlane.gateway.chains.plan import Head, Plan, encode, head_of
from fairlane.gateway.chains.planner import ChainRequest, plan_chain, reserve_of
from fairlane.gateway.chains.planner import variables_of as variables_of_chain
from fairlane.gateway.chains.settings import RESERVED, ChainSettings
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.bodies import Bodies, RawObject
from fairlane.gateway.core.spec import OWN_FIELDS, Options, TaskBuilder
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.prompts.errors import VariablesError
from fairlane.gateway.prompts.filling import members_of_variables, read_locale, usable_chains, variables_of
from fairlane.gateway.routing.routes import not_there
from fairlane.queues.chains import MAX_BYTES, ChainStart
from fairlane.queues.ids import in_pool
from fairlane.queues.tasks import TaskSpec
from fairlane.streaming.jsontext import kind_of

MEMBERS = frozenset({"chain", "variables", "locale", "stream", "user", *OWN_FIELDS} - {"mode", "repair"})
"""Members of a request that names a chain: its stages set the rest. (`user` may name the user.)"""
MAX_CHAIN_NAME = 256
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_OF_A_STAGE = (
    *("model", "queue", "payload", "task_type", "estimated_input", "max_output", "answers"),
    *("wait_ms", "run_ms", "stream", "asked", "template", "model_omitted"),
)
"""Fields that a submitted task takes from its first stage, and those of features."""
_EXTRAS_OF_A_STAGE = ("max_input", "price", "fallbacks", "fallback_after", "schema", "repair")


class ChainNotFound(ApiError):
    """No chain has such a name. `known`: those that its caller may name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(404, "CHAIN_NOT_FOUND", not_there(name, known, "chain"), param="chain")


class Submission(NamedTuple):
    """What the answer to a submission shows of a chain."""

    head: Head
    first: int
    """The first stage that runs."""
    stages: list[dict[str, Any]]
    """Its stages, as clients first see them."""


async def read_request(
    current: ActiveConfig, caller: Caller, fields: RawObject, bodies: Bodies
) -> ChainRequest:
    """Return the chain that a request asks for, with its variables. Raise ApiError: 400, 404."""
    for other in fields:
        if other not in MEMBERS and kind_of(fields[other]):
            raise bad_request(f"A chain has no {other[:100]!r}: its stages set it, from `variables`", other)
    name = _name(fields["chain"])
    usable = usable_chains(current, caller)
    if name not in usable:
        raise ChainNotFound(name, usable)
    chain = current.settings.chains[name]
    locale = read_locale(fields)
    members = await members_of_variables(fields, bodies)
    size = len(memoryview(fields["variables"])) if members else 0
    given = await bodies.run(size, variables_of, members)
    return ChainRequest(name, chain, _fitting(current, name, chain, given), locale)


def _name(raw: bytes) -> str:
    """Return the name of a chain in a request, '' if it is too long for one. Raise ApiError(400)."""
    if kind_of(raw) != '"':
        raise bad_request("chain must be the name of a configured chain", "chain")
    return msgspec.json.decode(raw, type=str) if len(memoryview(raw)) <= 6 * MAX_CHAIN_NAME else ""


def _fitting(current: ActiveConfig, name: str, chain: ChainSettings, given: dict[str, Any]) -> dict[str, Any]:
    """Return the variables, with empty texts for optional ones that are missing, if they are those that the chain takes. Raise
    ApiError(400)."""
    for variable in given:
        if variable in RESERVED or not _VARIABLE.fullmatch(variable):
            raise bad_request(
                f"{variable[:100]!r} is no name for a variable of a chain: letters, digits and _, and none of "
                f"{', '.join(sorted(RESERVED))}",
                "variables",
            )
    takes = variables_of_chain(chain, current.plans.templates, current.settings.routes)
    try:
        return takes.filled(given)
    except VariablesError as error:
        raise bad_request(f"The variables do not fit the chain {name}: {error}", "variables") from None


def declared_chain(current: ActiveConfig, name: str) -> dict[str, Any]:
    """Return a configured chain, as clients see it."""
    chain = current.settings.chains[name]
    takes = variables_of_chain(chain, current.plans.templates, current.settings.routes)
    return {
        "name": name,
        "variables": sorted(takes.required | takes.optional),
        "optional": sorted(takes.optional),
        "stages": [{"name": stage.name, "status": stage.pending} for stage in chain.stages],
    }


async def make_chain(
    current: ActiveConfig,
    caller: Caller,
    chain_request: ChainRequest,
    options: Options,
    *,
    task_id: str,
    subject: str,
    request: bytes = b"",
) -> tuple[TaskSpec, Submission]:
    """Return the task of a chain as the scheduler takes it, with its first stage, and what the answer shows. `request`: the
    request for the archive, if it is to be stored. Raise ApiError: 400, 403, 404."""
    planned = plan_chain(current, caller, chain_request, options, subject)
    start, first = await _started(planned.plan, request)
    builder = TaskBuilder(current.settings, caller, task_id, "openaiLike", options)
    task = builder.task(planned.first._replace(downgrade=None), b"{}", {})
    if planned.downgrade is not None:
        cheaper, other = await _started(planned.downgrade, request)
        task.downgrade = copy(task)
        task.downgrade.apply_plan(other, _OF_A_STAGE, _EXTRAS_OF_A_STAGE)
        task.downgrade.extras.pop("quota", None)
        cheaper.begin(task.downgrade)
    task.apply_plan(first, _OF_A_STAGE, _EXTRAS_OF_A_STAGE)
    task.id = in_pool(task_id, current.plans.placement.of_model(first.model))
    start.begin(task)
    running = start.stage.number
    stages = [
        {
            "name": stage.name,
            "status": "skipped" if at < running else "queued" if at == running else "waiting",
        }
        for at, stage in enumerate(planned.plan.stages)
    ]
    return task, Submission(head_of(planned.plan), running, stages)


async def _started(plan: Plan, request: bytes) -> tuple[ChainStart, TaskSpec]:
    """Return the beginning of a chain, and its first stage. Raise ApiError(400)."""
    try:
        first = await asyncio.to_thread(next_stage, plan, -1, {})
    except StageFailed as failed:
        place = f"`{failed.member}`: " if failed.member else ""
        raise bad_request(
            f"The stage {failed.stage.name} cannot begin: {place}{failed.sentence}", "variables"
        ) from None
    if isinstance(first, NoStage):
        raise bad_request(
            "No stage of the chain would run with these variables: each is skipped", "variables"
        )
    packed, head = encode(plan), encode(head_of(plan))
    if len(packed) + len(head) > MAX_BYTES:
        raise bad_request(
            f"The chain has {len(packed) + len(head)} bytes with its variables, and {MAX_BYTES} are allowed",
            "variables",
        )
    start = ChainStart(
        first.stage,
        len(plan.stages),
        packed,
        head,
        request=request,
        parts=first.parts,
        reserve=reserve_of(plan, first.stage.number),
    )
    return start, first.task
