"""Tables for people and pipes: one line per row."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import typer
from rich.cells import cell_len

from fairlane.gateway.errors import duration

MAX_CELL_CHARS = 120
_NUMBER = re.compile(r"-|-?[0-9][0-9.]*\*?%?")


def time_of(ms: int | None) -> str:
    """Return a point in time as 2026-11-23 16:00Z."""
    return "-" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%MZ")


def shown(value: Any) -> str:
    """Return a value of an answer for a table: `-` for none, `a b` for a list, `name=value …` for an object."""
    if value in (None, "", [], {}):
        return "-"
    if isinstance(value, Decimal | float):
        return f"{Decimal(str(value)).normalize():f}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return " ".join(f"{name}={shown(one)}" for name, one in value.items() if one is not None) or "-"
    if isinstance(value, list):
        return " ".join(map(shown, value))
    return str(value)


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "": shown,
    "time": lambda ms: time_of(ms and int(ms)),
    "duration": lambda ms: "-" if ms is None else duration(round(ms)),
    "percent": lambda share: "-" if share is None else f"{share:.0%}",
    "json": lambda value: "-" if value is None else msgspec.json.encode(value).decode(),
}


class Column:
    """One column, written `title=member.path:format`; the title alone where the member has its name."""

    def __init__(self, text: str) -> None:
        title, _, source = text.partition("=")
        path, _, kind = (source or title).partition(":")
        self.title = title.partition(":")[0].replace("_", " ")
        self.path = path.split(".")
        self._format = FORMATS[kind]

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return this column's text of a row; `*` marks a setting that is overridden at run time."""
        value: Any = row
        for name in self.path:
            value = value.get(name) if isinstance(value, Mapping) else None
        setting = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", self.path[-1]).removesuffix("_ms")
        overridden = {setting, self.title} & set(row.get("overrides", ()))
        return self._format(value) + ("*" if overridden else "")


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, a line for each row; numbers are at the right."""
    cells = [[_cut(plain(cell)) for cell in row] for row in rows]
    columns = []
    for title, *column in zip(titles, *cells, strict=True):
        width = max(map(cell_len, (title, *column)))
        numeric = bool(column) and all(map(_NUMBER.fullmatch, column))
        padded = [(" " * (width - cell_len(cell)), cell) for cell in (title, *column)]
        columns.append([pad + cell if numeric else cell + pad for pad, cell in padded])
    for line in zip(*columns, strict=True):
        typer.echo("  ".join(line).rstrip())


def plain(text: str) -> str:
    """Return text of clients and workers without control characters."""
    return "".join(char for char in text if char.isprintable())


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


def details(answer: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return an object as rows of name and value, with dotted names for its parts."""
    rows: list[tuple[str, str]] = []
    for name, value in answer.items():
        if isinstance(value, Mapping) and value:
            rows += details(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            for number, one in enumerate(value, 1):
                rows += details(one, f"{prefix}{name}.{number}.")
        else:
            is_time = (name in _TIMES or name.endswith("At")) and isinstance(value, int)
            rows.append((prefix + name, time_of(value) if is_time else shown(value)))
    return rows


_TIMES = frozenset({"expires", "at", "until", "began", "ended", "since", "validUntil"})
