"""`python -m tests.drill`: break a model's providers in every way and say what held. The exit code is 0 if everything did."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.drill.backlog import Backlog, move_backlog
from tests.drill.faults import FAULTS
from tests.drill.report import Row, render
from tests.drill.run import Size, drill
from tests.drill.stage import stage


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument("--calls", type=int, default=400, help="calls of each fault (default 400)")
    parser.add_argument("--at-once", type=int, default=8, help="of them under way at a time (default 8)")
    parser.add_argument(
        "--first-output-ms",
        type=int,
        default=1000,
        help="what a model has to its first output (default 1000)",
    )
    parser.add_argument(
        "--open-ms", type=int, default=2000, help="a breaker is open for so long (default 2000)"
    )
    parser.add_argument("--waiting", type=int, default=10_000, help="tasks of the backlog (default 10,000)")
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", action="append", choices=names, help="this fault; may be repeated")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fl-drill-", ignore_cleanup_errors=True) as folder:
        rows, backlog = asyncio.run(run(options, Path(folder)))
    print(render(rows))
    if backlog is not None:
        print("\n" + backlog.render())
    held = not any(row.wrong() or row.late() for row in rows) and not (backlog and backlog.wrong())
    print("\neverything held" if held else "\nNOT everything held")
    return 0 if held else 1


async def run(options: argparse.Namespace, folder: Path) -> tuple[list[Row], Backlog | None]:
    rows: list[Row] = []
    async with stage(folder, first_output_ms=options.first_output_ms, open_ms=options.open_ms) as scene:
        for fault in FAULTS:
            if not options.only or fault.name in options.only:
                print(f"{fault.name}: {fault.what}", file=sys.stderr)
                rows.append(await drill(scene, fault, Size(options.calls, options.at_once)))
        if not options.waiting:
            return rows, None
        print(f"backlog: {options.waiting} tasks", file=sys.stderr)
        return rows, await move_backlog(scene, options.waiting)


if __name__ == "__main__":
    sys.exit(main())
