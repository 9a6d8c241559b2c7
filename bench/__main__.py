"""`python -m bench [--quick] [--only NAME …] [--json FILE] [--profile DIRECTORY]`."""

import argparse
import asyncio
import datetime
import os
import platform
import sys
import time
from pathlib import Path

import msgspec

from bench import procstat
from bench.measures import Outcome
from bench.profiling import Profiler, ProfilerMissing
from bench.report import Report, table
from bench.scenarios import QUICK, SCENARIOS, Options
from bench.stack import BenchError, Cores, raise_file_limit
from fairlane import __version__

FILES_PER_STREAM = 1.1
SPARE_FILES = 200


def arguments(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure a gateway on this machine. Nothing else should run meanwhile.",
        epilog="Scenarios: " + ", ".join(SCENARIOS),
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer scenarios, one short round each: a smoke test"
    )
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, metavar="NAME", help="only these scenarios")
    parser.add_argument("--rounds", type=int, help="measurements per scenario; the median counts (default 3)")
    parser.add_argument("--seconds", type=float, help="length of each (default 5)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the JSON there and only the table to stdout"
    )
    parser.add_argument(
        "--profile", type=Path, metavar="DIRECTORY", help="sample the gateway in one more round (py-spy)"
    )
    return parser.parse_args(argv)


async def run(given: argparse.Namespace, options: Options) -> Report:
    """All scenarios, one after the other. One that cannot run counts as an error and does not stop the others."""
    begun = time.monotonic()
    started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    outcomes = []
    for name in given.only or (QUICK if given.quick else SCENARIOS):
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            outcomes.append(await SCENARIOS[name](options))
        except (BenchError, OSError, TimeoutError) as error:
            outcomes.append(Outcome(name, "could not be measured", [], 1, str(error) or repr(error)))
    machine: dict[str, str | int] = {
        "cpu": procstat.cpu_model(),
        "cores": os.cpu_count() or 1,
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    return Report(__version__, given.quick, machine, started_at, time.monotonic() - begun, outcomes)


def main(argv: list[str]) -> int:
    """Measure and report; 1 when anything failed. No figure makes it fail: figures differ by machine."""
    given = arguments(argv)
    files = raise_file_limit()
    profiler = None
    if given.profile:
        try:
            profiler = Profiler()
        except ProfilerMissing as missing:
            print(missing, file=sys.stderr)
            return 2
        given.profile.mkdir(parents=True, exist_ok=True)
    most_streams = int((files - SPARE_FILES) / FILES_PER_STREAM)
    options = Options(
        Cores.split(),
        rounds=given.rounds or (1 if given.quick else 3),
        repeats=0 if given.quick else 4,
        seconds=given.seconds or (1.5 if given.quick else 5.0),
        warm_up_s=0.5 if given.quick else 1.5,
        idle_streams=min(500 if given.quick else 5000, most_streams),
        async_tasks=2000 if given.quick else 12_000,
        profiler=profiler,
        profile_to=given.profile,
    )
    report = asyncio.run(run(given, options))
    document = msgspec.json.format(msgspec.json.encode(report), indent=1)
    if given.json:
        given.json.write_bytes(document + b"\n")
    else:
        print(document.decode())
    print(table(report), file=sys.stdout if given.json else sys.stderr)
    return 1 if report.errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
