"""What the scheduling scripts of one task cost Redis, as a ratio to a yardstick in the same run: `python -m bench.scriptcost`.

Redis runs one script at a time, so its time is the one thing that replicas cannot add. Counted are the microseconds of scripts
per task by the server's own command statistics, all scripts of its life together (submit, the take in finish, finish), and the
memory of a task that waits in addition to its payload. The yardstick is a fixed script of fifty plain commands, 25 HSET and
25 ZADD; it
runs in turns with them, so ratios of different machines can be compared. The situations: no task waits (the task is granted by
its submit), and a short queue, each also for a key with limits, for one with all limits whose users have all, too, for a model
with a price, and for a key that pays it, from what it was granted and from a budget; and 100,000 waiting tasks of 10,000 users.
"""

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tests.contract.store.store import World, drive, sample_ends
from tests.support.servers import Server

from fairlane.queues.credits import BalanceStore, Funds
from fairlane.queues.limits import LIMITS, pack
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.store.link import MAX_SHARED
from fairlane.queues.tasks import End, Grant, State, TaskSpec, Used, only_set

QUEUES = ("paid_stream", "paid_batch", "free_stream", "free_batch")
SLOTS = 16
PAYLOAD_BYTES = 200
KEY_LIMITS = pack({"requests_per_minute": 10**7, "tokens_per_minute": 10**10})
ALL_LIMITS = pack(dict.fromkeys(LIMITS, 10**7) | {"tokens_per_minute": 10**10, "tokens_per_day": 10**12})
FAR_MS = 10**15
PRICE, BUDGET = "270000 70000 1100000 1100000 0", f"k {10**15} m 0 {FAR_MS} {2 * FAR_MS}"
KINDS = {
    "a key with limits": (KEY_LIMITS, "", "", ""),
    "all limits of key and user": (ALL_LIMITS, ALL_LIMITS, "", ""),
    "with a price": ("", "", PRICE, ""),
    "paid by a key": ("", "", PRICE, "k"),
    "paid from a budget": ("", "", PRICE, BUDGET),
}
"""Limits of key and user, price and quota."""
NOTHING = ("", "", "", "")


class Batch:
    """Collects the calls of a script and sends them in one write, as a gateway under load does: Redis stays warm between them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls: list[tuple[str, tuple[bytes, ...]]] = []
        self.together = 1
        """Calls that go in one command."""

    def run_with_others(self, name: str, *args: bytes) -> None:
        """Collect a call."""
        self._calls.append((name, args))

    def send(self) -> list[Any]:
        calls, self._calls = self._calls, []
        commands = []
        for at in range(0, len(calls), self.together):
            some = calls[at : at + self.together]
            words = [word for _, args in some for word in (len(args), *args)]
            commands.append(self._world.link.words(some[0][0], *words))
        return [reply for replies in self._world.connection.pipeline(commands) for reply in replies]


class Load:
    """One replica that submits, finishes and takes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.batch = Batch(world)
        self.scheduler = Scheduler(cast(Any, self.batch), world.keys, "r1", sample_ends(), world.limits)
        self.numbers = itertools.count(1)
        self.running: list[Grant] = []
        self.of_key = NOTHING
        plain = world.scheduler("r1")
        weights = zip(QUEUES, (8, 4, 2, 1), strict=True)
        drive(
            plain.configure(
                {q: {"weight": w} for q, w in weights}, {"m": {"concurrency": SLOTS, "cost": "tokens"}}
            )
        )
        plain.offer(["m"], [], 10**9, 0).result()
        drive(BalanceStore(plain).load("k:acme", Funds(10**15, 1), f"m{FAR_MS}"))

    def submit(self, users: int, want: int) -> None:
        number = next(self.numbers)
        task = TaskSpec(
            f"{number:032x}-1234",
            "m",
            QUEUES[number % len(QUEUES)],
            f"acme/user-{number % users}",
            b"x" * PAYLOAD_BYTES,
            key="acme",
            estimated_input=50,
            max_output=200,
            timeout_ms=60_000_000,
            waiting=True,
            extras=only_set(
                limits=self.of_key[:2] if any(self.of_key[:2]) else None,
                price=self.of_key[2],
                quota=self.of_key[3],
            ),
        )
        self.scheduler.submit(task, want, self.scheduler.nonce(), "w", follow=True, named=want > 0)

    def submitted(self) -> None:
        """Send what was submitted; what it granted runs."""
        for reply in self.batch.send():
            self.running += self.scheduler.parse_submit(reply).grants  # type: ignore[union-attr]

    def finish(self, count: int) -> None:
        """End the oldest tasks that run, and take for their slots."""
        ending, self.running = self.running[:count], self.running[count:]
        for grant in ending:
            self.scheduler.finish(
                grant,
                2,
                [("chunk", b'{"delta":"hello"}')],
                End(
                    State.COMPLETED,
                    "",
                    ("done", b'{"result":null}'),
                    Used(50, 180),
                    self.scheduler.nonce(),
                    1,
                    ["m"],
                    worker="w",
                ),
            )
        for reply in self.batch.send():
            self.running += self.scheduler.parse_finish(reply).grants

    def live(self, users: int, want: int) -> None:
        """SLOTS tasks come and as many end."""
        for _ in range(SLOTS):
            self.submit(users, want)
        self.submitted()
        self.finish(SLOTS)

    def renew(self) -> None:
        """Keep the running ones alive."""
        drive(self.world.scheduler("r1").renew([(grant, "w", True, -1) for grant in self.running]))


