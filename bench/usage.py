"""How long the usage page takes with many records: `python -m bench.usage [--rows 1000000] [--postgresql]`.

Fills an empty database as the gateways do, and asks what the dashboard and `fairlane usage list` ask. Rows: a year, two keys,
10,000 users and five models, most of them of the last month.
"""

import argparse
import asyncio
import contextlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.support.databases import running_postgres
from tests.support.records import NOON, entry

from fairlane.gateway.database.address import parse_address
from fairlane.gateway.database.database import Database
from fairlane.gateway.usage.reports import ReportSlots, UsageReports, Wanted
from fairlane.gateway.usage.usage import DAY_MS, UsageTable

PAGE = 500
USERS = 10_000
MODELS = ("qwen3-32b", "llama-70b", "gpt-oss-120b", "deepseek", "mistral")


@contextlib.asynccontextmanager
async def emptied(*, postgresql: bool) -> AsyncIterator[Database]:
    """A database that has the schema and nothing else."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = stack.enter_context(running_postgres()).new("usage") if postgresql else None
        database = Database(parse_address(url, Path(folder)))
        await database.start()
        try:
            yield database
        finally:
            await database.close()


def page(first: int, dice: random.Random) -> list[bytes]:
    """Entries of tasks that ended about the same time; later ones more often lately."""
    day = min(int(dice.expovariate(1 / 20)), 364)
    packed = []
    for number in range(first, first + PAGE):
        user = int(USERS * dice.random() ** 3)
        failed = dice.random() < 0.02
        packed.append(
            entry(
                f"{number:032x}",
                ended=NOON - day * DAY_MS - dice.randrange(DAY_MS // 2),
                state="failed" if failed else "completed",
                code="TOTAL_TIMEOUT" if failed else "",
                key="site" if user % 3 else "acme",
                user=f"site/user-{user}",
                model=MODELS[min(int(dice.expovariate(1)), 4)],
                tokens=(dice.randrange(4000), dice.randrange(1500)),
            )
        )
    return packed


async def fill(database: Database, rows: int) -> None:
    """Write this number of rows."""
    table, dice = UsageTable(lambda queue: queue.partition("_")[0]), random.Random(1)
    begun, cpu = time.perf_counter(), time.process_time()
    for first in range(0, rows, PAGE):
        packed = page(first, dice)
        async with database.writing() as connection:
            await table.write(connection, packed)
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(
        f"{rows:,} rows written: {took / rows * 1e6:.0f} us each, {cpu / rows * 1e6:.0f} us of this process"
    )


async def ask(database: Database) -> None:
    """Ask, three times each; the fastest counts."""
    reports = UsageReports(ReportSlots(database))
    questions: list[tuple[Sequence[str], int, dict[str, str]]] = [
        *((["model"], days, {}) for days in (30, 365)),
        *((["key"], days, {}) for days in (30, 365)),
        *((["day"], days, {}) for days in (30, 365)),
        *((["user"], days, {}) for days in (30, 365)),
        (["day", "model"], 365, {}),
        (["day"], 365, {"user": "site/user-1"}),
        (["user"], 365, {"key": "acme", "model": MODELS[0]}),
    ]
    until = NOON - NOON % DAY_MS + DAY_MS
    for by, days, filters in questions:
        wanted, times = Wanted(until - days * DAY_MS, until, filters), []
        for _ in range(3):
            begun = time.perf_counter()
            report = await reports.sums(by, wanted, 1000)
            times.append(time.perf_counter() - begun)
        what = f"by {','.join(by)}, {days} days {filters or ''}"
        print(f"{what:70} {min(times) * 1000:7.0f} ms, {len(report.rows)} rows")
    for filters in ({}, {"key": "acme"}, {"user": "site/user-1"}, {"status": "failed"}):
        begun = time.perf_counter()
        await reports.tasks(Wanted(0, until, filters), "", 100)
        print(f"{f'100 tasks {filters}':70} {(time.perf_counter() - begun) * 1000:7.0f} ms")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--postgresql", action="store_true")
    given = parser.parse_args()
    async with emptied(postgresql=given.postgresql) as database:
        await fill(database, given.rows)
        await ask(database)


if __name__ == "__main__":
    asyncio.run(main())
