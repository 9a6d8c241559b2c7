"""Callers over HTTP: they send a simulation's requests at their times, each read in one of four ways, to the gateways in turn."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx2
import msgspec

from bench.fairness.live_stack import Key
from bench.fairness.simulator import Estimate, Request

TIMEOUT_MS = 600_000
"""What each call may take. No experiment is as long."""
BYTES_PER_TOKEN = 4
"""What the gateway takes for a token of the request."""
MAX_CONCURRENT_CANCELS = 32
ENDS = frozenset({"done", "error", "cancelled"})
NOBODYS: Mapping[str, Sequence[str]] = {}


class Reading(StrEnum):
    """How a caller gets the answer."""

    SYNC = "sync"
    STREAM = "stream"
    LATER = "async and poll"
    UNREAD = "async, never read"


@dataclass(slots=True, eq=False)
class Call:
    """A request that was sent, and what its caller saw. `sent_ns`: by the monotonic clock."""

    number: int
    request: Request
    reading: Reading
    sent_ns: int = 0
    task_id: str = ""
    status: str = "under way"
    """completed, cancelled, left (its caller hung up), or an answer that was not expected."""
    ends: int = 0
    """Terminal events that a stream showed."""
    headers: dict[str, str] = field(default_factory=dict)
    waited_ms: int = -1
    """What the gateway says of a sync call."""
    told: Estimate | None = None
    """Estimated wait that an async call returned; None: the task did not wait, or no estimate was possible."""


Again = Callable[[Call], Iterable[Request]]
"""What a client sends when a call has ended."""


class Clients:
    """All clients. `calls` has the outcomes; leaving the block disconnects open calls."""

    def __init__(
        self,
        urls: Sequence[str],
        keys: Mapping[str, Key],
        model: str,
        names: Mapping[str, Sequence[str]] = NOBODYS,
        expire_s: float = 0,
    ) -> None:
        """`keys`: by client of the requests. `names`: by client, the users that its calls say they are for, in turn.

        With `expire_s` what is never read ends by its own timeout, so long after the first request was sent.
        """
        self.calls: list[Call] = []
        self.began_ns = 0
        """The zero of the requests' times."""
        self.put_off = 0
        """Polls that were answered with 503."""
        self._model, self._keys = model, keys
        self._names = {client: itertools.cycle(users) for client, users in names.items()}
        self._replicas = itertools.cycle([_client(url) for url in urls])
        self._numbers = itertools.count(1)
        self._tasks: dict[Call, asyncio.Task[None]] = {}
        self._ending = False
        self._expire_s = expire_s
        self._open: set[httpx2.AsyncClient] = {next(self._replicas) for _ in urls}

    async def send(self, requests: Iterable[tuple[Request, Reading]], again: Again | None = None) -> None:
        """Send requests, in the order of their times; returns when the last one is under way."""
        self.began_ns = time.monotonic_ns()
        for request, reading in requests:
            await asyncio.sleep(max(self.began_ns + request.at_us * 1000 - time.monotonic_ns(), 0) / 1e9)
            self._begin(request, reading, again)

    def _begin(self, request: Request, reading: Reading, again: Again | None) -> None:
        call = Call(next(self._numbers), request, reading)
        self.calls.append(call)
        self._tasks[call] = asyncio.create_task(self._run(call, next(self._replicas), again))

    async def until_s(self, seconds: float) -> None:
        """Wait until so much time has passed since the first request's."""
        await asyncio.sleep(max(self.began_ns / 1e9 + seconds - time.monotonic(), 0))

    async def accepted(self) -> None:
        """Wait until all calls that are not read have been accepted or refused."""
        await asyncio.gather(*(self._tasks[call] for call in self.calls if call.reading is Reading.UNREAD))

    async def answered(self, calls: Iterable[Call], deadline_s: float) -> None:
        """Wait until calls have been answered. Raises TimeoutError."""
        async with asyncio.timeout(deadline_s):
            await asyncio.gather(*(self._tasks[call] for call in calls))

    async def end(self) -> None:
        """End what has not ended: who knows the task's id cancels it, the others hang up. Nothing is sent again."""
        self._ending = True
        ended_by_us = {"under way"} if self._expire_s else {"under way", "accepted"}
        left = [call for call in self.calls if call.status in ended_by_us]
        replica = next(self._replicas)
        gate = asyncio.Semaphore(MAX_CONCURRENT_CANCELS)

        async def stop(call: Call) -> None:
            if call.task_id:
                async with gate:
                    await self._cancel(replica, call)
            if call.reading in (Reading.LATER, Reading.SYNC):
                self._tasks[call].cancel()

        await asyncio.gather(*(stop(call) for call in left))
        await asyncio.wait_for(asyncio.gather(*self._tasks.values(), return_exceptions=True), 60)
        for call in left:
            if call.status == "under way":
                call.status = "left"

    async def _run(self, call: Call, replica: httpx2.AsyncClient, again: Again | None) -> None:
        payload = {
            "model": self._model,
            "number": call.number,
            "input": call.request.input,
            "output": call.request.output,
            "token_us": call.request.token_us,
            "stream": call.reading is Reading.STREAM,
        }
        if call.request.max_output:
            payload["max_tokens"] = call.request.max_output
        body = {
            **payload,
            "messages": _fill(payload, call.request.input),
            "mode": call.request.queue.rpartition("_")[2],
            "priority": call.request.priority,
            "timeout": self._timeout_ms(call),
            "metadata": call.number,
        }
        call.headers = self._keys[call.request.client].headers
        if users := self._names.get(call.request.client):
            call.headers["x-fairlane-user"] = next(users)
        call.sent_ns = time.monotonic_ns()
        try:
            await self._read(call, replica, body)
        except httpx2.HTTPError as error:  # counted among the failed ones
            call.status = f"HTTP {error!r}"
        for request in again(call) if again and not self._ending else ():
            self._begin(request, call.reading, again)

    def _timeout_ms(self, call: Call) -> int:
        if not self._expire_s or call.reading is not Reading.UNREAD:
            return TIMEOUT_MS
        return round(1000 * self._expire_s - (time.monotonic_ns() - self.began_ns) / 1e6)

    async def _read(self, call: Call, replica: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        match call.reading:
            case Reading.SYNC:
                await self._sync(call, replica, body)
            case Reading.STREAM:
                await self._stream(call, replica, body)
            case _:
                await self._later(call, replica, body)

    async def _sync(self, call: Call, replica: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        answer = await replica.post("/api/openai", json=body, headers=call.headers)
        self._answered(call, answer, 200)
        if answer.status_code == 200:
            call.status = "completed"
            call.waited_ms = int(answer.headers["x-fairlane-waited-ms"])

    async def _stream(self, call: Call, replica: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        async with replica.stream("POST", "/api/openai", json=body, headers=call.headers) as answer:
            self._answered(call, answer, 200)
            tokens = 0
            async for line in answer.aiter_lines():
                kind, _, text = line.partition(": ")
                if kind == "event" and text in ENDS:
                    call.ends += 1
                    call.status = {"done": "completed"}.get(text, text)
                elif kind == "data" and call.request.stop_after and '"delta":"' in text:
                    tokens += text.partition('"delta":"')[2].partition('"')[0].count("t")
                    if tokens >= call.request.stop_after and not call.ends:
                        await self._cancel(replica, call)

    async def _later(self, call: Call, replica: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        answer = await replica.post("/api/openai", json=body | {"async": True}, headers=call.headers)
        self._answered(call, answer, 202)
        if answer.status_code != 202:
            return
        if call.reading is Reading.UNREAD:
            call.status = "accepted"
            return
        state = answer.json()
        call.told = _told(state)
        patience_s = call.request.patience_us / 1e6
        while state["status"] in ("queued", "executing"):
            waited_s = (time.monotonic_ns() - call.sent_ns) / 1e9
            if patience_s and state["status"] == "queued" and waited_s >= patience_s:
                await self._cancel(replica, call)
                break
            pause_s = state["pollAfterMs"] / 1000
            await asyncio.sleep(min(pause_s, max(patience_s - waited_s, 0.01)) if patience_s else pause_s)
            state = await self._poll(call, replica, state)
        else:
            call.status = state["status"]

    async def _poll(self, call: Call, replica: httpx2.AsyncClient, known: dict[str, Any]) -> dict[str, Any]:
        """What is said of a task; what was known, to be asked again later, when the gateway asks for patience (503)."""
        answer = await replica.get(f"/api/task/{call.task_id}", headers=call.headers)
        if answer.status_code == 503:
            self.put_off += 1
            return {**known, "pollAfterMs": 1000 * int(answer.headers["retry-after"])}
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def _answered(self, call: Call, answer: httpx2.Response, expected: int) -> None:
        call.task_id = answer.headers.get("x-task-id", "")
        if answer.status_code != expected:
            call.status = f"HTTP {answer.status_code}"

    async def _cancel(self, replica: httpx2.AsyncClient, call: Call) -> None:
        path = f"/api/task/{call.task_id}/cancel"
        answer = await replica.post(path, headers=call.headers)
        call.status = answer.json().get("status", f"HTTP {answer.status_code} to a cancel")

    async def close(self) -> None:
        """Hang up."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for client in self._open:
            await client.aclose()


@contextlib.asynccontextmanager
async def clients(
    urls: Sequence[str],
    keys: Mapping[str, Key],
    model: str,
    names: Mapping[str, Sequence[str]] = NOBODYS,
    expire_s: float = 0,
) -> AsyncIterator[Clients]:
    """Callers of these gateways; nothing of them remains."""
    callers = Clients(urls, keys, model, names, expire_s)
    try:
        yield callers
    finally:
        await callers.close()


def _client(url: str) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx2.AsyncClient(base_url=url, trust_env=False, timeout=TIMEOUT_MS / 1000 + 30, limits=limits)


def _told(answer: Mapping[str, Any]) -> Estimate | None:
    """What a 202 says of the wait."""
    if answer["status"] != "queued" or not answer["estimatedWaitHighMs"]:
        return None
    waits = (answer[f"estimatedWait{bound}Ms"] for bound in ("", "Low", "High"))
    return Estimate(answer["position"], *waits)


def _fill(payload: Mapping[str, Any], tokens: int) -> list[dict[str, str]]:
    """Return messages of a payload with this number of tokens, as the gateway counts them. Raise ValueError if it is longer."""

    def messages(size: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "x" * size}]

    room = tokens * BYTES_PER_TOKEN - len(msgspec.json.encode({**payload, "messages": messages(0)}))
    if room < 0:
        raise ValueError(f"a payload of {tokens} tokens is too short to say what is wanted")
    return messages(room)
