"""Batches: what callers can do with them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.accounts.tokens import TokenForbids
from fairlane.gateway.batches.models import Batch, could_be, new_batch_id, read_window
from fairlane.gateway.batches.requests import READERS
from fairlane.gateway.batches.store import BatchStore, TooMany
from fairlane.gateway.calls.openai import MAX_EXPIRY_S, MAX_KEY, MAX_PAIRS, MAX_VALUE, MIN_EXPIRY_S
from fairlane.gateway.current import Current
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.files.files import Files
from fairlane.gateway.files.rows import FileRow
from fairlane.gateway.settings import suggestion
from fairlane.queues.clock import now_ms

MEMBERS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
PURPOSE = "batch"
WAIT_MS = 60_000
MAX_UNENDED_PER_CALLER = 100
FILES_OF_BATCH = 2
"""That a batch may write; together they are taken to be as large as the one that it reads."""
FILE_KEPT_BEHIND_MS = 24 * 3_600_000
"""So long behind the end of its window the file of a batch is kept, as it may take long until it has ended: no gateway runs, or
the storage is away."""


class Batches:
    """See the module. Everything raises ApiError and DatabaseUnavailable."""

    def __init__(self, current: Current, store: BatchStore, files: Files, hurry: Callable[[], None]) -> None:
        """`hurry`: lets whoever leads batches here look at once."""
        self._current = current
        self._store = store
        self._files = files
        self._hurry = hurry

    async def create(self, caller: Caller, said: Mapping[str, Any]) -> Batch:
        """A new batch, whose file is looked at from now on. Raises ApiError: 400 that names the field, 403, 404, 429, 507."""
        if caller.claims is not None:
            raise TokenForbids("With a token no batches can be made: make them with the key that signed it")
        if not self._current.settings.files.enabled:
            raise ApiError(404, "FILES_OFF", "This gateway takes no files (files.enabled), and so no batches")
        for name in said:
            if name not in MEMBERS:
                raise bad_request(f"There is no {name[:100]!r}{suggestion(name, MEMBERS)}", name)
        endpoint = _text(said, "endpoint")
        if endpoint not in READERS:
            raise bad_request(f"endpoint must be one of {', '.join(READERS)}", "endpoint")
        settings = self._current.settings.batches
        window, window_ms = _window(said, settings.max_window_ms)
        metadata, ttl_s = _metadata(said), _ttl(said)
        file_id = _text(said, "input_file_id")
        owner = caller.owner
        try:
            row = await self._files.row(owner, file_id)
        except ApiError as error:
            if error.status == 404:
                error.param = "input_file_id"
            raise
        if row.purpose != PURPOSE:
            sentence = f"The file has the purpose {row.purpose}: upload it with purpose={PURPOSE}"
            raise bad_request(sentence, "input_file_id")
        # what a batch writes is never refused, whatever its caller has by then: so who has no room begins none
        await self._files.check_room(owner, FILES_OF_BATCH, row.bytes)
        now = now_ms()
        batch = Batch(
            id=new_batch_id(now),
            key_id=caller.key_id,
            user=caller.user,
            tier=caller.tier,
            endpoint=endpoint,
            input_file=file_id,
            window=window,
            created=now,
            expires=now + window_ms,
            metadata=metadata,
            output_ttl_s=ttl_s,
        )
        try:
            await self._store.add(batch, MAX_UNENDED_PER_CALLER, self._file_until(row, batch))
        except TooMany:
            sentence = f"You have {MAX_UNENDED_PER_CALLER} batches that have not ended; wait, or cancel some"
            raise ApiError(429, "TOO_MANY_BATCHES", sentence, retry_after_ms=WAIT_MS) from None
        self._hurry()
        return batch

    def _file_until(self, row: FileRow, batch: Batch) -> int:
        """Until when the file of a new batch is kept, whatever its caller said: until it has ended. Batch after batch keeps none
        for ever: what the settings say of files holds, but for one longest window."""
        until = batch.expires + FILE_KEPT_BEHIND_MS
        settings = self._current.settings
        ttl_ms = settings.files.ttl_ms
        if ttl_ms is None:
            return until
        return min(until, row.created + ttl_ms + settings.batches.max_window_ms + FILE_KEPT_BEHIND_MS)

    async def find(self, caller: Caller, batch_id: str) -> Batch:
        """A batch that the caller has made. Raises ApiError(404)."""
        return await self._find(batch_id, caller.owner)

    async def page(self, caller: Caller, after: str, limit: int) -> tuple[list[Batch], bool]:
        """The caller's batches, the newest first, and whether there are more."""
        found = await self._store.page(caller.owner, after, limit + 1)
        return found[:limit], len(found) > limit

    async def cancel(self, caller: Caller, batch_id: str) -> Batch:
        """Let a batch end early: what has been answered stands in its files. One that is ending, or has ended, stays as it is."""
        return await self._cancel(batch_id, caller.owner)

    # ---- operators ----------

    async def page_of_all(
        self, after: str, limit: int, statuses: Collection[str], key_id: str, user: str
    ) -> tuple[list[Batch], bool]:
        """Everybody's batches, likewise."""
        found = await self._store.page(None, after, limit + 1, statuses=statuses, key_id=key_id, user=user)
        return found[:limit], len(found) > limit

    async def find_any(self, batch_id: str) -> Batch:
        """A batch, whoever's it is. Raises ApiError(404)."""
        return await self._find(batch_id, None)

    async def cancel_any(self, batch_id: str) -> Batch:
        """The same as `cancel`."""
        return await self._cancel(batch_id, None)

    async def end_of(self, user: str, until: int) -> tuple[int, int]:
        """Cancel what a user has made until then (ms) and has something to run still; how many it were, and how many have not
        ended yet."""
        cancelled, unended = await self._store.cancel_of(user, until, now_ms())
        if unended:
            self._hurry()
        return cancelled, unended

    async def _find(self, batch_id: str, owner: Owner | None) -> Batch:
        found = await self._store.find(batch_id, owner) if could_be(batch_id) else None
        if found is None:
            raise ApiError(404, "BATCH_NOT_FOUND", f"There is no batch {batch_id[:64]!r}", param="batch_id")
        return found

    async def _cancel(self, batch_id: str, owner: Owner | None) -> Batch:
        await self._find(batch_id, owner)
        await self._store.cancel(batch_id, now_ms())
        self._hurry()
        return await self._find(batch_id, owner)


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    if value is None:
        raise bad_request(f"{name} is missing", name)
    if not isinstance(value, str):
        raise bad_request(f"{name} must be a string", name)
    return value


