"""`fairlane settings`: every setting of a running gateway, where it comes from, and who changed it."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, query_of, warn
from fairlane.gateway.process.tables import add_row, make_table, print_table, time_of
from fairlane.gateway.settings.docs import shown

MOST_WIDE = 120
"""Characters of a value in a table."""


def settings(
    name: Annotated[
        str, typer.Argument(help="A part of their names, such as paid_stream. [default: all]")
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Show those that have their defaults, too.")
    ] = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show which settings hold in a running gateway, where each comes from, since when, and who changed it: those that are not
    as by default, or all. A gateway with keys wants a viewer's or an admin's.

    fairlane settings

    fairlane settings paid_stream --all
    """
    wanted = query_of({"name": name, "changed": "" if everything else "true"})
    told = ask(gateway, key, f"/api/admin/settings{wanted}", as_json)
    if told is None:
        return
    warn(_warnings(told))
    file = told["file"]
    typer.echo(
        f"replica {told['replica']}, {told['version']}, since {time_of(told['startedAt'])}; "
        + (
            f"{file['path']} of {time_of(file['modifiedAt'])}, read {time_of(told['readAt'])}"
            if file
            else "no file"
        )
    )
    print_rows(told["settings"], None, running=True)
    if told["more"]:
        typer.echo("there are more: say a part of their names")


def _warnings(told: Mapping[str, Any]) -> list[str]:
    """What an operator should know before the values: in whom they are not the whole truth."""
    found = []
    if told["storeAway"]:
        found.append(
            f"Redis is away, so what was changed while running is not known; this is the configuration ({told['storeAway']})"
        )
    if refused := told["reloadRefused"]:
        found.append(
            f"a configuration that it read at {time_of(refused['at'])} is not taken over: {refused['why']}"
        )
    for other in told["replicas"]:
        if other["differs"]:
            found.append(
                f"replica {other['replica']} ({other['host'] or 'host not known'}) is configured otherwise: "
                f"{', '.join(other['differs'])}; ask it, too"
            )
    return found


def print_rows(rows: Sequence[Mapping[str, Any]], of: int | None, *, running: bool = False) -> None:
    """Print settings as a table; `of` so many that there are, others have their defaults. `running`: with who changed them."""
    table = make_table("setting", "value", "default", "from", *(("since", "by", "note") if running else ()))
    for row in rows:
        cells = [row["name"], _short(row["value"]), _short(row["default"]), _source(row)]
        if running:
            cells += [time_of(row["since"]), row["by"] or "-", _note(row)]
        add_row(table, *cells)
    if rows:
        print_table(table)
    if of is None:
        if not rows:
            typer.echo("no setting matches, or all that match have their defaults (--all)")
    elif len(rows) < of:
        typer.echo(f"{of - len(rows)} settings have their defaults: --all shows them")


def _source(row: Mapping[str, Any]) -> str:
    """`fairlane.yaml`, `FAIRLANE_PORT`, `--port`; else the word, and what there is to say beside."""
    if row["follows"]:
        return f"as {row['follows']}"
    if row["source"] in ("file", "environment", "flag"):
        return str(row["where"])
    return f"{row['source']} {row['where']}".strip()


def _note(row: Mapping[str, Any]) -> str:
    notes = []
    if below := row["otherwise"]:
        notes.append(f"else {_short(below['value'])} ({_source({**below, 'follows': None})})")
    if waits := row["afterRestart"]:
        notes.append(f"{_short(waits['value'])} after a restart ({_source({**waits, 'follows': None})})")
    return "; ".join(notes) or "-"


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= MOST_WIDE else f"{text[: MOST_WIDE - 1]}…"
