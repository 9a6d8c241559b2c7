"""Chains: several stages under one task id, and the calls of the store for them.

A stage with one part runs in place: the chain's task itself moves from line to line. A stage with several runs as part tasks, of
which each has a record, a log, a lease, tries and fallbacks of its own; the chain's task stands in no line meanwhile. Plan, head
and results are bytes that the scheduler keeps and never reads.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairlane.queues.replies import decode_map, read_grants, read_retry_at, used_of
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import ClosedUpstreams, EventFields, Grant, RetryAt, State, TaskSpec, Used

MAX_STAGES = 16
MAX_PARTS = 64
"""Of one stage."""
MAX_BYTES = 16 * 1024 * 1024
"""Of plan, head and results of a chain altogether."""


class Part(NamedTuple):
    """One of several parts of a stage: what its worker is given. What else is said of the stage holds for each."""

    payload: bytes
    estimated_input: int = 0
    """As `TaskSpec` has it; so is the next."""
    max_input: int = 0


class Stage(NamedTuple):
    """Which stage of a chain it is."""

    number: int
    """From 0; stages that are passed over count."""
    name: str
    """Of a-z, 0-9, _ and -."""


@dataclass(slots=True)
class ChainStart:
    """What makes a task that is submitted a chain. The task itself says what its first stage is: model, queue, payload, …"""

    stage: Stage
    """The first one that runs."""
    of: int
    """How many stages there are."""
    plan: bytes
    """All that is needed to continue; it is removed at the chain's end."""
    head: bytes = b""
    """What is needed for reading; it is kept as long as the chain's record."""
    parts: Sequence[Part] = ()
    """Of the first stage, if it has several (at least two); the task's own payload is none then."""
    request: bytes = b""
    """What the archive is to have as its request, if it keeps requests (`TaskSpec.archive_request`)."""
    reserve: int = 0
    """What the later stages may cost, micro-credits, as far as that is known: reserved together with the cost of the first."""
    grace_ms: int = 60_000
    """How long a slot may stay taken by a part that was ended with its chain."""

    def begin(self, task: TaskSpec) -> None:
        """Make a task the first stage of the chain: its id is the chain's. It is rejected as one task is, and reserves what that
        stage and the later ones may cost. The parts of a stage that has several are queued in its place."""
        parts = parts_of(self.parts)
        task.estimated_input = parts.pop("input_tokens", task.estimated_input)
        task.extras |= parts | {
            "stage": stage_text(self.stage),
            "chain_start": {"of": self.of, "grace_ms": self.grace_ms},
            "reserve": self.reserve,
        }
        task.blobs = (self.plan, self.head, self.request, *(part.payload for part in self.parts))


@dataclass(slots=True)
class StageEntry:
    """The next stage of a chain, which enters its line.

    `task` says what runs: model, queue, task type, payload, estimates, `wait_ms` and `run_ms`, stream, price, fallbacks, answer
    and repair, template, change, and the quota as it is now. What it says of the chain as a whole (id, user, key, priority,
    weight, total time, limits, metadata, archive, …) counts for nothing: the chain has it from its submission.
    """

    stage: Stage
    task: TaskSpec
    parts: Sequence[Part] = ()
    """If it has several (at least two); the task's own payload is none then."""
    reserve: int = 0
    """What the stages behind it may cost, as `ChainStart` has it."""


@dataclass(slots=True)
class ChainEnd:
    """The chain ends behind a stage that has completed: nothing else is to run (COMPLETED), or what should cannot (FAILED)."""

    state: State
    code: str
    terminal: EventFields
    stage: Stage | None = None
    """The stage that could not begin, with FAILED; its usage record names it. None: none is to blame."""
    model: str = ""
    """That stage's, as far as they are known."""
    queue: str = ""


class Step(NamedTuple):
    """How an attempt completes its stage, or its part of one, and what follows."""

    result: bytes
    """Of the stage or part. It is kept for `read_chain`."""
    used: Used
    nonce: str
    """Names the call, which may be repeated."""
    then: StageEntry | ChainEnd | None
    """None of a part: others are under way, as far as its caller knows."""
    log_events: Sequence[EventFields] = ()
    """Events of the chain's log that follow the attempt's own, when the step begins what follows: `stage` and such.
    Where the chain ends its terminal event stands behind these."""
    want: int = 0
    """Tasks to take for the slot, of these `models`, for this `worker`."""
    models: Sequence[str] = ()
    worker: str = ""
    upstream: str = ""
    """Of this worker."""


