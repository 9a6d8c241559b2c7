"""Reads every setting of this replica as it holds now, and which replicas are configured otherwise."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from fairlane import __version__
from fairlane.gateway.current import Current
from fairlane.gateway.operator.effective import Layer, Own, Row, of_overrides, of_store, view
from fairlane.gateway.operator.overrides.monitor import OverrideMonitor
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.keys import Keys
from fairlane.queues.rules import Ruling
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import RedisLink
from fairlane.queues.survey.survey import ReplicaInfo, read_replica_info
from fairlane.queues.versions import Configuration, read_configuration

MOST_ROWS = 10_000
"""Settings in one answer."""

ReadLayer = Callable[[], Awaitable[Layer]]


def overrides_now(monitor: OverrideMonitor, current: Current) -> ReadLayer:
    """Return what reads the overrides, as far as this replica applies them."""

    async def read() -> Layer:
        known = await monitor.read()
        return of_overrides(one for one in known.overrides if one.id not in current.overlay.invalid)

    return read


class EffectiveSettings:
    """Who lets something else be changed while running hands in one more of `layers`; what it gives lies over the others."""

    def __init__(
        self,
        link: RedisLink,
        keys: Keys,
        scheduler: Scheduler,
        current: Current,
        about: Callable[[], ReplicaInfo],
        layers: Sequence[ReadLayer] = (),
    ) -> None:
        """`about`: this replica, now."""
        self._link = link
        self._keys = keys
        self._scheduler = scheduler
        self._current = current
        self._about = about
        self._layers = layers

    async def read(self, text: str, *, changed: bool) -> dict[str, Any]:
        """The answer of GET /api/admin/settings: settings whose names hold `text`, in small or large letters. `changed`: those
        alone that are not as by default, or were changed while running. With Redis away what this replica is configured with, and
        why there is no more (`storeAway`).
        """
        current, away = self._current, None
        own = Own(current.settings, current.began_ms, dict(current.since), current.read)
        ruling, layers, replicas = None, [], []
        try:
            ruling, replicas, *more = await asyncio.gather(
                self._scheduler.ruling(), self._replicas(), *(read() for read in self._layers)
            )
            layers = [of_store(own.settings, ruling), *more]
        except StoreError as error:
            away = str(error)
        rows = await asyncio.to_thread(
            _rows, own, layers, text.lower(), changed
        )  # there may be thousands of keys
        refused, file = current.reload_refused, own.settings.origins.file
        return {
            "now": now_ms(),
            "replica": self._scheduler.replica,
            "version": __version__,
            "startedAt": self._about().started_at,
            "readAt": own.settings.times.read_ms,
            "file": file and {"path": file, "modifiedAt": own.settings.times.modified_ms},
            "reloadRefused": refused and {"at": refused.at, "why": refused.why},
            "inForce": _in_force(ruling),
            "storeAway": away,
            "replicas": replicas,
            "settings": to_builtins(rows[:MOST_ROWS]),
            "more": len(rows) > MOST_ROWS,
        }

    async def _replicas(self) -> list[dict[str, Any]]:
        """Those that live, and in what each is configured otherwise than this one."""
        command, keys = self._link.command, self._keys
        (seconds, _), present, hosts, versions = await asyncio.gather(
            command("TIME"),
            command("ZRANGE", keys("replicas"), 0, -1, "WITHSCORES"),
            command("HGETALL", keys("hosts")),
            command("HGETALL", keys("versions")),
        )
        now_ms, about = int(seconds) * 1000, read_replica_info(hosts)
        brought = {
            name.decode(): read_configuration(packed)
            for name, packed in zip(versions[::2], versions[1::2], strict=True)
        }
        me, mine = self._scheduler.replica, self._about()
        return [
            {
                "replica": name,
                "host": where.host if (where := about.get(name)) else None,
                "version": where.version if where else None,
                "differs": [] if name == me else differences(mine, where, brought.get(me), brought.get(name)),
            }
            for name, end in sorted(
                (name.decode(), float(end)) for name, end in zip(present[::2], present[1::2], strict=True)
            )
            if end > now_ms or name == me
        ]


HASHES: Mapping[str, str] = {"keys": "keys_hash", "routes": "routes_hash", "others": "settings_hash"}
"""What replicas are compared in, by the hash that tells it; and `queues and models`."""


def differences(
    mine: ReplicaInfo,
    its: ReplicaInfo | None,
    brought: Configuration | None,
    it_brought: Configuration | None,
) -> list[str]:
    """In what another replica is configured otherwise, as far as both tell. Pure."""
    found = []
    for what, field in HASHES.items():
        one, other = getattr(mine, field), getattr(its, field) if its else ""
        if one and other and one != other:
            found.append(what)
    if brought and it_brought and brought.hash != it_brought.hash:
        found.append("queues and models")
    return found


def _rows(own: Own, layers: Sequence[Layer], text: str, changed: bool) -> list[Row]:
    return [
        row
        for row in view(own, layers)
        if text in row.name.lower() and (not changed or row.differs or row.otherwise is not None)
    ]


def _in_force(ruling: Ruling | None) -> dict[str, Any] | None:
    held = ruling.in_force if ruling else None
    return held and {"replica": held.replica, "modifiedAt": held.modified_ms}
