"""`fairlane changes list|show|make|share|until|keep|take-back`: settings that are changed for a share of tasks, or for a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
import typer

from fairlane.gateway.durations import duration
from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, print_away, stop, warn
from fairlane.gateway.process.limits_cli import ListUnlessTold, read_values
from fairlane.gateway.process.tables import add_row, make_table, print_page, print_table, time_of
from fairlane.gateway.process.times import read_time

CHANGES = "/api/admin/changes"
_STATES = {"taken_back": "taken back"}
_KINDS = ("route", "model", "queue")
_LISTS = frozenset({"fallbacks"})

ChangeId = Annotated[str, typer.Argument(help="The change's id.")]
Until = Annotated[
    str | None,
    typer.Option(help="When it ends by itself: 12h, 7d, or a time such as 2027-01-31T06:00 (UTC)."),
]

app = typer.Typer(
    cls=ListUnlessTold,
    help="Change settings for a share of the tasks or from a time on; compare, keep and take back such changes.",
)


@app.command("list")
def list_changes(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show the changes that wait or hold, and the last that did. A gateway with keys wants a viewer's or an admin's."""
    told = ask(gateway, key, CHANGES, as_json)
    if told is None:
        return
    table = make_table("id", "of", "set", "share", "state", "begins", "ends", "who", "note")
    for row in told["changes"]:
        add_row(
            table,
            *(row["id"], _of(row), _set(row), _share(row), _state(row)),
            *(time_of(row["beganAt"] or row["at"]), time_of(row["endedAt"] or row["until"])),
            *(row["who"], row["note"]),
        )
    print_page(table, "there are no changes")


