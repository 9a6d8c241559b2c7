"""Changes of settings that begin and end at times of their own, hold for a share of the tasks, and can be taken back.

They live in Redis, beside what else is changed while running: one step sets down or ends a change, sets what it says of a
queue or model as a whole, and writes the audit entry. Any replica's sweep begins and ends what is due, by Redis's clock, each
once. What they say of single tasks replicas read when the version of all changes has moved, which each sweep tells.
"""

import enum
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from fairlane.queues.actor import Actor
from fairlane.queues.rules import encode
from fairlane.queues.store.link import RedisLink

MOST_LIVE = 50
"""Changes that wait or hold at the same time."""
WHOLE = 100
"""The share, in percent, that is all tasks."""

Target = Literal["route", "model", "queue"]


class Phase(enum.StrEnum):
    """Where a change is in its life."""

    SCHEDULED = "scheduled"
    ACTIVE = "active"
    ENDED = "ended"
    TAKEN_BACK = "taken_back"


LIVE = frozenset({Phase.SCHEDULED, Phase.ACTIVE})


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change of settings. Times in ms since 1970; 0 = not (yet)."""

    kind: Target
    name: str
    """Of the route, model or queue."""
    fields: Mapping[str, Any]
    """What is set, by the names of the configuration; None: as if nothing were said."""
    whole: bool = False
    """It is said of the queue or model as a whole, not of each task."""
    tier: str = ""
    """Of a route: the tier that it is said of; '' = all."""
    vision: bool = False
    """Of a route: it is said of requests with images alone."""
    by_user: bool = False
    """The share is one of the users; else of the tasks."""
    rollout: int = WHOLE
    note: str = ""
    who: str = ""
    id: str = ""
    phase: Phase = Phase.SCHEDULED
    made_ms: int = 0
    at_ms: int = 0
    until_ms: int = 0
    began_ms: int = 0
    ended_ms: int = 0

    @property
    def active(self) -> bool:
        return self.phase is Phase.ACTIVE

    def told(self) -> dict[str, Any]:
        """What is to hold, as it is stored."""
        found: dict[str, Any] = {"set": dict(self.fields)}
        if self.tier:
            found["tier"] = self.tier
        if self.vision:
            found["vision"] = True
        if self.by_user:
            found["by"] = "user"
        return found


@dataclass(frozen=True, slots=True)
class Known:
    """All changes, the newest first, and when that was so, ms."""

    version: bytes = b""
    now_ms: int = 0
    changes: list[PlannedChange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Hindered:
    """Why a change was not made: busy (another one, `by`, holds then for the same), many (`by` of them are live), past (it would
    end before it begins), gone (there is none of this id), over (it has ended: `by` says how)."""

    why: str
    by: str = ""


class ChangeStore:
    """The changes of one Redis. All raise StoreError; a reply that is lost leaves the change perhaps made: the same call again
    makes it, or makes no difference."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def all(self) -> Known:
        """All that are known."""
        reply = await self._link.run("changes")
        return Known(reply[0], reply[1], [_read(flat) for flat in reply[2:]])

    async def plan(
        self, change: PlannedChange, actor: Actor, *, check: bool = False
    ) -> PlannedChange | Hindered:
        """Make a change, which has an id, at its time; `at_ms` 0 or in the past: now. It holds then as a whole or not at all.
        `check`: it is not made, only refused if it would be."""
        packed = ""
        if change.whole:
            kind: Literal["queue", "model"] = "queue" if change.kind == "queue" else "model"
            packed = "\n".join(
                f"{name}\t{encode(kind, name, value)}" for name, value in change.fields.items()
            )
        reply = await self._link.run(
            "plan",
            change.id,
            change.kind,
            change.name,
            msgspec.json.encode(change.told()),
            packed,
            change.rollout,
            change.note,
            *actor,
            change.at_ms,
            change.until_ms,
            secrets.token_hex(4),
            b"1" if check else b"0",
            MOST_LIVE,
        )
        return _answer(reply)

    async def alter(
        self, change_id: str, actor: Actor, *, rollout: int | None = None, until_ms: int | None = None
    ) -> PlannedChange | Hindered:
        """Give a change that is live another share, and another end (0: none)."""
        share = "" if rollout is None else rollout
        end = "" if until_ms is None else until_ms
        return _answer(
            await self._link.run("alter", change_id, "set", share, end, *actor, secrets.token_hex(4))
        )

    async def take_back(self, change_id: str, actor: Actor) -> PlannedChange | Hindered:
        """Let a change hold no more, for nobody."""
        return _answer(
            await self._link.run("alter", change_id, "take_back", "", "", *actor, secrets.token_hex(4))
        )


def new_change_id() -> str:
    """A name for a change."""
    return f"c{secrets.token_hex(5)}"


def _answer(reply: Sequence[Any]) -> PlannedChange | Hindered:
    if reply[0] == b"ok":
        return _read(reply[1:])
    by = reply[1] if len(reply) > 1 else b""
    return Hindered(reply[0].decode(), by.decode() if isinstance(by, bytes) else str(by))


def _read(flat: Sequence[bytes]) -> PlannedChange:
    texts = [part.decode("utf-8", "replace") for part in flat]
    fields = dict(zip(texts[1::2], texts[2::2], strict=True))
    said = msgspec.json.decode(fields["wh"])
    kind = fields["ki"]
    return PlannedChange(
        kind="route" if kind == "route" else "model" if kind == "model" else "queue",
        name=fields["na"],
        fields=said["set"],
        whole="se" in fields,
        tier=said.get("tier", ""),
        vision=said.get("vision", False),
        by_user=said.get("by") == "user",
        rollout=int(fields["ro"]),
        note=fields.get("no", ""),
        who=fields["who"],
        id=texts[0],
        phase=Phase(fields["st"]),
        **{
            name: int(fields.get(field, 0) or 0)
            for name, field in (
                *(("made_ms", "ma"), ("at_ms", "at"), ("until_ms", "un")),
                *(("began_ms", "bg"), ("ended_ms", "ed")),
            )
        },
    )