YARDSTICK = """
for i = 1, 25 do
  redis.call('HSET', KEYS[1], 'field' .. i, i)
  redis.call('ZADD', KEYS[2], i, 'member' .. i)
end
"""


def micros(world: World, *commands: str) -> float:
    """Microseconds of these commands since the last reset."""
    total = 0.0
    for line in world.call("INFO", "commandstats").decode().splitlines():
        name, _, fields = line.partition(":")
        if name.removeprefix("cmdstat_") in commands:
            total += float(dict(pair.split("=") for pair in fields.split(","))["usec"])
    return total


def memory(world: World) -> int:
    text = world.call("INFO", "memory").decode()
    return int(next(line for line in text.splitlines() if line.startswith("used_memory:")).partition(":")[2])


def per_task(world: World, tasks: int, live: Callable[[], None]) -> dict[str, float]:
    """Of a task: microseconds (the tenth percentile of rounds of SLOTS tasks, as whatever else the machine does only adds), and
    their ratio to the yardstick (the median of the rounds').
    """
    yardstick = [("EVAL", YARDSTICK, 2, f"{world.prefix}yard:h", f"{world.prefix}yard:z")] * SLOTS
    rounds, ratios = [], []
    for _ in range(max(tasks // SLOTS, 10)):
        world.call("CONFIG", "RESETSTAT")
        live()
        world.connection.pipeline(yardstick)
        rounds.append(micros(world, "evalsha", "fcall") / SLOTS)
        ratios.append(rounds[-1] * SLOTS / micros(world, "eval"))
    return {
        "us": round(sorted(rounds)[len(rounds) // 10], 1),
        "of the yardstick": round(statistics.median(ratios), 2),
    }


def measure(server: Server, *, queued: int, users: int, tasks: int) -> dict[str, Any]:
    """The three situations, on an empty database of this server."""
    world = World(server.socket_path, max_queue_length=10**7, max_queued_bytes=10**12, real_clock=True)
    world.call("FLUSHALL")
    load = Load(world)
    result: dict[str, Any] = {"no task waits": per_task(world, tasks, lambda: load.live(10, 1))}
    load.batch.together = MAX_SHARED
    result["no task waits, 16 calls in one command"] = per_task(world, tasks, lambda: load.live(10, 1))
    load.batch.together = 1
    for name, of_key in KINDS.items():
        load.of_key = of_key
        result[f"no task waits, {name}"] = per_task(world, tasks, lambda: load.live(10, 1))
    for name, of_key in {"": NOTHING, **KINDS}.items():
        load.of_key = of_key
        for want in [1] * SLOTS + [0] * 32 if not name else []:
            load.submit(10, want)
        load.submitted()
        result[f"short queues, {name}" if name else "short queues"] = per_task(
            world, tasks, lambda: load.live(10, 0)
        )
    load.of_key = NOTHING
    load.renew()
    before = memory(world)
    for _ in range(queued // 100):
        for _ in range(100):
            load.submit(users, 0)
        load.submitted()
    result["bytes per waiting task"] = round((memory(world) - before) / queued - PAYLOAD_BYTES)
    load.renew()
    result["long queues"] = per_task(world, tasks, lambda: load.live(users, 0))
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
