"""`fairlane override list|show|create|update|promote|rollback`: values on top of the configuration, while the gateways run."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, stop, warn
from fairlane.gateway.process.limits_cli import ListUnlessTold, read_values
from fairlane.gateway.process.tables import add_row, make_table, print_page, print_table, time_of
from fairlane.gateway.process.times import read_time

OVERRIDES = "/api/admin/overrides"
TARGETS = ("queue", "model", "route")

OverrideId = Annotated[str, typer.Argument(help="The override's id.")]
Percent = Annotated[
    int | None, typer.Option(min=1, max=100, help="For this share of a route's tasks. [default: 100]")
]
UNTIL = "When it ends: 12h, 7d, or a time such as 2027-01-31T06:00 (UTC)"

app = typer.Typer(
    cls=ListUnlessTold, help="Override settings of queues, models and routes while the gateways run."
)


@app.command("list")
def list_overrides(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """List the overrides that hold, the latest first. A gateway with keys requires a viewer's or an admin's."""
    found = ask(gateway, key, OVERRIDES, as_json)
    if found is None:
        return
    table = make_table("id", "target", "values", "percent", "status", "until", "created by", "created")
    for row in found["overrides"]:
        add_row(table, row["id"], f"{row['target']} {row['name']}", *_shown(row))
    print_page(table, "there are no overrides")


@app.command("show")
def show(override_id: OverrideId, gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show one override. A gateway with keys requires a viewer's or an admin's."""
    _print(ask(gateway, key, _path(override_id), as_json))


@app.command("create")
def create(
    target: Annotated[str, typer.Argument(help="queue, model or route.")],
    name: Annotated[str, typer.Argument(help="Its name.")],
    values: Annotated[
        list[str], typer.Argument(help="One or more of: name=value, tiers.paid.name=value. Lists as a,b.")
    ],
    percent: Percent = None,
    until: Annotated[str, typer.Option(help=f"{UNTIL}.")] = "",
    check: Annotated[bool, typer.Option("--check", help="Only report whether it can be created.")] = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Override settings on all gateways. Survives restarts, and is written to the audit log.

    fairlane override create route chat model=qwen-72b --percent 10

    fairlane override create route chat tiers.paid.fallbacks=a,b --until 7d

    fairlane override create model deepseek-chat concurrency=4 --until 2027-02-01T06:00
    """
    if target not in TARGETS:
        stop(f"{target!r} cannot be overridden: name a queue, a model or a route")
    body: dict[str, Any] = {"target": target, "name": name, "values": _listed(read_values(values))}
    if percent is not None:
        body["percent"] = percent
    if until:
        body["until"] = read_time("--until", until)
    again = "`fairlane override list` shows whether it was created"
    path = OVERRIDES + ("?check=true" if check else "")
    created = ask(gateway, key, path, as_json, body, method="POST", again=again)
    if created is None:
        return
    warn(created["warnings"])
    if check:
        typer.echo("it can be created; nothing was changed")
    else:
        _print(created)


@app.command("update")
def update(
    override_id: OverrideId,
    percent: Percent = None,
    until: Annotated[str, typer.Option(help=f"{UNTIL}; or null: when it is rolled back.")] = "",
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Change the share of the tasks, or the end, of an override. Tasks of a smaller share stay in a larger one."""
    body: dict[str, Any] = {} if percent is None else {"percent": percent}
    if until:
        body["until"] = None if until == "null" else read_time("--until", until, otherwise=", or null")
    if not body:
        stop("set --percent, --until or both")
    _change(gateway, key, _path(override_id), as_json, body, "PATCH")


@app.command("promote")
def promote(
    override_id: OverrideId, gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False
) -> None:
    """Make an override permanent, for all tasks: the baseline of later ones."""
    _change(gateway, key, f"{_path(override_id)}/promote", as_json, None, "POST")


@app.command("rollback")
def roll_back(
    override_id: OverrideId, gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False
) -> None:
    """Remove an override: the values without it hold again."""
    _change(gateway, key, f"{_path(override_id)}/rollback", as_json, None, "POST")


def _change(
    gateway: str,
    key: str | None,
    path: str,
    as_json: bool,
    body: dict[str, Any] | None,
    method: Literal["PATCH", "POST"],
) -> None:
    again = "`fairlane override list` shows whether it was done"
    _print(ask(gateway, key, path, as_json, body, method=method, again=again))


def _path(override_id: str) -> str:
    return f"{OVERRIDES}/{quote(override_id, safe='')}"


def _listed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`fallbacks=a,b` is a list."""
    return {
        name: value.split(",") if isinstance(value, str) and name.endswith("fallbacks") else value
        for name, value in values.items()
    }


def _shown(row: Mapping[str, Any]) -> tuple[str, ...]:
    values = " ".join(
        f"{name}={value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for name, value in row["values"].items()
    )
    status = f"{row['status']}, not applied" if row["problem"] else row["status"]
    return (
        values,
        f"{row['percent']} %",
        status,
        time_of(row["until"]),
        row["createdBy"],
        time_of(row["createdAt"]),
    )


def _print(row: Mapping[str, Any] | None) -> None:
    if row is None:
        return
    table = make_table("setting", "value")
    titles = ("id", "target", "values", "percent", "status", "until", "created by", "created")
    for title, value in zip(titles, (row["id"], f"{row['target']} {row['name']}", *_shown(row)), strict=True):
        add_row(table, title, value)
    if row["problem"]:
        add_row(table, "problem", row["problem"])
    print_table(table)
