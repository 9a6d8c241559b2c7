"""`fairlane config check|show`: the settings of the next start, and those of a running gateway."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from fairlane.gateway.cli.client import Config, Gateway, decoded, warn
from fairlane.gateway.cli.tables import print_table, shown, time_of
from fairlane.workers.options import expanded

Everything = Annotated[bool, typer.Option("--all", help="Also settings with their defaults.")]


def check(
    config: Config = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the reference of all settings as Markdown instead.")
    ] = False,
    everything: Everything = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """Check the configuration and print the settings of a start, each with its source. Secrets are hidden. `fairlane config show`
    asks a running gateway.
    """
    from fairlane.gateway.settings import load_settings, settings_table  # noqa: PLC0415 (slow)

    if markdown:
        typer.echo(settings_table(), nl=False)
        return
    settings, warnings = load_settings(config, {}, os.environ)
    from msgspec import to_builtins  # noqa: PLC0415 (for this command alone)

    from fairlane.gateway.accounts.no_auth import access_warnings  # noqa: PLC0415
    from fairlane.gateway.admin.settings_view import of_file  # noqa: PLC0415
    from fairlane.gateway.cli import database  # noqa: PLC0415 (SQLAlchemy)

    presence, unknown = database.key_presence(settings)
    for warning in [*warnings, *unknown, *access_warnings(settings, presence)]:
        warn(warning)
    rows: list[dict[str, Any]] = [to_builtins(row) for row in of_file(settings)]
    rows = [row for row in rows if everything or row["differs"]]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print(rows)


@expanded
def show(
    gateway: Gateway,
    name: Annotated[str, typer.Argument(help="A part of the settings' names. [default: all]")] = "",
    everything: Everything = False,
) -> None:
    """Show the settings in effect at a running gateway: source, since when, and the operator's key that changed them.

    fairlane config show paid_stream --all
    """
    query: dict[str, object] = {"name": name, "changed": "" if everything else "true"}
    response = gateway.request("/api/admin/settings", query=query)
    if gateway.as_json:
        typer.echo(response.text)
        return
    answer = decoded(response)
    if reason := answer["storeError"]:
        warn(f"Redis is unavailable: changes at run time are unknown ({reason})")
    if rejected := answer["reloadError"]:
        warn(f"the configuration of {time_of(rejected['at'])} was rejected: {rejected['reason']}")
    for other in answer["replicas"]:
        if other["differs"]:
            warn(f"replica {other['replica']} has another configuration: {', '.join(other['differs'])}")
    file = answer["file"]
    read = f"{file['path']} of {time_of(file['modifiedAt'])}" if file else "no file"
    typer.echo(
        f"replica {answer['replica']}, {answer['version']}, since {time_of(answer['startedAt'])}; {read}"
    )
    for state in (True, False):
        names = [name for name, enabled in answer["features"].items() if enabled is state]
        typer.echo(f"features {'on' if state else 'off'}: {', '.join(names) or 'none'}")
    _print(answer["settings"])
    if answer["more"]:
        typer.echo("there are more: give a part of their names")


def _print(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        typer.echo("no setting differs from its default (--all)")
        return
    print_table(
        ("setting", "value", "default", "source", "since", "by", "note"),
        [
            (
                *(row["name"], shown(row["value"]), shown(row["default"]), _source(row)),
                *(time_of(row["since"]), row["by"] or "-", _note(row)),
            )
            for row in rows
        ],
    )


def _source(row: Mapping[str, Any]) -> str:
    return (
        row["where"] or str(row["source"])
        if row["source"] != "changed"
        else f"changed {row['where']}".strip()
    )


def _note(row: Mapping[str, Any]) -> str:
    notes = []
    if below := row["otherwise"]:
        notes.append(f"else {shown(below['value'])} ({_source(below)})")
    if waits := row["afterRestart"]:
        notes.append(f"{shown(waits['value'])} after a restart ({_source(waits)})")
    return "; ".join(notes) or "-"