def _window(said: Mapping[str, Any], most_ms: int) -> tuple[str, int]:
    text = _text(said, "completion_window")
    ms = read_window(text)
    if ms is None or ms > most_ms:
        sentence = f"completion_window must be a time such as 24h, of at most {most_ms // 3_600_000} hours"
        raise bad_request(sentence, "completion_window")
    return text, ms


def _metadata(said: Mapping[str, Any]) -> str:
    value = said.get("metadata")
    if value is None:
        return ""
    fits = isinstance(value, dict) and len(value) <= MAX_PAIRS
    if not fits or not all(
        len(key) <= MAX_KEY and isinstance(text, str) and len(text) <= MAX_VALUE
        for key, text in value.items()
    ):
        sentence = (
            f"metadata may hold {MAX_PAIRS} pairs of texts, the keys of at most {MAX_KEY} characters, the values of "
            f"{MAX_VALUE}"
        )
        raise bad_request(sentence, "metadata")
    return msgspec.json.encode(value).decode()


def _ttl(said: Mapping[str, Any]) -> int:
    value = said.get("output_expires_after")
    if value is None:
        return 0
    if (
        not isinstance(value, dict)
        or value.keys() != {"anchor", "seconds"}
        or value["anchor"] != "created_at"
    ):
        sentence = 'output_expires_after must be {"anchor": "created_at", "seconds": …}'
        raise bad_request(sentence, "output_expires_after")
    seconds = value["seconds"]
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int)
        or not MIN_EXPIRY_S <= seconds <= MAX_EXPIRY_S
    ):
        sentence = (
            f"output_expires_after.seconds must be a whole number from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}"
        )
        raise bad_request(sentence, "output_expires_after")
    return seconds