class Advanced(NamedTuple):
    """The answer to `advance`. `outcome`:

    moved     what follows was done: the next stage is in its line
    ended     what follows was done: the chain has ended
    waits     the part is done, and others are not: nothing else was done
    next      it is the last part of its stage, or none, and nothing said what follows: nothing was done. Read the chain, and call
              again with that
    too_large plan, head and results of the chain would be larger than may be: nothing was done. So are the next
    quota     it cannot be paid: `needed` would be held, and `available` is there (micro-credits)
    no_balance  the balance must be loaded first (`unknown`: subject and window)
    no_worker   its caller waits, and no worker offers the model of the next stage, nor a fallback
    hole      the log of the attempt's task is short of events: it ends at `top`. Nothing was done
    late      another call has ended the task, or its chain; its slot is free now
    stale     the grant is not current

    Behind `too_large`, `quota`, `no_balance`, `no_worker` and `next` the attempt still holds its slot: call again (with a new
    nonce or the same), or `finish` it.
    """

    outcome: str
    event_id: str = ""
    """Of the first event that the step wrote to the chain's log: the first of `log_events`, else the terminal one. The others
    follow it in the same epoch, without a gap."""
    grants: Sequence[Grant] = ()
    top: int = 0
    retry_at: RetryAt = ()
    closed_upstreams: ClosedUpstreams = ()
    model: str = ""
    """With `moved`: the model that the stage waits for now."""
    needed: int = 0
    available: int = 0
    unknown: tuple[str, str] = ("", "")


class Chain(NamedTuple):
    """What is known of a chain, at one moment."""

    state: State
    stage: Stage
    """The one that it is in, or ended in."""
    of: int
    parts: int
    """Of that stage, if it runs as parts; 0: in place."""
    begun: int
    """How many of them have been granted, and how many are done."""
    done: int
    plan: bytes
    """Empty behind the end, and where it was not asked for."""
    head: bytes
    results: Mapping[tuple[int, int], bytes]
    """Of each stage and part that is done; of a stage in place the part is -1. Empty bytes where they were not asked for."""
    used: Mapping[tuple[int, int], Used]
    """The same of what it used; both answers of one that was repaired."""


class Running(NamedTuple):
    """The chain and stage that a grant runs, or the part of one."""

    chain: str
    """The chain's task: the grant's own, or that of its part."""
    stage: Stage
    part: int
    """-1: the stage runs in place."""


def part_id(chain: str, stage: int, part: int) -> str:
    """The task id of a part. No caller's id looks like it."""
    return f"{chain}.{stage}.{part:02d}"


def chain_of(task_id: str) -> str:
    """The chain of a part, by its id; any other id is its own."""
    return task_id.partition(".")[0]


def stage_text(stage: Stage) -> str:
    """Return a stage that runs in place, as a record names it."""
    return f"{stage.number} - {stage.name}"


def parts_of(parts: Sequence[Part]) -> dict[str, Any]:
    """Return what a record says of the parts of its stage; nothing, if it runs in place."""
    if not parts:
        return {}
    inputs = [
        (part.estimated_input, part.max_input if part.max_input > part.estimated_input else None)
        for part in parts
    ]
    return {
        "parts": len(parts),
        "part_inputs": inputs,
        "input_tokens": sum(part.estimated_input for part in parts),
    }


def read_stage(text: str) -> tuple[Stage, int]:
    """Which stage a record's field `stage` says, and which part of it; -1: the stage runs in place, or none is meant."""
    number, part, name = text.split(" ")
    return Stage(int(number), name), -1 if part == "-" else int(part)


def running(grant: Grant) -> Running | None:
    """What a grant runs of a chain; None: its task is none."""
    return Running(chain_of(grant.task_id), *read_stage(grant.stage)) if grant.stage else None


