"""`python -m tests.windows`: what a target sees of a model with windows. The exit code is 0 if they held and were used."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.windows.run import Size, measure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.windows", description=__doc__)
    standard = Size()
    parser.add_argument("--windows", default=standard.windows, help="of the model (default 50/1s)")
    parser.add_argument("--callers", type=int, default=standard.callers, help="at a time (default 500)")
    parser.add_argument("--seconds", type=float, default=standard.seconds, help="to measure (default 60)")
    parser.add_argument(
        "--answer-ms", type=int, default=standard.answer_ms, help="of the target (default 150)"
    )
    parser.add_argument(
        "--kills", type=int, default=standard.kills, help="of a gateway meanwhile (default 0)"
    )
    parser.add_argument(
        "--endpoint", action="store_true", help="the target is an endpoint: calls and permits, through nginx"
    )
    parser.add_argument(
        "--margin-ms", type=int, default=standard.margin_ms, help="longer windows for gateways (default 0)"
    )
    options = parser.parse_args()
    size = Size(**vars(options))
    with tempfile.TemporaryDirectory(prefix="fl-windows-", ignore_cleanup_errors=True) as folder:
        report = asyncio.run(measure(Path(folder), size))
    wrong = [*report.passed(), *report.wasted(), *report.wrong]
    print(report.render())
    print("\n" + ("NOT everything held: " + "; ".join(wrong[:5]) if wrong else "everything held"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
