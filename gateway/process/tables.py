"""Tables for people and pipes: a name is never broken, and in a pipe nothing is."""

from datetime import UTC, datetime
from typing import Literal

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_NUMERIC = frozenset(
    {
        *("lines", "completed", "weight", "waiting", "running", "slots", "limit", "workers", "most waiting"),
        *("tasks", "failed", "cancelled", "input", "output", "cached", "reasoning"),
        *("mean wait", "mean run", "cost"),
        *("available", "balance", "granted", "spent", "held", "budget", "used", "amount", "refunded"),
    }
)


def time_of(ms: int | None) -> str:
    """2026-11-23 16:00Z, in UTC."""
    return "-" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%MZ")


def seconds(ms: float) -> str:
    """A duration for people."""
    units = ((1000, "s", 60_000), (60_000, "min", 2 * HOUR_MS), (HOUR_MS, "h", 2 * DAY_MS))
    for unit_ms, unit, below_ms in units:
        if ms < below_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms / DAY_MS:.1f} days"


def make_table(*columns: str) -> Table:
    """An empty table; columns of numbers are set to the right."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in _NUMERIC else "left"
        table.add_column(column, justify=justify, overflow="fold")
    return table


def add_row(table: Table, *cells: object) -> None:
    """A row of a table, its cells as `plain`."""
    table.add_row(*(plain(str(cell)) for cell in cells))


def plain(text: str, style: str = "") -> Text:
    """Names come from workers and callers: shown as they are, without control characters or markup."""
    return Text("".join(char for char in text if char.isprintable()), style=style)


def print_table(table: Table) -> None:
    """Print a table so that no cell is broken. In a pipe each row is one line; a terminal that is too narrow breaks lines itself,
    and headings of several words are broken first."""
    console = Console()
    if console.is_terminal:
        for column in table.columns:
            heading = str(column.header)
            widths = [cell.cell_len for cell in column.cells if isinstance(cell, Text)]
            column.min_width = max([*widths, *map(len, heading.split())])
            column.no_wrap = column.min_width >= len(heading)
    measured = Measurement.get(console, console.options.update(width=1_000_000), table)
    needed = measured.minimum if console.is_terminal else measured.maximum
    Console(width=max(console.width, needed)).print(table)


def print_page(table: Table, nothing: str, more: str | None = None) -> None:
    """Print a table, or say `nothing` where it has no rows. `more`: behind which row the next page begins."""
    if table.row_count:
        print_table(table)
    else:
        typer.echo(nothing)
    if more:
        typer.echo(f"there are more: --after {more}")
