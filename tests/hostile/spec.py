"""What an attacker's process is told, and how it reports."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import msgspec
from tests.hostile.report import Part


class Spec(msgspec.Struct):
    """One attacker's part of a run: so many requests or frames at a gateway, ended after `seconds` at the latest."""

    port: int
    seed: int
    requests: int
    seconds: float
    sockets: int = 100
    """At most so many at once."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def main(name: str, attack: Callable[[Spec, Part], Awaitable[None]]) -> None:
    """The body of an attacker's process: a specification as its argument, its report as the last line of its output."""
    spec = msgspec.json.decode(sys.argv[1], type=Spec)
    part = Part(name)

    async def run() -> None:
        await attack(spec, part)

    asyncio.run(run())
    sys.stdout.buffer.write(msgspec.json.encode(part) + b"\n")
