"""The report: JSON for machines, a table for people. Pure."""

import msgspec

from bench.measures import Figure, Outcome


class Report(msgspec.Struct):
    """A whole run."""

    version: str
    quick: bool
    machine: dict[str, str | int]
    started_at: str
    seconds: float
    outcomes: list[Outcome]

    @property
    def errors(self) -> int:
        """Calls and streams that failed, and scenarios that could not run."""
        return sum(outcome.errors for outcome in self.outcomes)


COLUMNS = (("", 32), ("measured", 12), ("least … greatest", 22), ("reach", 9), ("then", 9))


def table(report: Report) -> str:
    """The figures by scenario, with their targets."""
    lines = [
        "".join(title.rjust(width) if at else title.ljust(width) for at, (title, width) in enumerate(COLUMNS))
    ]
    for outcome in report.outcomes:
        lines += ["", f"{outcome.scenario}: {outcome.about}"]
        if outcome.errors:
            lines.append(f"  {outcome.errors} ERRORS, the first: {outcome.error}")
        lines += [_row(figure) for figure in outcome.figures]
        if outcome.profile:
            lines += ["  own      with callees", *(f"  {line}" for line in outcome.profile)]
    return "\n".join(lines)


def _row(figure: Figure) -> str:
    spread = f"{short(figure.low)} … {short(figure.high)}" if figure.rounds > 1 else ""
    mark = {True: "  reached", False: "  MISSED", None: ""}[figure.reached]
    return (
        f"  {figure.name} {figure.unit}".rstrip().ljust(COLUMNS[0][1])
        + short(figure.value).rjust(COLUMNS[1][1])
        + spread.rjust(COLUMNS[2][1])
        + _target(figure.reach).rjust(COLUMNS[3][1])
        + _target(figure.then).rjust(COLUMNS[4][1])
        + mark
    )


def _target(value: float | None) -> str:
    return "" if value is None else short(value)


def short(value: float) -> str:
    """A number with three digits that count."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
