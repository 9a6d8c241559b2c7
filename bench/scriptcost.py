"""What the scheduling scripts of one task cost Redis, by the server's own command statistics: `python -m bench.scriptcost`.

Redis runs one script at a time, so its time is the one thing that replicas cannot add. Counted are the microseconds of EVALSHA
per task, all scripts of its life together (submit, the take in finish, finish), and the memory of a task that waits beside its
payload. Three situations: nobody waits (the task is granted by its submit), a short queue, and 100,000 waiting tasks of 10,000
users.
"""

import argparse
import itertools
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.direct import World, drive
from tests.support.servers import Server

from fairlane.queues.scheduler import Limits, Scheduler
from fairlane.queues.tasks import Grant, State, TaskSpec

QUEUES = ("paid_stream", "paid_batch", "free_stream", "free_batch")
SLOTS = 16
REACH_SHORT_US, REACH_LONG_US, REACH_BYTES = 60.0, 90.0, 1024


class Load:
    """One replica that submits, finishes and takes, over a blocking connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scheduler: Scheduler = world.scheduler("r1")
        self.numbers = itertools.count(1)
        self.running: list[Grant] = []
        drive(
            self.scheduler.configure(
                {q: {"weight": w} for q, w in zip(QUEUES, (8, 4, 2, 1), strict=True)}, {}
            )
        )
        drive(self.scheduler.configure({q: {} for q in QUEUES}, {"m": {"concurrency": SLOTS}}))
        self.scheduler.offer(["m"], [], b"[]", 10**9, 0).result()

    def submit(self, users: int, want: int) -> None:
        number = next(self.numbers)
        task = TaskSpec(
            f"{number:032x}-1234",
            "m",
            QUEUES[number % len(QUEUES)],
            f"user-{number % users}",
            b"x" * 200,
            key="acme",
            estimated_input=50,
            max_output=200,
            timeout_ms=60_000_000,
            waiting=True,
            follow=True,
        )
        reply = self.scheduler.submit(task, want, self.scheduler.nonce(), "w")
        answer = self.scheduler.submitted(reply.result())
        self.running += answer.grants  # type: ignore[union-attr]

    def finish(self) -> None:
        grant = self.running.pop(0)
        reply = self.scheduler.finish(
            grant,
            State.COMPLETED,
            "",
            2,
            [("chunk", b'{"delta":"hello"}')],
            ("done", b'{"result":null}'),
            used=(50, 180),
            want=1,
            models=["m"],
            nonce=self.scheduler.nonce(),
            worker="w",
        )
        self.running += self.scheduler.finished(reply.result()).grants

    def renew(self) -> None:
        """Keep the running ones alive."""
        drive(self.scheduler.renew([(grant, "w", True, -1) for grant in self.running]))


def stats(world: World) -> tuple[float, int]:
    """Microseconds and calls of EVALSHA since the last reset."""
    text = world.call("INFO", "commandstats").decode()
    for line in text.splitlines():
        if line.startswith("cmdstat_evalsha:"):
            fields = dict(pair.split("=") for pair in line.partition(":")[2].split(","))
            return float(fields["usec"]), int(fields["calls"])
    return 0.0, 0


def memory(world: World) -> int:
    text = world.call("INFO", "memory").decode()
    return int(next(line for line in text.splitlines() if line.startswith("used_memory:")).partition(":")[2])


def per_task(world: World, tasks: int, lives: Iterator[None]) -> float:
    """Microseconds per task: the tenth percentile of rounds of 4, as whatever else the machine does only adds."""
    rounds = []
    for _ in range(max(tasks // 4, 10)):
        world.call("CONFIG", "RESETSTAT")
        for _ in range(4):
            next(lives)
        rounds.append(stats(world)[0] / 4)
    return sorted(rounds)[len(rounds) // 10]


def measure(server: Server, *, queued: int, users: int, tasks: int) -> dict[str, Any]:
    """Run the three situations on an empty database of this server."""
    world = World(
        server.socket_path, limits=Limits(max_queue_length=10**7, max_queued_bytes=10**12), real_clock=True
    )
    world.call("FLUSHALL")
    load = Load(world)

    def nobody_waits() -> Iterator[None]:
        while True:
            load.submit(10, 1)
            load.finish()
            yield

    def some_wait() -> Iterator[None]:
        while True:
            load.submit(10, 0)
            load.finish()
            yield

    result: dict[str, Any] = {"nobody waits": per_task(world, tasks, nobody_waits())}
    for _ in range(SLOTS):
        load.submit(10, 1)
    for _ in range(20):
        load.submit(10, 0)
    result["short queues"] = per_task(world, tasks, some_wait())
    load.renew()
    before = memory(world)
    for _ in range(queued):
        load.submit(users, 0)
    result["bytes per waiting task"] = (memory(world) - before) / queued - 200
    load.renew()

    def many_wait() -> Iterator[None]:
        while True:
            load.submit(users, 0)
            load.finish()
            yield

    result["long queues"] = per_task(world, tasks, many_wait())
    world.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--server", default="redis-server", help="redis-server or a path")
    options = parser.parse_args()
    binary = shutil.which(options.server)
    if binary is None:
        parser.error(f"{options.server} is not installed")
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        server = Server(binary, Path(folder))
        try:
            server.start()
            print(
                json.dumps(
                    measure(server, queued=options.queued, users=options.users, tasks=options.tasks), indent=1
                )
            )
        finally:
            server.stop()


if __name__ == "__main__":
    main()
