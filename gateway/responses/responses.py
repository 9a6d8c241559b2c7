"""Use cases of stored responses: read, resume, continue, cancel, delete. Know nothing of HTTP."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.core.cancel import Cancel
from fairlane.gateway.errors import ApiError, bad_request, too_large
from fairlane.gateway.responses.log_archive import ArchiveReader, pack
from fairlane.gateway.responses.pending import PendingResponse, ResponseStorage
from fairlane.gateway.responses.request.request import StorageOptions
from fairlane.gateway.responses.store import CONTINUED, New, ResponseStore, Row, Turn
from fairlane.queues.clock import now_ms
from fairlane.queues.ids import could_be_ours, issued_ms
from fairlane.queues.overrides import Actor
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.semaphore import FairSemaphore
from fairlane.queues.tasks import TERMINAL, Place, Record, State, TaskSpec
from fairlane.streaming.events import Event, compose, fragment_error, fragment_start, wait_members
from fairlane.streaming.hub import Hub, Lost, Reader
from fairlane.streaming.jsontext import items, members
from fairlane.streaming.results import LARGE, MAX_CONCURRENT, Results
from fairlane.streaming.views.responses import ResponsesBodyView, response_id, task_of_item, task_of_response

LOST = "The store lost this response"
MAX_TURNS = 500
"""Responses that a conversation consists of."""
MAX_REFERENCED = 200
"""Responses of whose items one request speaks."""


class LiveResponse(NamedTuple):
    """A response that is read while it runs."""

    reader: Reader | ArchiveReader
    place: Place | None = None
    """Its place in the queue; None: it does not wait."""


class Responses:
    """All methods raise ApiError, StoreError and DatabaseUnavailable."""

    def __init__(
        self,
        current: ActiveConfig,
        store: ResponseStore,
        storage: ResponseStorage,
        takes_more: Callable[[], bool],
        scheduler: Scheduler,
        hub: Hub,
        results: Results,
        cancel: Cancel,
        note: Callable[..., Awaitable[None]],
    ) -> None:
        """`takes_more`: whether SQL takes what is written, as far as that is known. `note`: `AuditRecord.note`."""
        self._storage = storage
        self._takes_more = takes_more
        self._current = current
        self._store = store
        self._scheduler = scheduler
        self._hub = hub
        self._results = results
        self._cancel = cancel
        self._note = note
        self._semaphore = FairSemaphore(MAX_CONCURRENT)

    # ---- reading one ----------

    async def find(self, caller: Caller, wanted_id: str) -> Row:
        """Return the response of this id. Raise ApiError(404) if the caller may not see it, as if it did not exist."""
        task_id = _task_of(wanted_id)
        row = await self._store.row(task_id, now_ms()) if task_id else None
        if row is None or not caller.may_see(row.key_id, row.user):
            raise _not_found(wanted_id)
        return row

    async def body(self, row: Row) -> bytes:
        """Return the response object as it is now."""
        if row.ended is None:
            record = await self._scheduler.position(row.task_id)
            if record is not None:
                with contextlib.suppress(Lost):  # it has expired meanwhile
                    return await self._body_in_redis(row, record)
            row = await self._again(row)
        view = ResponsesBodyView(row.info, row.echo)
        async with self._semaphore.hold(row.user):
            size = await self._fold(row, view)
            return view.body() if size < LARGE else await asyncio.to_thread(view.body)

    async def _fold(self, row: Row, view: ResponsesBodyView) -> int:
        """Feed a view the log that SQL has; its bytes."""
        size = 0
        reader = ArchiveReader(partial(self._part, row))
        while True:
            try:
                events = await reader.next(0.0)
            except Lost:  # it was deleted meanwhile
                raise _not_found(row.id) from None
            for event in events:
                view.feed(event)
                size += len(event.data)
            if events[-1].terminal:
                return size

    async def _body_in_redis(self, row: Row, record: Record) -> bytes:
        make = partial(ResponsesBodyView, echo=row.echo)
        if record.state in TERMINAL:
            return await self._results.shown(row.info, make, ResponsesBodyView.body)
        view = make(row.info)
        if record.state is State.QUEUED:
            return self.accepted(row, record.place)
        fragment = b'"attempt":%d,' % record.number("attempt") + fragment_start(
            record.model, record.fields["queue"]
        )
        view.feed(Event(0, 0, "start", compose(row.task_id, record.now_ms, fragment)))
        return view.body()

    @contextlib.asynccontextmanager
    async def follow(self, row: Row) -> AsyncIterator[LiveResponse]:
        """Read a response's log from its first event, and new events, until the block ends."""
        if row.ended is None:
            async with self._hub.read(row.task_id) as found:
                if found is not None:
                    record, reader = found
                    waits = record.state is State.QUEUED and record.place.position > 0
                    yield LiveResponse(reader, record.place if waits else None)
                    return
            row = await self._again(row)
        yield LiveResponse(ArchiveReader(partial(self._part, row)))

    async def _again(self, row: Row) -> Row:
        """Return the row of a response that Redis does not have: SQL may have its log by now."""
        again = await self._store.row(row.task_id, now_ms())
        if again is None:
            raise _not_found(row.id)
        return again

    async def _part(self, row: Row, part: int) -> bytes | None:
        """Return a part of a log that SQL has; if the log is lost, an end that says so."""
        if row.ended is not None:
            return await self._store.part(row.task_id, part)
        lost = compose(row.task_id, row.created, fragment_error(LOST, "STORE_LOST", False))
        return pack([Event(1, 1, "error", lost)]) if part == 0 else None

    async def input_items(self, row: Row) -> bytes:
        """Return its input, a JSON list of items."""
        found = await self._store.items([row.task_id])
        if row.task_id not in found:
            raise _not_found(row.id)
        return found[row.task_id][0]

    # ---- ending, and deleting ----------

    async def cancel(self, row: Row, caller: Caller, actor: Actor) -> bytes:
        """Cancel a background response, and return it: one that has ended stays as it is."""
        if not row.background:
            raise bad_request("Only responses with background: true can be cancelled", "response_id")
        await self._end(row, caller, actor)
        return await self.body(row)

    async def delete(self, row: Row, caller: Caller, actor: Actor) -> None:
        """Delete a response; cancel it if it still runs. May be called again after a failure. The audit log notes an operator
        that deletes another user's response."""
        await self._end(row, caller, actor)
        await self._scheduler.delete_task(row.task_id)
        gone = await self._store.delete(row.task_id)
        if gone and not caller.owns(row.key_id, row.user):
            await self._note(actor, "delete", f"response {row.id}", {"user": row.user}, {})

    async def _end(self, row: Row, caller: Caller, actor: Actor) -> None:
        record = await self._scheduler.position(row.task_id) if row.ended is None else None
        if record is None or record.state in TERMINAL:
            return
        if caller.owns(row.key_id, row.user):
            await self._cancel.own(row.task_id, record)
        else:
            await self._cancel.others(row.task_id, record, actor)

    # ---- continuing others ----------

    async def history(self, caller: Caller, wanted_id: str, most: int) -> list[bytes]:
        """Return the input and output items of the conversation that ends with one of the caller's responses, oldest first.

        Raise ApiError(400) if a part of it is missing, it cannot be continued, or it has more than `most` bytes."""
        task_id = _task_of(wanted_id)
        turns = await self._store.line(task_id, MAX_TURNS + 1, now_ms()) if task_id else []
        turns = [turn for turn in turns if caller.owns(turn.row.key_id, turn.row.user)]
        if not turns or turns[0].row.task_id != task_id:
            raise _no_previous(f"Previous response with id '{wanted_id[:100]}' not found.")
        _check_whole(turns)
        if sum(turn.size for turn in turns) > most:
            text = f"The conversation that leads to {wanted_id} has more than {most} bytes: begin a new one"
            raise bad_request(text, "previous_response_id")
        unended = [await self._again(turn.row) for turn in turns if turn.row.ended is None]
        bodies = {row.task_id: await self._bare(row) for row in unended}
        latest = turns[0].row
        status = bodies[latest.task_id].status if latest.task_id in bodies else latest.status
        if status not in CONTINUED:
            text = f"The response {wanted_id} is {status}: only one that is completed or incomplete can be continued"
            raise bad_request(text, "previous_response_id")
        kept = await self._store.items([turn.row.task_id for turn in turns])
        found: list[bytes] = []
        for turn in reversed(turns):
            await asyncio.sleep(0)  # each may be large
            asked, answered = kept.get(turn.row.task_id, (b"[]", b"[]"))
            found += items(asked) or []
            known = bodies.get(turn.row.task_id)
            found += known.output if known else items(answered) or []
        return found

    async def referenced(self, caller: Caller, ids: Collection[str], most: int) -> Mapping[str, bytes]:
        """Return the items with these ids of the caller's responses, if they exist. Raise ApiError: 413 if they, or the output of
        one of their responses, have more than `most` bytes."""
        if not ids or not self._current.settings.responses.ttl_ms:
            return {}
        tasks = {task for item_id in ids if (task := task_of_item(item_id)) and could_be_ours(task, now_ms())}
        if len(tasks) > MAX_REFERENCED:
            raise bad_request(f"A request may refer to items of {MAX_REFERENCED} responses", "input")
        wanted, found, left = frozenset(ids), dict[str, bytes](), most
        rows = await self._store.rows(tasks, now_ms(), bare=True) if tasks else []
        for row in rows:  # one by one: what each holds may be large
            if not caller.owns(row.key_id, row.user):
                continue
            if row.ended is None:
                output: Sequence[bytes] = (await self._bare(await self._again(row))).output
            else:
                output = items(await self._store.output(row.task_id, most)) or []
            for item in output:
                if (item_id := _named(item).id) in wanted and item_id not in found:
                    left -= len(item)
                    if left < 0:
                        raise too_large(most)
                    found[item_id] = bytes(item)
        return found

    async def _bare(self, row: Row) -> "_Bare":
        """Return a response's status and output."""
        made = members(await self.body(row)) or {}
        return _Bare(msgspec.json.decode(made["status"], type=str), items(made.get("output")) or [])

    # ---- storing one ----------

    def pending(
        self, task: TaskSpec, wishes: StorageOptions, *, stores: bool, echo: bytes, input_items: bytes
    ) -> PendingResponse:
        """Return the response that a task will make. If it is to be stored, have the task's log archived in SQL."""
        if not stores:
            return PendingResponse(self._storage, None, echo, required=False)
        ttl_ms, created = self._current.settings.responses.ttl_ms, issued_ms(task.id)
        task.extras |= {"archive": ttl_ms, "archive_log": True}
        task.extras.pop("keep_request", None)
        falls = task.asked != "" or task.downgrade is not None
        before = _task_of(wishes.previous or "") or ""
        row = Row(
            *(task.id, task.key, task.user, created, created + ttl_ms),
            *(wishes.background, task.model, falls, before, echo),
        )
        return PendingResponse(self._storage, New(row, input_items), echo, required=wishes.needs_storage)

    async def stores(self, wishes: StorageOptions) -> bool:
        """Return whether a response is to be stored. While the database fails, only what needs storage is.

        Raise ApiError(400), and DatabaseUnavailable if it needs storage and the database fails.
        """
        if wishes.background and wishes.store is False:
            raise bad_request(
                "background needs store: true: a response that is not stored cannot be read", "store"
            )
        if not self._current.settings.responses.ttl_ms:
            wanted = {
                "background": wishes.background,
                "previous_response_id": wishes.previous is not None,
                "store": wishes.store,
            }
            for name, value in wanted.items():
                if value:
                    raise bad_request(f"{name}: this gateway stores no responses (responses.ttl: 0)", name)
            return False
        if wishes.needs_storage:
            await self._storage.writer.check()
            return True
        return wishes.store is None and self._takes_more()

    def accepted(self, row: Row, place: Place) -> bytes:
        """Return the response object of one that has just been submitted."""
        body = ResponsesBodyView(row.info, row.echo).body()
        return _with_place(body, place) if place.position else body


