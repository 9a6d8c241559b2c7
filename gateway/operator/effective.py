"""Every setting in one view: its value, where it comes from, since when, and by whom it was changed.

Pure. A replica's own configuration lies at the bottom. Over it lie layers of values that hold instead, each by the names of
settings (`Layer`): what the store has of queues and models from another replica's newer configuration, and what operators changed
while running. Who lets something else be changed while running adds a function that makes one more layer of it (`inforce.py`).

No secret is in it: of those it says that they are set, of URLs neither user, password nor query (`settings/leaves.py`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from fairlane.gateway.current import RELOADED
from fairlane.gateway.operator.settings import ENTRY, PAUSED, configured
from fairlane.gateway.settings import Settings
from fairlane.gateway.settings.leaves import Leaf, leaves
from fairlane.gateway.settings.origins import Loc
from fairlane.queues.overrides import ALL, Override
from fairlane.queues.rules import Kind, Ruling, Value

Source = Literal["default", "file", "environment", "flag", "generated", "replica", "changed"]
"""Whence a value came. `generated`: the program made it. `replica`: another replica's configuration is newer and holds.
`changed`: an operator changed it while running."""

FOLLOWS = {"worker_timeout_ms": "max_task_timeout_ms"}
"""Settings that are as another one where they are not set."""
KINDS: tuple[Kind, Kind] = ("queue", "model")
QUEUE_FOLLOWS = {"max_length": "max_queue_length", "max_wait_ms": "max_queue_wait_ms"}


class Came(msgspec.Struct, frozen=True, rename="camel"):
    """A value, and where it comes from.

    `where`: the flag, the variable, the path of the file, the replica. `since`, ms: when this replica began to have it, or when
    it was changed; of another replica's configuration when that was modified. `by`: the operator's key who changed it.
    """

    value: Any
    source: Source = "default"
    where: str = ""
    since: int | None = None
    by: str | None = None


Layer = Mapping[str, Came]
"""What holds instead of what lies below, by the names of settings."""


class Row(Came, frozen=True, kw_only=True, rename="camel"):
    """One setting."""

    name: str
    default: Any
    differs: bool
    """From the default; what follows another setting does not."""
    follows: str | None = None
    """The setting that it is as, where it is not set itself."""
    reloads: bool = True
    """Whether SIGHUP takes a change of it over; else it waits for a restart."""
    otherwise: Came | None = None
    """What would hold without the change, or without the other replica."""
    after_restart: Came | None = None
    """What the configuration says that was read last, where that waits for a restart."""


@dataclass(frozen=True, slots=True)
class Own:
    """A replica's own configuration. `began_ms`: when it was read first; `since`: when settings took another value since, by
    their names; `read`: the one that was read last, of which some may wait for a restart.
    """

    settings: Settings
    began_ms: int
    since: Mapping[str, int]
    read: Settings


def view(own: Own, layers: Sequence[Layer] = ()) -> list[Row]:
    """All settings, in the order of their reference; what only `layers` have, behind them. Of the layers a later one holds."""
    settings = own.settings
    waiting = {leaf.name: leaf for leaf in leaves(own.read) if leaf.loc[0] not in RELOADED}
    base = {leaf.name: (leaf, _came(leaf, settings, own)) for leaf in _with_pauses(leaves(settings))}
    rows = []
    for name, (leaf, came) in base.items():
        default, follows, said = leaf.default, _followed(leaf), waiting.get(name)
        if follows:
            default = base[follows][0].default
        if follows and came.value is None:
            came = base[follows][1]
        else:
            follows = None
        rows.append(
            _row(
                name,
                default,
                came,
                layers,
                follows=follows,
                reloads=leaf.loc[0] in RELOADED,
                after_restart=None if said is None or said.value == leaf.value else _waiting(said, own),
            )
        )
    beside = dict.fromkeys(name for layer in layers for name in layer if name not in base)
    return rows + [_row(name, _default(name), Came(_default(name)), layers) for name in beside]


def of_file(settings: Settings) -> list[Row]:
    """What a gateway would start with, by these settings alone."""
    rows = view(Own(settings, settings.times.read_ms, {}, settings))
    return [row for row in rows if not row.name.endswith(f".{PAUSED}")]


def _row(
    name: str,
    default: Any,
    came: Came,
    layers: Sequence[Layer],
    *,
    follows: str | None = None,
    reloads: bool = True,
    after_restart: Came | None = None,
) -> Row:
    below = None
    for layer in layers:
        if (over := layer.get(name)) is not None:
            below, came = came, over if over.value is not None else replace(over, value=default)
    return Row(
        **asdict(came),
        name=name,
        default=default,
        differs=came.value != default and (follows is None or below is not None),
        follows=None if below else follows,
        reloads=reloads,
        otherwise=below,
        after_restart=after_restart,
    )


def _came(leaf: Leaf, settings: Settings, own: Own) -> Came:
    since = own.since.get(leaf.name, own.began_ms)
    origin = settings.origins.of.get(leaf.loc)
    if origin is not None:
        return Came(leaf.value, origin.source, origin.where, since)
    if leaf.name == "stream_token_secret" and leaf.value is None:
        return Came(None, "generated", "Redis", since)
    if leaf.value == leaf.default:
        return Came(leaf.value, since=since)
    made = str(settings.data_dir) if leaf.loc[0] in ("keys", "workers") else ""
    return Came(leaf.value, "generated", made, since)


def _waiting(leaf: Leaf, own: Own) -> Came:
    return replace(_came(leaf, own.read, own), since=own.read.times.read_ms)


def _followed(leaf: Leaf) -> str | None:
    if leaf.loc[0] == "queues" and len(leaf.loc) == 3:
        return QUEUE_FOLLOWS.get(str(leaf.loc[2]))
    return FOLLOWS.get(leaf.name)


def _with_pauses(found: Iterable[Leaf]) -> Iterator[Leaf]:
    """The same, and behind those of each queue and model whether it is paused, which no configuration says."""
    entry: Loc = ()
    for leaf in chain(found, [Leaf(("",), "", None, None)]):
        if leaf.loc[:2] != entry:
            if entry and entry[0] in ("queues", "models"):
                yield Leaf((*entry, PAUSED), f"{entry[0]}.{entry[1]}.{PAUSED}", False, False)
            entry = leaf.loc[:2]
        if leaf.name:
            yield leaf


def _default(name: str) -> Any:
    """Of a setting of a queue or model that this configuration does not list."""
    kind: Kind = "queue" if name.startswith("queues.") else "model"
    field = ENTRY[kind].model_fields.get(name.rpartition(".")[2])
    return (
        False
        if name.endswith(f".{PAUSED}")
        else None
        if field is None or field.is_required()
        else field.default
    )


# ---- layers ----------


def of_store(settings: Settings, ruling: Ruling) -> Layer:
    """What another replica's configuration says of queues and models instead of these settings."""
    if ruling.in_force is None:
        return {}
    mine: dict[tuple[Kind, str, str], Value] = {
        (kind, name, setting): value
        for kind, entries in zip(KINDS, configured(settings), strict=True)
        for name, values in entries.items()
        for setting, value in values.items()
        if value is not None
    }
    layer = {}
    for place in mine.keys() | ruling.configured.keys():
        theirs = ruling.configured.get(place)
        if mine.get(place) != theirs:
            layer[name_of(*place)] = Came(
                theirs, "replica", ruling.in_force.replica, ruling.in_force.modified_ms
            )
    return dict(sorted(layer.items()))


def of_overrides(overrides: Iterable[Override]) -> Layer:
    """What overrides say, those that win last; `where` names the override, and the share of the tasks that it concerns."""
    layer: dict[str, Came] = {}
    for one in overrides:
        share = f", for {one.percent} % of the tasks" if one.percent < ALL else ""
        for name, value in one.values.items():
            layer[f"{one.target}s.{one.name}.{name}"] = Came(
                value, "changed", f"override {one.id}{share}", one.created_ms, one.created_by or None
            )
    return layer


def name_of(kind: str, name: str, setting: str) -> str:
    """The name of a setting of a queue or model in this view."""
    return f"{kind}s.{name}.{setting}"