OF_STAGE = frozenset(
    (
        *(
            "model",
            "queue",
            "wait_ms",
            "type",
            "route",
            "template",
            "input_tokens",
            "max_input",
            "max_output",
            "answers",
        ),
        *("run_limit", "stream", "model_omitted", "schema", "repair", "price", "fallbacks", "fallback_after"),
        *("parts", "part_inputs"),
    )
)
"""What a stage says of its task; the rest the chain has from its submission."""


def advance(
    scheduler: Scheduler, grant: Grant, seq: int, events: Sequence[EventFields], step: Step
) -> asyncio.Future[Any]:
    """Complete a stage of a chain, or a part of one, begin what follows, and take tasks for the freed slot.

    `parse_advance` reads the reply.

    One step: the last events, the stage's result and usage, its charge, and the entry of the next stage into its line (or the
    chain's end). The chain keeps the age of its submission. For an attempt that failed there are `requeue` and `finish`, as
    for any task: where these end it, the chain has ended; where it was a part, its chain ends as it did, and the other parts
    are cancelled.

    `seq`: as `finish` has it. Call again with the same `step` until it is answered: the slot is held until then. A call that
    comes when the chain has advanced further returns a stale grant.
    """
    want = 0 if scheduler.spans(step.models) else step.want
    ask = scheduler.ask(step.worker, step.upstream, want, step.nonce) | {
        "id": grant.task_id,
        "epoch": grant.epoch,
        "token": grant.token,
        "seq": seq,
        "used": used_of(step.used),
        "max_bytes": MAX_BYTES,
        "kinds": [kind for kind, _ in events],
        "chain_kinds": [kind for kind, _ in step.log_events],
        "models": step.models,
    }
    blobs = [step.result, *(data for _, data in events), *(data for _, data in step.log_events)]
    if isinstance(step.then, StageEntry):
        entry = step.then
        fields = entry.task.fields() | parts_of(entry.parts)
        of_stage = {name: value for name, value in fields.items() if name in OF_STAGE}
        ask["entry"] = {"stage": stage_text(entry.stage), "fields": of_stage, "reserve": entry.reserve}
        if quota := entry.task.extras.get("quota"):
            ask["entry"]["quota"] = quota
        blobs += [part.payload for part in entry.parts] or [entry.task.payload]
    elif step.then is not None:
        end = step.then
        finish = {"state": end.state, "code": end.code, "kind": end.terminal[0]}
        if end.stage is not None:
            blamed = {"stage": stage_text(end.stage), "model": end.model, "queue": end.queue}
            finish |= {name: value for name, value in blamed.items() if value}
        ask["finish"] = finish
        blobs.append(end.terminal[1])
    return scheduler.of_task(grant.task_id).run("advance", ask, *blobs)


def parse_advance(scheduler: Scheduler, reply: Any) -> Advanced:
    """Read the reply of `advance`. Count the chain's end, if it ended with the last of its parts."""
    said = decode_map(reply[0])
    scheduler.count_ends(said.get("ended", ()))
    grants, later = read_grants(reply), read_retry_at(said.get("later", ()))
    unknown = (said["subject"], said["window"]) if "window" in said else ("", "")
    return Advanced(
        said["outcome"],
        said.get("event_id", ""),
        grants,
        said.get("top", 0),
        *later,
        said.get("model", ""),
        said.get("needed", 0),
        said.get("available", 0),
        unknown,
    )


async def read_chain(scheduler: Scheduler, task_id: str, *, contents: bool = True) -> Chain | None:
    """What is known of a chain; None: it is none, or it is unknown or expired.

    `contents`: with its plan and results, which may be large; else only which results there are.
    """
    reply = await scheduler.of_task(task_id).run("read_chain", {"id": task_id, "contents": contents})
    return _read(reply) if decode_map(reply[0])["known"] else None


def _read(reply: Sequence[bytes]) -> Chain:
    packed, plan, head, *results = reply
    said = decode_map(packed)

    def place(text: str) -> tuple[int, int]:
        at, _, part = text.partition(".")
        return int(at), int(part or -1)

    found = dict(zip(map(place, said["results"]), results, strict=True))
    used = {place(text): Used.read(one) for text, one in (said["used"] or {}).items()}
    at_stage, _ = read_stage(said["stage"])
    state, numbers = State(said["state"]), (said["of"], said["parts"], said["begun"], said["done"])
    return Chain(state, at_stage, *numbers, plan, head, found, used)
