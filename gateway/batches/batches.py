"""What clients and operators can do with batches."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.accounts.callers import Caller
from fairlane.gateway.accounts.owner import Owner
from fairlane.gateway.audit.log import AuditRecord
from fairlane.gateway.batches.models import Batch, could_be, new_batch_id, read_window
from fairlane.gateway.batches.requests import READERS
from fairlane.gateway.batches.store import BatchStore, TooMany
from fairlane.gateway.configuration import ActiveConfig
from fairlane.gateway.errors import ApiError, bad_request
from fairlane.gateway.features import feature_of_path
from fairlane.gateway.files.files import Files
from fairlane.gateway.openai.requests import CHAT, MAX_EXPIRY_S, MAX_KEY, MAX_PAIRS, MAX_VALUE, MIN_EXPIRY_S
from fairlane.queues.clock import now_ms
from fairlane.queues.overrides import Actor

PURPOSE = "batch"
WAIT_MS = 60_000
MAX_UNENDED_PER_OWNER = 100
FILES_OF_BATCH = 2
"""Files that a batch writes; their total size is estimated by the size of its input."""
MAX_WINDOW_MS = 7 * 24 * 3_600_000
"""The longest `completion_window`."""
FILE_KEPT_BEHIND_MS = 24 * 3_600_000
"""How long the input file is kept behind the batch's window: no gateway may run at its end, or the storage may be unavailable."""


class OutputExpiry(BaseModel):
    """When the output and error files are deleted."""

    model_config = ConfigDict(extra="forbid", strict=True)
    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)


class NewBatch(BaseModel):
    """A batch to be created."""

    model_config = ConfigDict(extra="forbid", strict=True)
    input_file_id: str = Field(description="a file of the purpose `batch`")
    endpoint: str = Field(description="the call that each line is a request of", examples=[CHAT])
    completion_window: str = Field(description="a number and s, m, h or d", examples=["24h"])
    metadata: (
        dict[Annotated[str, Field(max_length=MAX_KEY)], Annotated[str, Field(max_length=MAX_VALUE)]] | None
    ) = Field(default=None, max_length=MAX_PAIRS)
    output_expires_after: OutputExpiry | None = None


class Batches:
    """Use cases. All raise ApiError and DatabaseUnavailable."""

    def __init__(
        self,
        current: ActiveConfig,
        store: BatchStore,
        files: Files,
        hurry: Callable[[], None],
        audit: AuditRecord,
    ) -> None:
        """`hurry` wakes the leader of this replica."""
        self._audit = audit
        self._current = current
        self._store = store
        self._files = files
        self._hurry = hurry

    async def create(self, caller: Caller, new: NewBatch) -> Batch:
        """Create a batch; its file is validated later. Raises ApiError: 400 that names the field, 403, 404, 429, 507."""
        settings = self._current.settings
        if not settings.files.max_bytes:
            raise ApiError(
                404, "FILES_OFF", "This gateway takes no files (files.max_size: 0), and so no batches"
            )
        if new.endpoint not in READERS:
            raise bad_request(f"endpoint must be one of {', '.join(READERS)}", "endpoint")
        if feature := feature_of_path(new.endpoint, self._current.settings.disabled_features):
            raise bad_request(f"endpoint: this gateway has {feature} disabled", "endpoint")
        window_ms = read_window(new.completion_window)
        if window_ms is None or window_ms > MAX_WINDOW_MS:
            sentence = (
                f"completion_window must be a time such as 24h, of at most {MAX_WINDOW_MS // 3_600_000} hours"
            )
            raise bad_request(sentence, "completion_window")
        file_id = new.input_file_id
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
        # the files that a batch writes are never rejected, so a caller without room for them cannot begin one
        await self._files.check_room(owner, FILES_OF_BATCH, row.bytes)
        now = now_ms()
        batch = Batch(
            id=new_batch_id(now),
            key_id=caller.key_id,
            user_name=caller.user,
            tier=caller.tier,
            endpoint=new.endpoint,
            input_file=file_id,
            completion_window=new.completion_window,
            created=now,
            expires=now + window_ms,
            metadata=msgspec.json.encode(new.metadata).decode() if new.metadata is not None else "",
            output_ttl_s=new.output_expires_after.seconds if new.output_expires_after else 0,
        )
        file_until, ttl_ms = batch.expires + FILE_KEPT_BEHIND_MS, settings.files.ttl_ms
        if ttl_ms is not None:  # however many batches read it
            file_until = min(file_until, row.created + ttl_ms + MAX_WINDOW_MS + FILE_KEPT_BEHIND_MS)
        try:
            await self._store.add(batch, MAX_UNENDED_PER_OWNER, file_until)
        except TooMany:
            sentence = f"You have {MAX_UNENDED_PER_OWNER} batches that have not ended; wait, or cancel some"
            raise ApiError(429, "TOO_MANY_BATCHES", sentence, retry_after_ms=WAIT_MS) from None
        self._hurry()
        return batch

    async def find(self, batch_id: str, owner: Owner | None) -> Batch:
        """Return a batch of an owner (None: of any). Raises ApiError(404)."""
        found = await self._store.find(batch_id, owner) if could_be(batch_id) else None
        if found is None:
            raise ApiError(404, "BATCH_NOT_FOUND", f"There is no batch {batch_id[:64]!r}", param="batch_id")
        return found

    async def page(
        self, owner: Owner | None, after: str, limit: int, **filters: Any
    ) -> tuple[list[Batch], bool]:
        """Return batches of an owner (None: of all), the newest first, and whether there are more. `filters`: as
        `BatchStore.page` takes them."""
        found = await self._store.page(owner, after, limit + 1, **filters)
        return found[:limit], len(found) > limit

    async def cancel(self, batch_id: str, owner: Owner | None) -> Batch:
        """End a batch early; its files have the answers so far. One that is finalizing or has ended does not change."""
        await self.find(batch_id, owner)
        await self._store.cancel(batch_id, now_ms())
        self._hurry()
        return await self.find(batch_id, owner)

    async def cancel_any(self, batch_id: str, actor: Actor) -> bool:
        """Cancel any user's batch for an operator, with an audit log entry. Return whether this call did. Raise ApiError(404)."""
        before = await self.find(batch_id, None)
        after = await self.cancel(batch_id, None)
        if after.status == before.status:
            return False
        shown = {"status": before.status, "user": before.user_name}
        await self._audit.note(actor, "cancel", f"batch {batch_id}", shown, {"status": after.status})
        return True

    async def end_of(self, user: str, until: int) -> tuple[int, int]:
        """Cancel a user's batches that were created until then (ms). Return the number of cancelled ones, and of those that have
        not ended yet."""
        cancelled, unended = await self._store.cancel_of(user, until, now_ms())
        if unended:
            self._hurry()
        return cancelled, unended
