"""Reads every setting of this replica as it holds now: value, source, time of the last change, and the operator who changed it.

A replica's own configuration is the lowest layer. Each `SettingsLayer` above it overrides values by the names of
settings: those of queues and models from another replica's newer configuration, and those that operators changed at run time. The
view shows only whether a secret is set, and URLs without user, password and query (`settings/flatten.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import to_builtins
from msgspec.structs import asdict, replace

from fairlane import __version__
from fairlane.gateway.admin.changes import ENTRY, PAUSED, configured
from fairlane.gateway.configuration import RELOADED, ActiveConfig
from fairlane.gateway.features import FEATURES
from fairlane.gateway.settings import Settings, external, external_name, external_value
from fairlane.gateway.settings.flatten import Leaf, defaults, flatten
from fairlane.queues.clock import now_ms
from fairlane.queues.errors import StoreError
from fairlane.queues.inspect.inspector import ReplicaInfo, StoreInspector, StoreSnapshot
from fairlane.queues.overrides import ALL, Override
from fairlane.queues.rules import ConfiguredSettings, Kind, Value
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.versions import Configuration

Source = Literal["default", "file", "environment", "flag", "generated", "replica", "changed"]
"""Source of a value. `generated`: the program created it. `replica`: it is of another replica's newer configuration.
`changed`: an operator changed it at run time."""

KINDS: tuple[Kind, Kind] = ("queue", "model")


class SourcedValue(msgspec.Struct, frozen=True, rename="camel"):
    """A value and its source.

    `where`: the flag, the variable, the path of the file, the replica. `since`, ms: when this replica began to have it, or when
    it was changed; of another replica's configuration when that was modified. `by`: the operator's key who changed it.
    """

    value: Any
    source: Source = "default"
    where: str = ""
    since: int | None = None
    by: str | None = None


SettingsLayer = Mapping[str, SourcedValue]
"""Values that override those of lower layers, by the names of settings."""


class Row(SourcedValue, frozen=True, kw_only=True, rename="camel"):
    """One setting."""

    name: str
    default: Any
    differs: bool
    reloads: bool = True
    """SIGHUP applies a change of it; otherwise it waits for a restart."""
    otherwise: SourcedValue | None = None
    """The value without the change, or without the other replica."""
    after_restart: SourcedValue | None = None
    """The value of the configuration that was read last, if it waits for a restart."""


@dataclass(frozen=True, slots=True)
class Own:
    """A replica's own configuration. `began_ms`: time of the first read; `since`: time of the last change of a setting, by its
    name; `read`: the configuration that was read last; some may wait for a restart.
    """

    settings: Settings
    began_ms: int
    since: Mapping[str, int]
    read: Settings


def view(own: Own, layers: Sequence[SettingsLayer] = ()) -> list[Row]:
    """Return all settings in the order of their reference, followed by those that only `layers` have. A later layer wins."""
    settings = own.settings
    waiting = {leaf.name: leaf for leaf in flatten(own.read) if leaf.loc[0] not in RELOADED}
    rows, names = [], set[str]()
    for leaf in flatten(settings):
        loaded = waiting.get(leaf.name)
        names.add(leaf.name)
        rows.append(
            _row(
                leaf.name,
                leaf.default,
                _sourced(leaf, settings, own),
                layers,
                reloads=leaf.loc[0] in RELOADED,
                after_restart=None if loaded is None or loaded.value == leaf.value else _waiting(loaded, own),
            )
        )
    further = dict.fromkeys(name for layer in layers for name in layer if name not in names)
    return rows + [_row(name, _default(name), SourcedValue(_default(name)), layers) for name in further]


def of_file(settings: Settings) -> list[Row]:
    """Return what a gateway would start with, by these settings alone."""
    return view(Own(settings, settings.origins.read_ms, {}, settings))


def _row(
    name: str,
    default: Any,
    sourced: SourcedValue,
    layers: Sequence[SettingsLayer],
    *,
    reloads: bool = True,
    after_restart: SourcedValue | None = None,
) -> Row:
    below = None
    for layer in layers:
        if (over := layer.get(name)) is not None:
            below, sourced = sourced, over if over.value is not None else replace(over, value=default)
    return Row(
        **asdict(sourced),
        name=name,
        default=default,
        differs=sourced.value != default,
        reloads=reloads,
        otherwise=below,
        after_restart=after_restart,
    )


def _sourced(leaf: Leaf, settings: Settings, own: Own) -> SourcedValue:
    since = own.since.get(str(leaf.loc[0]), own.began_ms)
    origin = settings.origins.of.get(str(leaf.loc[0]))
    if origin is not None and (len(leaf.loc) == 1 or leaf.value != leaf.default):
        return SourcedValue(leaf.value, origin.source, origin.where, since)
    if leaf.name == "stream_token_secret" and leaf.value is None:
        return SourcedValue(None, "generated", "Redis", since)
    if leaf.value == leaf.default:
        return SourcedValue(leaf.value, since=since)
    origin_path = str(settings.data_dir) if leaf.loc[0] in ("keys", "workers") else ""
    return SourcedValue(leaf.value, "generated", origin_path, since)


def _waiting(leaf: Leaf, own: Own) -> SourcedValue:
    return replace(_sourced(leaf, own.read, own), since=own.read.origins.read_ms)


def _default(name: str) -> Any:
    """Return the default of a setting of a queue or model that this configuration does not list."""
    kind: Kind = "queue" if name.startswith("queues.") else "model"
    return False if name.endswith(f".{PAUSED}") else defaults(ENTRY[kind]).get(name.rpartition(".")[2])


# ---- layers ----------


def of_store(settings: Settings, stored: ConfiguredSettings) -> SettingsLayer:
    """Return the values of queues and models in another replica's newer configuration that differ from these settings."""
    newest = stored.effective
    if newest is None:
        return {}
    mine: dict[tuple[Kind, str, str], Value] = {
        (kind, name, setting): value
        for kind, entries in zip(KINDS, configured(settings), strict=True)
        for name, values in entries.items()
        for setting, value in values.items()
        if value is not None
    }
    layer = {}
    for place in mine.keys() | stored.configured.keys():
        theirs = stored.configured.get(place)
        if mine.get(place) != theirs:
            (kind, name, setting), value = place, external_value(place[2], theirs)
            layer[f"{kind}s.{name}.{external_name(setting)}"] = SourcedValue(
                value, "replica", newest.replica, newest.modified_ms
            )
    return dict(sorted(layer.items()))


