"""`fairlane endpoints list|show|add|change|remove`: interfaces of other people that a running gateway calls in turn."""

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from fairlane.gateway.durations import duration
from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, print_away, stop, warn
from fairlane.gateway.process.limits_cli import CONDITIONS, ListUnlessTold, read_values
from fairlane.gateway.process.tables import add_row, make_table, print_table, time_of

ENDPOINTS = "/api/admin/endpoints"
_LISTS = frozenset({"methods", "headers", "allow_private", "keys", "tiers"})

Name = Annotated[str, typer.Argument(help="The endpoint's name.")]
SetHeaders = Annotated[
    list[str] | None,
    typer.Option(
        "--set-header",
        help="A header that each request gets, and the environment variable of its value: Authorization=API_AUTH. "
        "Without a variable (Authorization=) it is taken away. May be given several times.",
    ),
]
NoteOption = Annotated[str | None, typer.Option("--note", help="What operators want to remember.")]

app = typer.Typer(
    cls=ListUnlessTold,
    help="Show the interfaces that are called in turn, with their lines; add, change and remove them.",
)


@app.command("list")
def list_endpoints(gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show the endpoints: what waits, how long a request takes (T), and how many a second they take (Q = C / T, or what a window
    lets through). A gateway with keys wants a viewer's or an admin's."""
    told = ask(gateway, key, ENDPOINTS, as_json)
    if told is None:
        return
    print_away(told)
    if not told["endpoints"]:
        typer.echo("there are no endpoints")
        return
    table = make_table(
        "endpoint", "url", "windows", "running", "limit", "waiting", "workers", "T", "Q", "from", "state"
    )
    for row in told["endpoints"]:
        line = row["line"] or {}
        add_row(
            table,
            *(row["name"], row["settings"].get("url", "-"), windows_of(row) or "-"),
            *(line.get("running", "-"), line.get("limit") or "-", line.get("waiting", "-")),
            *(line.get("workers", "-"), mean_of(line), rate_of(line), _source(row), state_of(line)),
        )
    print_table(table)


@app.command("show")
def show(name: Name, gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Show all of one endpoint. A gateway with keys wants a viewer's or an admin's."""
    told = ask(gateway, key, _path(name), as_json)
    if told is not None:
        _print(told)


@app.command("add")
def add(
    name: Name,
    url: Annotated[str, typer.Argument(help="Which URLs: https://host/path/*.")],
    values: Annotated[
        list[str] | None, typer.Argument(help="Settings: name=value; null: the default. Lists as a,b.")
    ] = None,
    set_header: SetHeaders = None,
    note: NoteOption = None,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Add an endpoint on all gateways. Survives restarts, and is written to the audit record.

    fairlane endpoints add image "https://images.example.com/v1/*" requests_per_second=50 concurrency=8

    fairlane endpoints add search https://search.example.com/query methods=GET retries=2 --set-header Authorization=SEARCH_AUTH
    """
    body = {"name": name, "url": url, **_said(values or (), set_header or (), note)}
    again = "look with `fairlane endpoints` whether it was added"
    told = ask(gateway, key, ENDPOINTS, as_json, body, method="POST", again=again)
    if told is not None:
        _print(told)


@app.command("change")
def change(
    name: Name,
    values: Annotated[
        list[str] | None, typer.Argument(help="Settings: name=value; null: the default. Lists as a,b.")
    ] = None,
    set_header: SetHeaders = None,
    note: NoteOption = None,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of an endpoint that was added, on all gateways. What waits goes by the new ones."""
    body = _said(values or (), set_header or (), note)
    if not body:
        stop("say what becomes otherwise: name=value, --set-header or --note")
    told = ask(
        gateway, key, _path(name), as_json, body, method="PATCH", again="the same command again is safe"
    )
    if told is not None:
        _print(told)


@app.command("remove")
def remove(name: Name, gateway: Url = HERE, key: AdminKey = None, as_json: AsJson = False) -> None:
    """Remove an endpoint that was added. Requests under way go on; what waits is not begun."""
    again = "look with `fairlane endpoints` whether it is there"
    told = ask(gateway, key, _path(name), as_json, method="DELETE", again=again)
    if told is not None:
        typer.echo(f"{told['name']} is removed")
        warn(told.get("notes", ()))


def _said(values: Sequence[str], set_headers: Sequence[str], note: str | None) -> dict[str, Any]:
    said = {
        name: [part.strip() for part in str(value).split(",")]
        if name in _LISTS and value is not None and not isinstance(value, list)
        else value
        for name, value in read_values(values).items()
    }
    headers: dict[str, str | None] = {}
    for text in set_headers:
        header, equals, variable = text.partition("=")
        if not equals or not header.strip():
            stop(
                f"{text!r} is no header and variable; write Authorization=API_AUTH, or Authorization= to take it away"
            )
        value = os.environ.get(variable.strip()) if variable.strip() else None
        if variable.strip() and not value:
            stop(f"the environment variable {variable.strip()} is not set")
        headers[header.strip()] = value
    if headers:
        said["set_headers"] = headers
    if note is not None:
        said["note"] = note
    return said


def _path(name: str) -> str:
    return f"{ENDPOINTS}/{quote(name, safe='')}"


def windows_of(row: Mapping[str, Any]) -> str:
    """All windows of an endpoint: those in force, or where that is not known, as it is set."""
    settings, line = row["settings"], row["line"] or {}
    if "windows" in line:
        return str(line["windows"] or "")
    rates = ((settings.get("requests_per_second"), "1s"), (settings.get("requests_per_minute"), "1m"))
    found = [f"{number}/{time}" for number, time in rates if number]
    return ", ".join([*found, settings["windows"]] if settings.get("windows") else found)


def mean_of(line: Mapping[str, Any]) -> str:
    """T, with a mark where it is a guess."""
    mean = line.get("meanMs")
    return "-" if mean is None else duration(round(mean)) + ("" if line.get("measured") else " (guess)")


def state_of(line: Mapping[str, Any]) -> str:
    """Why nothing of it starts now, in words; '' where something may."""
    why = line.get("why") or ""
    return {"held": "held, as it asked for"}.get(why) or CONDITIONS.get(why, why)


def rate_of(line: Mapping[str, Any]) -> str:
    """Q."""
    rate = line.get("perSecond")
    return "-" if rate is None else f"{rate:g}/s"


def _source(row: Mapping[str, Any]) -> str:
    where = "configuration" if row["source"] == "configuration" else row["who"] or "database"
    return where if row["state"] == "active" else f"{where} ({row['state']})"


def _print(row: Mapping[str, Any]) -> None:
    table = make_table("setting", "value")
    add_row(table, "name", row["name"])
    for name, value in row["settings"].items():
        if name == "set_headers" or isinstance(value, list):
            value = " ".join(value)
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        add_row(table, name, "-" if value in (None, "") else shown)
    add_row(table, "from", _source(row))
    if row["changed"] is not None:
        add_row(table, "changed", time_of(row["changed"]))
    add_row(table, "note", row["note"] or "-")
    if line := row["line"]:
        for title, value in (
            *(("running", line["running"]), ("waiting", line["waiting"]), ("workers", line["workers"])),
            *(("T", mean_of(line)), ("Q", rate_of(line)), ("state", state_of(line) or "-")),
        ):
            add_row(table, title, value)
    print_table(table)
    warn(row.get("notes", ()))
