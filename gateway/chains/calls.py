"""Native calls for chains, and what polls and operators see of a chain."""

import contextlib
from collections.abc import Awaitable
from functools import partial
from typing import Any

from fairlane.gateway.attached import AnswerMode, NativeCall, NativeTask, Polled
from fairlane.gateway.chains.fields import chain_fields, failure_fields, place_of_chain, stages_of
from fairlane.gateway.chains.plan import Head, read_head
from fairlane.gateway.chains.requests import Submission, make_chain, read_request
from fairlane.gateway.core.bodies import encode_members
from fairlane.gateway.core.poll import not_found, place_fields, poll_after
from fairlane.gateway.core.spec import OWN_FIELDS, read_flag, read_options
from fairlane.gateway.runtime import Gateway
from fairlane.queues.chains import Chain, read_chain
from fairlane.queues.errors import StoreError
from fairlane.queues.semaphore import FairSemaphore
from fairlane.queues.tasks import TERMINAL, Place, Record, State, Submitted
from fairlane.streaming.jsontext import kind_of
from fairlane.streaming.results import MAX_CONCURRENT


class ChainCalls:
    """Makes tasks of calls that name a chain, and reads chains."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._scheduler = gateway.scheduler
        self._semaphore = FairSemaphore(MAX_CONCURRENT)

    def prepare(self, call: NativeCall) -> Awaitable[NativeTask] | None:
        """See `Attached`."""
        return self._prepare(call) if kind_of(call.fields.get("chain") or b"") else None

    async def _prepare(self, call: NativeCall) -> NativeTask:
        """Return the task of a chain. `async` is true by default, without `stream`."""
        fields, gateway, current = call.fields, self._gateway, self._gateway.current
        stream = read_flag(fields, "stream")
        asynchronous = read_flag(fields, "async") if kind_of(fields.get("async") or b"") else not stream
        wanted = await read_request(current, call.caller, fields, gateway.bodies)
        gateway.calls.name(call.request, call.caller)
        options = read_options(fields, wait=not asynchronous, stream=stream)
        options.sets_stream = bool(kind_of(fields.get("stream") or b""))
        archived = current.settings.archive == "requests" and asynchronous
        task, chain = await make_chain(
            current,
            call.caller,
            wanted,
            options,
            task_id=call.task_id,
            subject=call.subject,
            request=encode_members(fields, OWN_FIELDS) if archived else b"",
        )
        if asynchronous:
            return NativeTask(task, AnswerMode.LATER, accepted=partial(self._accepted, chain))
        return NativeTask(task, AnswerMode.STREAM if stream else AnswerMode.WAIT, failed=self.failed)

    async def _accepted(self, chain: Submission, submitted: Submitted) -> dict[str, Any]:
        """Return the members of a 202: if Redis fails now, the estimate is of the first stage alone."""
        place = submitted.place
        with contextlib.suppress(StoreError):
            place = await self._whole(place, chain.head, chain.first)
        now = {"stageStatus": chain.head.stages[chain.first].status, "stages": chain.stages}
        return {**place_fields(place), "pollAfterMs": poll_after(place.wait_ms), **now}

    async def failed(self, task_id: str, user: str) -> dict[str, Any]:
        """Return in which stage a chain of this user failed, and the results so far; {} if it is gone. Few are read at the same
        time, as each may be large."""
        try:
            async with self._semaphore.hold(user):
                chain = await read_chain(self._scheduler, task_id)
        except StoreError:
            return {}
        return {} if chain is None else failure_fields(read_head(chain.head), chain)

    def polled(self, task_id: str, record: Record) -> Awaitable[Polled] | None:
        """See `Attached`."""
        return self._polled(task_id, record) if is_chain(record) else None

    async def _polled(self, task_id: str, record: Record) -> Polled:
        """Return a chain in the state of its record; an ended one with its results, which can be large."""
        if record.state in TERMINAL:
            async with self._semaphore.hold(record.fields["user"]):
                return Polled(chain_fields(await self._chain(task_id, record, contents=True)))
        chain = await self._chain(task_id, record, contents=False)
        ran_ms = record.now_ms - record.number("granted_at") if record.state is State.EXECUTING else -1
        place = await self._whole(record.place, read_head(chain.head), chain.stage.number, ran_ms)
        return Polled(chain_fields(chain), place)

    async def _chain(self, task_id: str, record: Record, *, contents: bool) -> Chain:
        chain = await read_chain(self._scheduler, task_id, contents=contents)
        if chain is None:
            raise not_found(task_id)  # it expired meanwhile
        return chain._replace(state=record.state)  # it may have advanced since that was read

    def inspected(self, task_id: str, record: Record) -> Awaitable[dict[str, Any]] | None:
        """See `Attached`."""
        return self._inspected(task_id, record) if is_chain(record) else None

    async def _inspected(self, task_id: str, record: Record) -> dict[str, Any]:
        """Return the chain's name and its stages, as a poll shows them, with model and queue; {} if it is gone."""
        chain = await read_chain(self._scheduler, task_id, contents=False)
        if chain is None:
            return {}
        head = read_head(chain.head)
        stages = stages_of(head, chain._replace(state=record.state))
        where = [{"model": stage.model or None, "queue": stage.queue or None} for stage in head.stages]
        shown = [stage | place for stage, place in zip(stages, where, strict=True)]
        return {"chainName": head.name, "stages": shown}

    async def _whole(self, place: Place, head: Head, now: int, ran_ms: int = -1) -> Place:
        """Return the place of a chain in its stage `now`, with the wait until its last stage begins. `ran_ms`: how long the
        stage has run; -1: it waits."""
        lanes = [(stage.queue, stage.model) for stage in head.stages]
        return place_of_chain(place, now, ran_ms, await self._scheduler.wait_estimates(lanes))


def is_chain(record: Record) -> bool:
    """Return whether a record is a chain's: its fields name the current stage."""
    return "stage" in record.fields and "chain" not in record.fields  # which a part has
