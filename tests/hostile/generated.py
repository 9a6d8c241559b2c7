"""The attacker with a document: requests that schemathesis makes from it, as they are and damaged. A process of its own.

Making one takes longer than answering it, so each is sent several times: once as it is, then with bytes damaged.
"""

import asyncio
import contextlib
import random
import re
import time
import warnings
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisException
from tests.hostile.cast import secret
from tests.hostile.connection import carry_out
from tests.hostile.document import narrowed, whole
from tests.hostile.mutations import Plan, damaged
from tests.hostile.report import Part
from tests.hostile.spec import Spec, main

BATCH = 12
"""Requests that are made of one call before it is the next one's turn."""
COPIES = 3
"""Damaged copies of each."""
MAX_CONCURRENT = 16


def _key(path: str) -> str:
    return "ops" if path.startswith(("/api/admin", "/metrics")) else "mallory"


def as_bytes(call: dict[str, Any], key: str) -> tuple[str, bytes]:
    """(method, bytes) of a generated request."""
    headers = {
        name: value
        for name, value in call.pop("headers", {}).items()
        if not name.startswith("X-Schemathesis")
    }
    call.pop("cookies", None)
    prepared = requests.Request(**call, headers=dict(headers)).prepare()
    url, body = urlsplit(str(prepared.url)), prepared.body or b""
    data = body if isinstance(body, bytes) else str(body).encode("utf-8", "surrogatepass")
    target = (url.path or "/") + ("?" + url.query if url.query else "")
    lines = [
        f"{prepared.method} {target} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {secret(key)}",
    ]
    sent = {"host", "authorization", "connection", "content-length", "transfer-encoding", "accept-encoding"}
    for name, value in prepared.headers.items():
        text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
        if name.lower() not in sent:
            lines.append(f"{name}: {text}")
    if data or prepared.method in ("POST", "PATCH"):
        lines.append(f"Content-Length: {len(data)}")
    return str(prepared.method), "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + data


def operations_of(document: dict[str, Any]) -> list[Any]:
    """The calls of a document, as schemathesis sees them."""
    results: Any = schemathesis.openapi.from_dict(document).get_all_operations()
    return [result.ok() for result in results]


_LENGTH = re.compile(rb"(?<=\r\nContent-Length: )\d+")


def damaged_copy(rng: random.Random, data: bytes) -> bytes:
    """The request with bytes of its body damaged, and its length right; or with damage anywhere."""
    head, blank, body = data.partition(b"\r\n\r\n")
    if not body or rng.random() < 0.3:
        return damaged(rng, data)
    body = damaged(rng, body)
    return _LENGTH.sub(b"%d" % len(body), head) + blank + body


def make(operation: Any, mode: Any, number: int, seed_: int, end: float) -> list[tuple[str, bytes]]:
    """A batch of requests of one call; fewer where nothing more can be made."""
    made: list[tuple[str, bytes]] = []

    @seed(seed_ * 1_000_003 + number)
    @settings(
        max_examples=BATCH,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def collect(case: Any) -> None:
        if time.monotonic() > end:
            return
        with contextlib.suppress(UnicodeError, requests.RequestException, ValueError):
            made.append(as_bytes(case.as_transport_kwargs(base_url="http://127.0.0.1"), _key(operation.path)))

    with contextlib.suppress(
        HypothesisException
    ):  # a call without parameters has nothing that could be wrong
        collect()
    return made


async def attack(spec: Spec, part: Part) -> None:
    """Go round all calls, good and wrong by turns, until enough was sent."""
    warnings.simplefilter("ignore")
    operations = operations_of(narrowed(whole()))
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    end = time.monotonic() + spec.seconds
    limit = asyncio.Semaphore(MAX_CONCURRENT)
    number = 0
    order = random.Random(f"{spec.seed}/generated").sample(
        [(op, mode) for op in operations for mode in modes], 2 * len(operations)
    )

    async def send(plan: Plan, at: int) -> None:
        async with limit:
            await carry_out(spec.port, plan, part, at)

    while part.total < spec.requests and time.monotonic() < end:
        operation, mode = order[number % len(order)]
        batch = await asyncio.to_thread(make, operation, mode, number, spec.seed, end)
        rng = random.Random(f"{spec.seed}/generated/{number}")
        plans = []
        for method, data in batch:
            plans.append(Plan(mode.value, [data], methods=(method,), proper=True))
            plans += [Plan("damaged copies", [damaged_copy(rng, data)]) for _ in range(COPIES)]
        await asyncio.gather(*(send(plan, number) for plan in plans))
        number += 1
    part.notes["batches"] = number


if __name__ == "__main__":
    main("generated", attack)