def of_overrides(overrides: Iterable[Override]) -> SettingsLayer:
    """Return the values of overrides, a later one wins; `where` names the override and its percentage of the tasks."""
    layer: dict[str, SourcedValue] = {}
    for one in overrides:
        share = f", for {one.percent} % of the tasks" if one.percent < ALL else ""
        for name, value in external(one.values).items():
            layer[f"{one.target}s.{one.name}.{name}"] = SourcedValue(
                value, "changed", f"override {one.id}{share}", one.created_ms, one.created_by or None
            )
    return layer


# ---- answer ----------

MAX_ROWS = 10_000
"""Settings in one answer."""

ReadLayer = Callable[[], Awaitable[SettingsLayer]]


@dataclass(eq=False)
class SettingsView:
    """Reads the settings in effect. Each of `layers` overrides the ones before."""

    _inspector: StoreInspector
    _scheduler: Scheduler
    _current: ActiveConfig
    _about: Callable[[], ReplicaInfo]
    """This replica, now."""
    _layers: Sequence[ReadLayer] = ()

    async def read(self, text: str, *, changed: bool) -> dict[str, Any]:
        """Return the answer of GET /api/admin/settings: settings whose names contain `text`, in any case. `changed`: only those
        that differ from their defaults, or were changed at run time. While Redis is unavailable, these are the settings of this
        replica's configuration, and `storeError` has the reason.
        """
        current, away = self._current, None
        own = Own(current.settings, current.began_ms, dict(current.since), current.read)
        stored, layers, replicas = None, [], []
        try:
            stored = await self._scheduler.configured()
            layers = [of_store(own.settings, stored), *[await read() for read in self._layers]]
            replicas = self._replicas(await self._inspector.snapshot())
        except StoreError as error:
            away = str(error)
        rows = await asyncio.to_thread(
            _rows, own, layers, text.lower(), changed
        )  # there may be thousands of keys
        reload_error, file = current.reload_error, own.settings.origins.file
        return {
            "now": now_ms(),
            "replica": self._scheduler.replica,
            "version": __version__,
            "startedAt": self._about().started_at,
            "readAt": own.settings.origins.read_ms,
            "file": file and {"path": file, "modifiedAt": own.settings.origins.modified_ms},
            "reloadError": reload_error and to_builtins(reload_error),
            "effective": _effective(stored),
            "storeError": away,
            "replicas": replicas,
            "features": {one.name: own.settings.has(one.name) for one in FEATURES},
            "settings": to_builtins(rows[:MAX_ROWS]),
            "more": len(rows) > MAX_ROWS,
        }

    def _replicas(self, store: StoreSnapshot) -> list[dict[str, Any]]:
        """Return the live replicas, and the parts in which the configuration of each differs from this one's."""
        me, mine, given = self._scheduler.replica, self._about(), store.configurations
        return [
            {
                "replica": name,
                "host": its.host if its else None,
                "version": its.version if its else None,
                "differs": [] if name == me else differences(mine, its, given.get(me), given.get(name)),
            }
            for name in sorted({me, *store.replicas})
            for its in [store.hosts.get(name)]
        ]


HASHES: Mapping[str, str] = {"keys": "keys_hash", "routes": "routes_hash", "others": "settings_hash"}
"""The compared parts of the configuration, by their hash; in addition to `queues and models`."""


def differences(
    mine: ReplicaInfo,
    its: ReplicaInfo | None,
    brought: Configuration | None,
    it_brought: Configuration | None,
) -> list[str]:
    """Return the parts in which another replica's configuration differs, as far as both report them. Pure."""
    found = []
    for what, field in HASHES.items():
        one, other = getattr(mine, field), its and getattr(its, field)
        if one and other and one != other:
            found.append(what)
    if brought and it_brought and brought.hash != it_brought.hash:
        found.append("queues and models")
    return found


def _rows(own: Own, layers: Sequence[SettingsLayer], text: str, changed: bool) -> list[Row]:
    return [
        row
        for row in view(own, layers)
        if text in row.name.lower() and (not changed or row.differs or row.otherwise is not None)
    ]


def _effective(stored: ConfiguredSettings | None) -> dict[str, Any] | None:
    effective = stored.effective if stored else None
    return effective and {"replica": effective.replica, "modifiedAt": effective.modified_ms}