class _Named(msgspec.Struct):
    id: str = ""


_named = msgspec.json.Decoder(_Named).decode


class _Bare(NamedTuple):
    status: str
    output: list[bytes]


def _task_of(response: str) -> str | None:
    """Return the task of a response's id; None for what this gateway cannot have issued."""
    task_id = task_of_response(response)
    return task_id if task_id and could_be_ours(task_id, now_ms()) else None


def _check_whole(turns: Sequence[Turn]) -> None:
    """Raise ApiError(400) if a part of a conversation has expired, or it is too long."""
    for turn, before in zip(turns, [*turns[1:], None], strict=True):
        previous = turn.row.previous
        if len(turns) > MAX_TURNS:
            raise bad_request(
                f"The conversation has more than {MAX_TURNS} responses: begin a new one",
                "previous_response_id",
            )
        if previous and (before is None or before.row.task_id != previous):
            raise _no_previous(f"The conversation goes back to '{response_id(previous)}', which has expired.")


def _with_place(body: bytes, place: Place) -> bytes:
    """Return a response object that says where it waits."""
    return b'%b,"fairlane":{"queuePosition":%d,%b}}' % (body[:-1], place.position, wait_members(place))


def _not_found(wanted_id: str) -> ApiError:
    return ApiError(404, "RESPONSE_NOT_FOUND", f"Response with id '{wanted_id[:100]}' not found.")


def _no_previous(sentence: str) -> ApiError:
    return ApiError(400, "PREVIOUS_RESPONSE_NOT_FOUND", sentence, param="previous_response_id")
