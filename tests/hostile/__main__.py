"""`python -m tests.hostile`: attack a gateway of one's own and say what held. The exit code is 0 if everything did."""

import argparse
import asyncio
import secrets
import sys
import tempfile
from pathlib import Path

import msgspec
from tests.hostile.report import render
from tests.hostile.run import Size, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=200_000, help="requests and frames to send (default 200,000)"
    )
    parser.add_argument(
        "--seconds", type=float, default=1800, help="stop sending after so long (default 1800)"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="decides what is sent; printed at the end (default: by chance)"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the gateway's files, which stay there")
    parser.add_argument("--json", type=Path, help="write what was seen to this file, too")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    size = Size(options.requests, options.seconds, seed)
    print(f"hostile run of {size.requests} requests, seed {seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="fl-hostile-", ignore_cleanup_errors=True) as folder:
        outcome = asyncio.run(run(size, options.keep or Path(folder)))
    print(render(outcome))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(outcome)))
    return 0 if outcome.held else 1


if __name__ == "__main__":
    sys.exit(main())
