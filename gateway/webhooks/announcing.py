"""Writes down, in the transaction in which something ended, who is to be told of it by webhooks."""

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection


class Owner(NamedTuple):
    """Whose something is, as polls ask it: `Caller.key_id` and `Caller.user`."""

    key_id: str
    user: str


class End(NamedTuple):
    """Something that has ended."""

    owner: Owner
    event: str
    """How its end is called, one of EVENTS: `batch.completed`."""
    object_id: str
    """What callers know it by: a task's id, `resp_…`, `batch_…`."""
    ended: int
    """When, ms since 1970."""


async def announce(connection: AsyncConnection, owner: Owner, event: str, object_id: str, ended: int) -> int:
    """Have the owner's webhooks tell of one end; how many will. See `announce_all`."""
    return await announce_all(connection, [End(owner, event, object_id, ended)])


async def announce_all(connection: AsyncConnection, ends: Sequence[End]) -> int:
    """Have webhooks of their owners tell of these ends; how many deliveries are new.

    What is owed is written in this transaction: it is owed if that is committed, and only then, whoever dies. A second call for the
    same end (event and object) adds nothing, so a transaction may be repeated. For owners without webhooks it is one look into a
    small table. Raises what the database raises, and nothing of its own.
    """
    raise NotImplementedError
