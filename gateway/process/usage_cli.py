"""`fairlane usage`: what tasks used, by model, key, user, day and more."""

from typing import Annotated, Any

import typer

from fairlane.gateway.process.asking import HERE, AdminKey, AsJson, Url, ask, query_of
from fairlane.gateway.process.tables import add_row, make_table, print_table


def usage(
    by: Annotated[
        str,
        typer.Option(
            help="model, key, user, tier, state, code, route, day or hour; up to three, with commas between."
        ),
    ] = "model",
    since: Annotated[
        str, typer.Option("--from", help="The first day (UTC), such as 2026-11-01. [default: 30 days ago]")
    ] = "",
    until: Annotated[
        str, typer.Option("--to", help="Up to, and without, this day (UTC). [default: up to now]")
    ] = "",
    model: Annotated[
        str, typer.Option(help="Only of tasks that this model ran, whatever was asked for.")
    ] = "",
    caller: Annotated[str, typer.Option("--of-key", help="Only of this key, by its id.")] = "",
    user: Annotated[str, typer.Option(help="Only of this user, as the task list names it.")] = "",
    tier: Annotated[str, typer.Option(help="Only of this tier.")] = "",
    route: Annotated[str, typer.Option(help="Only of tasks that named this route.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show no more rows than so many.")] = 1000,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print it as CSV.")] = False,
    gateway: Url = HERE,
    key: AdminKey = None,
    as_json: AsJson = False,
) -> None:
    """Show what tasks used: tokens, times, how they ended, and what they cost (credits).

    A gateway with keys wants a viewer's or an admin's.

    fairlane usage --by user --from 2026-11-01

    fairlane usage --by day,model --csv > usage.csv
    """
    wanted = {"by": by, "from": since, "to": until, "model": model, "key": caller, "user": user, "tier": tier}
    wanted |= {"route": route, "limit": str(limit), "format": "csv" if as_csv else "json"}
    path = f"/api/admin/usage{query_of(wanted)}"
    told = ask(gateway, key, path, as_csv or as_json, exact=True, ends_line=not as_csv)
    if told is not None:
        _print(told)


def _print(report: dict[str, Any]) -> None:
    costs = bool(report["total"]["cost"])
    table = make_table(*report["by"], *_COLUMNS, *(["cost"] if costs else []))
    for row in report["rows"]:
        add_row(table, *(row[name] or "-" for name in report["by"]), *_cells(row, costs))
    if not report["rows"]:
        typer.echo("no task has ended in this time that matches what you asked for")
        return
    add_row(table, "all", *("" for _ in report["by"][1:]), *_cells(report["total"], costs))
    print_table(table)
    if report["more"]:
        typer.echo("there are more rows: --limit")


_COLUMNS = ("tasks", "failed", "cancelled", "input", "output", "cached", "reasoning", "mean wait", "mean run")


def _cells(row: dict[str, Any], costs: bool) -> list[object]:
    tasks = max(row["tasks"], 1)
    numbers = [row["tasks"], row["failed"], row["cancelled"], row["inputTokens"], row["outputTokens"]]
    times = [f"{row[name] / tasks / 1000:.1f}s" for name in ("waitedMs", "ranMs")]
    cost = [row["cost"]] if costs else []
    return [*numbers, row["cachedTokens"], row["reasoningTokens"], *times, *cost]