@app.command("show")
def show(change_id: ChangeId, gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show one change, and compare the tasks on its two sides. A gateway with keys wants a viewer's or an admin's."""
    told = ask(gateway, key, _path(change_id), as_json)
    if told is None:
        return
    _print(told)
    print_away(told)
    if told["comparison"] is not None:
        typer.echo()
        _print_comparison(told["comparison"])


@app.command("make")
def make(
    kind: Annotated[str, typer.Argument(help="route, model or queue.")],
    name: Annotated[str, typer.Argument(help="Its name.")],
    values: Annotated[
        list[str],
        typer.Argument(help="One or more of: name=value; null: as if it were not set. Lists as a,b."),
    ],
    tier: Annotated[str, typer.Option(help="Of a route: for tasks of this tier alone.")] = "",
    vision: Annotated[
        bool, typer.Option("--vision", help="Of a route: for requests with images alone.")
    ] = False,
    rollout: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="For so many percent of the tasks alone. Not for limits: these hold as a whole.",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            help="With --rollout: a share of the tasks (task), or of the users (user). [default: task]"
        ),
    ] = "",
    at: Annotated[
        str, typer.Option(help="When it begins: 2h, or a time such as 2027-01-31T22:00 (UTC).")
    ] = "",
    until: Until = None,
    note: Annotated[str, typer.Option(help="Why, for others.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only look whether it could be made.")] = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Change a setting on all gateways, now or from a time on, for all tasks or a share of them. Survives restarts, and is
    written to the audit record.

    fairlane changes make route chat model=qwen-72b --rollout 10 --note "the larger one"

    fairlane changes make route chat fallbacks=a,b --tier paid --by user --rollout 50

    fairlane changes make model deepseek-chat concurrency=4 --at 2027-01-31T22:00 --until 2027-02-01T06:00
    """
    if kind not in _KINDS:
        stop(f"{kind!r} cannot be changed: say route, model or queue")
    said: dict[str, Any] = {kind: name, "set": _listed(read_values(values))}
    optional = {"tier": tier, "vision": vision, "rollout": rollout, "by": by, "note": note}
    said |= {
        name: value
        for name, value in optional.items()
        if value is not None and value != "" and value is not False
    }
    if at:
        said["at"] = read_time("--at", at)
    if until:
        said["until"] = read_time("--until", until)
    path = CHANGES + ("?check=true" if check else "")
    again = "look with `fairlane changes` whether it was made"
    told = ask(gateway, key, path, as_json, said, method="POST", again=again)
    if told is None:
        return
    warn(told["warnings"])
    if check:
        typer.echo("it can be made so; nothing was changed")
    _print(told, made=not check)


@app.command("share")
def share(
    change_id: ChangeId,
    percent: Annotated[int, typer.Argument(min=1, max=100, help="Percent of the tasks.")],
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Give a change another share of the tasks. Who was among fewer is among more, too."""
    _alter(gateway, key, _path(change_id), as_json, {"rollout": percent}, "PATCH")


@app.command("until")
def until(
    change_id: ChangeId,
    when: Annotated[
        str, typer.Argument(help="12h, 7d, a time such as 2027-01-31T06:00 (UTC), or null: no end.")
    ],
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Give a change another end, or none."""
    end = None if when == "null" else read_time("it", when, otherwise=", or null")
    _alter(gateway, key, _path(change_id), as_json, {"until": end}, "PATCH")


@app.command("keep")
def keep(change_id: ChangeId, gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Let a change hold for all tasks, without an end, until it is taken back."""
    _alter(gateway, key, f"{_path(change_id)}/keep", as_json, None, "POST")


@app.command("take-back")
def take_back(
    change_id: ChangeId, gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False
) -> None:
    """End a change, or let it not begin: what holds without it holds again."""
    _alter(gateway, key, f"{_path(change_id)}/take-back", as_json, None, "POST")


def _alter(
    gateway: str,
    key: str | None,
    path: str,
    as_json: bool,
    change: dict[str, Any] | None,
    method: Literal["PATCH", "POST"],
) -> None:
    told = ask(gateway, key, path, as_json, change, method=method, again="the same command again is safe")
    if told is not None:
        _print(told)


def _path(change_id: str) -> str:
    return f"{CHANGES}/{quote(change_id, safe='')}"


def _listed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`fallbacks=a,b` is a list."""
    return {
        name: [part.strip() for part in str(value).split(",")]
        if name in _LISTS and value is not None and not isinstance(value, list)
        else value
        for name, value in values.items()
    }


def _of(row: Mapping[str, Any]) -> str:
    more = [row["tier"]] if row["tier"] else []
    more += ["with images"] if row["vision"] else []
    return f"{row['kind']} {row['name']}" + (f" ({', '.join(more)})" if more else "")


def _set(row: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_shown(value)}" for name, value in row["set"].items())


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _share(row: Mapping[str, Any]) -> str:
    if row["rollout"] is None:
        return "-"
    return f"{row['rollout']} %" + (" of users" if row["by"] == "user" else "")


def _state(row: Mapping[str, Any]) -> str:
    state = _STATES.get(row["state"], row["state"])
    return f"{state}: holds for nobody" if row["problem"] else state


def _print(row: Mapping[str, Any], *, made: bool = True) -> None:
    """`made`: it is there, and not only what it would be."""
    table = make_table("what", "value")
    for title, value in (
        *([("id", row["id"])] if made else []),
        *(("of", _of(row)), ("set", _set(row)), ("share", _share(row))),
        *([("state", _state(row))] if made else []),
        ("begins", time_of(row["beganAt"] or row["at"])),
        *(
            ("ends", time_of(row["endedAt"] or row["until"])),
            ("who", row["who"]),
            ("note", row["note"] or "-"),
        ),
    ):
        add_row(table, title, value)
    if row["problem"]:
        add_row(table, "problem", row["problem"])
    print_table(table)


def _print_comparison(told: Mapping[str, Any]) -> None:
    old, new = told["old"], told["new"]
    table = make_table("tasks that ended", "old side", "new side")
    for title, name in (("tasks", "tasks"), ("completed", "completed")):
        add_row(table, title, *(_part(side, name) for side in (old, new)))
    add_row(table, "failed", *(_part(side, "failed") for side in (old, new)))
    for code, numbers in _codes((old, new), "failures", "tasks"):
        add_row(table, code, *numbers)
    for title, name in (("cancelled", "cancelled"), ("went on to another model", "moved")):
        add_row(table, title, *(_part(side, name) for side in (old, new)))
    for title, name in (("wait", "waitMs"), ("first output", "firstOutputMs"), ("duration", "durationMs")):
        for part, word in (("p50", "median"), ("p95", "95 of 100 below")):
            shown = (duration(side[name][part]) if side[name] else "-" for side in (old, new))
            add_row(table, f"{title}, {word}", *shown)
    for title, name in (
        ("input tokens a task", "inputTokensPerTask"),
        ("output tokens a task", "outputTokensPerTask"),
        ("cost a task", "costPerTask"),
    ):
        add_row(table, title, *("-" if side[name] is None else side[name] for side in (old, new)))
    add_row(table, "calls refused, beside", *(side["refused"] for side in (old, new)))
    for code, numbers in _codes((old, new), "refusals", "calls"):
        add_row(table, code, *numbers)
    print_table(table)
    if not told["enough"]:
        typer.echo(
            "too few tasks and refused calls yet to say which side is better: wait for 30 on each", err=True
        )


def _part(side: Mapping[str, Any], name: str) -> str:
    number = side[name]
    return str(number) if name == "tasks" or not side["tasks"] else f"{number} ({number / side['tasks']:.1%})"


def _codes(
    sides: Sequence[Mapping[str, Any]], name: str, counted: str
) -> Iterator[tuple[str, Iterable[int]]]:
    """By code, how many of each side."""
    for code in dict.fromkeys(row["code"] for side in sides for row in side[name]):
        of_each = (sum(row[counted] for row in side[name] if row["code"] == code) for side in sides)
        yield f"  {code}", of_each
