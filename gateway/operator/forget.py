"""Forgetting a user."""

import time
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fairlane.gateway.database.database import Database
from fairlane.gateway.errors import bad_request
from fairlane.gateway.operator.audit import AuditRecord
from fairlane.gateway.records.forgetting import FORGOTTEN, PARTS, Forgotten
from fairlane.gateway.records.ledger import rows_of_user
from fairlane.queues.actor import Actor
from fairlane.queues.scheduler import Scheduler

FORGET_S = 20.0
"""How long a call goes on; then it is called again."""


class ForgottenUser(BaseModel):
    """Who is to be forgotten."""

    model_config = ConfigDict(extra="forbid", strict=True)

    user: Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$")] = Field(
        description="as records and the task list name it: `key/user` of a delegating key"
    )


class Forget:
    """Removes a user's archived content, results and failures, and the name from records. A second call finds nothing to do."""

    def __init__(
        self, database: Database, forgotten: Forgotten, scheduler: Scheduler, audit: AuditRecord
    ) -> None:
        self._database = database
        self._forgotten = forgotten
        self._scheduler = scheduler
        self._audit = audit

    async def __call__(self, user: str, actor: Actor) -> dict[str, Any]:
        """How many rows of each kind it were, in how many of the ledger the name stays, and whether there are more: then call
        again. Written down, without the name. Raises ApiError, StoreError, DatabaseUnavailable: what is done stays done."""
        if user == FORGOTTEN:
            raise bad_request(f"{FORGOTTEN} stands for all who were forgotten", "user")
        end = time.monotonic() + FORGET_S
        until = await self._scheduler.now_ms()
        await self._forgotten.mark(user, until)
        results = await self._scheduler.forget(user, until)
        done = dict.fromkeys(PARTS, 0)
        more = False
        for name, part in PARTS.items():
            while not more:
                async with self._database.writing() as connection:
                    rows = await part(connection, user, until)
                done[name] += rows
                if not rows:
                    break
                more = time.monotonic() >= end
        async with self._database.reading() as connection:
            ledger = await rows_of_user(connection, user)
        told = {**done, "results": results, "ledger": ledger, "more": more}
        await self._audit.note(actor, "forget", "user", {}, told)
        return told
