"""Overrides: values that operators set on top of the configuration of a queue, a model or a route while the gateways run.

They live in Redis. One script writes an override, applies what the scheduler reads of it and writes the audit log entry. Any
replica's sweep ends an override when its time is over. Replicas read what they apply themselves when the version of the
overrides has moved, which each sweep returns.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from fairlane.queues.replies import decode_map, decode_values
from fairlane.queues.rules import Change, Kind, Value, settings_of
from fairlane.queues.store.link import RedisLink

ALL = 100
"""The percentage that is all tasks."""


class Actor(NamedTuple):
    """The caller who changes something, as the audit log has it."""

    name: str
    """The id of the API key."""
    address: str
    """Of the client that connected; '' where there is none, as on a Unix socket."""


Target = Literal["queue", "model", "route"]
Status = Literal["active", "promoted"]


@dataclass(frozen=True, slots=True)
class Override:
    """Values that are set on top of the configuration. Times in ms since 1970; 0 = none."""

    target: Target
    name: str
    """Of the queue, model or route."""
    values: Mapping[str, Any]
    """By the dotted names of the configuration, such as `tiers.paid.model`; None: as if it were not set."""
    percent: int = ALL
    until_ms: int = 0
    created_by: str = ""
    id: str = ""
    status: Status = "active"
    order: int = 0
    """Of two overrides that set the same value, the one of the higher order wins."""
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class Overrides:
    """All overrides, those that win last."""

    version: bytes = b""
    now_ms: int = 0
    overrides: list[Override] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rejected:
    """Why an override was not written: conflict (with the override `other`), full (there are too many), past (it would end before
    it begins), unknown (there is none of this id), promoted (it has neither share nor end)."""

    reason: str
    other: str = ""


class OverrideStore:
    """The overrides of all pools: those of a model in its pool, those of queues in each, those of routes in the first one.

    All methods raise StoreError; if the reply is lost, the same call again is safe.
    """

    def __init__(self, links: Sequence[RedisLink], pool_of: Callable[[str], int]) -> None:
        """`pool_of`: returns the number of a model's pool."""
        self._links = links
        self._pool_of = pool_of

    async def all(self) -> Overrides:
        """Return all overrides. The version has that of each pool, with commas between."""
        versions, found, now_ms = [], dict[str, Override](), 0
        for link in self._links:
            reply, *packed = await link.run("list_overrides", msgspec.msgpack.encode({}))
            said = decode_map(reply)
            versions.append(said["version"].encode())
            now_ms = now_ms or said["now"]
            for one in map(_read, packed):
                found.setdefault(one.id, one)
        return Overrides(b",".join(versions), now_ms, sorted(found.values(), key=lambda one: one.order))

    async def create(self, override: Override, actor: Actor, *, check: bool = False) -> Override | Rejected:
        """Create an override, which has an id. `check`: only report whether it can be created."""
        scheduled = _scheduled(override.target)
        shown = {
            "target": override.target,
            "name": override.name,
            "values": override.values,
            "percent": override.percent,
            "until": override.until_ms or None,
        }
        written = {
            "id": override.id,
            "target": override.target,
            "name": override.name,
            "settings": {name: value for name, value in override.values.items() if name in scheduled},
            "values": {
                name: msgspec.json.encode(value).decode()  # Lua knows no null
                for name, value in override.values.items()
                if name not in scheduled
            },
            "percent": override.percent,
            "until": override.until_ms,
        }
        as_text = msgspec.json.encode(shown).decode()  # Lua knows no null
        ask = {"override": written, "shown": as_text, "check": check, **_by(actor)}
        return await _each(self._of(override.target, override.name), "create_override", ask)

    async def set_settings(
        self, kind: Kind, name: str, values: Mapping[str, Value], actor: Actor
    ) -> Change | None:
        """Set settings of a queue or model permanently; None: there is no such queue. KeyError: an unknown setting; OverflowError
        if there are too many overrides.

        They hold from the next decision on, on every replica, until a value of None restores what is configured. No other
        override of the queue or model sets them any more. The audit log entry is written in the same step.
        """
        unknown = values.keys() - settings_of(kind).keys()
        if unknown:
            raise KeyError(*unknown)
        ask = {
            "id": new_override_id(),
            "target": kind,
            "name": name,
            "settings": {setting: value for setting, value in values.items() if value is not None},
            "unset": [setting for setting, value in values.items() if value is None],
            **_by(actor),
        }
        change = None
        for link in self._of(kind, name):
            noted = {"noted": change is None}
            reply, *changed = await link.run("set_settings", msgspec.msgpack.encode(ask | noted))
            said = decode_map(reply)
            if said["outcome"] == "unknown":
                return None
            if said["outcome"] == "full":
                raise OverflowError("there are too many overrides")
            before, after = map(decode_values, changed)
            change = change or Change(before, after, said["audit"])
        return change

    async def update(
        self, override_id: str, actor: Actor, *, percent: int | None = None, until_ms: int | None = None
    ) -> Override | Rejected:
        """Change the share, or the end (0: none), of an active override."""
        changed = {"percent": percent, "until": until_ms}
        return await self._update(
            override_id,
            "update",
            actor,
            {name: value for name, value in changed.items() if value is not None},
        )

    async def promote(self, override_id: str, actor: Actor) -> Override | Rejected:
        """Make an override permanent, for all tasks: the baseline of later overrides."""
        return await self._update(override_id, "promote", actor, {})

    async def roll_back(self, override_id: str, actor: Actor) -> Override | Rejected:
        """Remove an override: the values without it hold again."""
        return await self._update(override_id, "rollback", actor, {})

    def _of(self, target: str, name: str) -> Sequence[RedisLink]:
        if target == "queue":
            return self._links
        return [self._links[self._pool_of(name) if target == "model" else 0]]

    async def _update(
        self, override_id: str, action: str, actor: Actor, changed: Mapping[str, int]
    ) -> Override | Rejected:
        asked = {"id": override_id, "action": action, **changed, **_by(actor)}
        return await _each(self._links, "update_override", asked)


async def _each(links: Sequence[RedisLink], script: str, ask: Mapping[str, Any]) -> Override | Rejected:
    """Run a script in pools until one rejects it, and note it in the audit log once. Those without the override do not count."""
    found: Override | Rejected | None = None
    for link in links:
        said = _answer(
            await link.run(script, msgspec.msgpack.encode({**ask, "noted": not isinstance(found, Override)}))
        )
        if isinstance(said, Rejected) and (said.reason != "unknown" or len(links) == 1):
            return said
        if isinstance(said, Override):
            found = found or said
    return found or Rejected("unknown")


def new_override_id() -> str:
    """Return the id of a new override."""
    return f"o{secrets.token_hex(5)}"


def audit_mark() -> str:
    """Return what distinguishes an audit log entry from others of the same instant."""
    return secrets.token_hex(4)


def _by(actor: Actor) -> dict[str, str]:
    return {"who": actor.name, "address": actor.address, "mark": audit_mark()}


def _kind(target: str) -> Kind:
    return "queue" if target == "queue" else "model"


def _scheduled(target: str) -> Mapping[str, Any]:
    """The settings of a target that the scripts apply."""
    return {} if target == "route" else settings_of(_kind(target))


def _answer(reply: Sequence[bytes]) -> Override | Rejected:
    said, *packed = decode_map(reply[0]), *reply[1:]
    return _read(packed[0]) if packed else Rejected(said["outcome"], said.get("id", ""))


def _read(packed: bytes) -> Override:
    fields = msgspec.msgpack.decode(packed)
    values = {name: msgspec.json.decode(value) for name, value in (fields["values"] or {}).items()}
    return Override(
        fields["target"],
        fields["name"],
        {**(fields["settings"] or {}), **values},  # Lua packs an empty table as a list
        percent=fields["percent"],
        until_ms=fields["until"],
        created_by=fields["created_by"],
        id=fields["id"],
        status=fields["status"],
        order=fields["order"],
        created_ms=fields["created_at"],
    )
