"""Clients of all kinds that record what came of each request, while servers of Redis fail."""

import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from tests.support.serving import until
from tests.support.streams import Frame, RawStream, joined_text
from tests.support.talk import Talk

from fairlane.queues.tasks import TERMINAL
from fairlane.workers.sdk import Context, Task, Worker

TOKENS = 6
GIVE_UP_S = 20.0
REJECTIONS = frozenset((429, 503))
ENDS = frozenset(("done", "error", "cancelled"))


def expected(number: int) -> str:
    """The answer to a request."""
    return "".join(f"{number}.{at} " for at in range(TOKENS))


@dataclass
class Load:
    """Requests at a rate, to any of the gateways, for one of the models."""

    gateways: Sequence[Talk]
    models: Sequence[str] = ("m",)
    pause_s: float = 0.01
    """Between two tokens."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """ok · rejected · failed (with an error) · lost (an accepted task that no gateway knows any more) · wrong."""
    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ended_at: dict[str, float] = field(default_factory=dict)
    """Model -> when a request for it last succeeded (loop time)."""
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    _calls: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def workers(self, slots: int = 20) -> AsyncIterator[None]:
        """A worker of all models at each gateway."""
        stop = asyncio.Event()
        tasks = []
        for number, talk in enumerate(self.gateways):
            worker = Worker(f"load-{number}", gateway=talk.served.url, slots=slots)
            worker.handler(models=list(self.models))(self._answer)
            tasks.append(asyncio.create_task(worker.serve(stop)))
        for talk in self.gateways:
            await talk.workers(len(self.gateways))
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)

    async def _answer(self, task: Task, _: Context) -> AsyncIterator[str]:
        number = task.payload["messages"][0]["content"]
        for at in range(TOKENS):
            yield f"{number}.{at} "
            await asyncio.sleep(self.pause_s)

    @contextlib.asynccontextmanager
    async def running(self, per_second: float) -> AsyncIterator[None]:
        """Requests inside the block; returns when all have their outcome."""
        pump = asyncio.create_task(self._pump(1 / per_second))
        try:
            yield
        finally:
            pump.cancel()
            await asyncio.gather(*self._calls)

    async def _pump(self, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for count in itertools.count(1):
            call = asyncio.create_task(self._call(next(self._numbers)))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            await asyncio.sleep(max(begun + count * every_s - loop.time(), 0))

    async def _call(self, number: int) -> None:
        model = self.models[number % len(self.models)]
        talk = self.gateways[number % len(self.gateways)]
        body = {"model": model, "messages": [{"role": "user", "content": str(number)}]}
        kind = (self._sync, self._poll, self._stream)[number // len(self.models) % 3]
        try:
            outcome = await kind(talk, body, number)
        except (httpx2.HTTPError, TimeoutError) as error:
            outcome = "wrong"
            self.wrong.append(f"{number} {kind.__name__}: {error!r}")
        self.outcomes[outcome] += 1
        if outcome == "ok":
            self.ended_at[model] = asyncio.get_running_loop().time()

    def _judge(self, number: int, text: str) -> str:
        if text == expected(number):
            return "ok"
        self.wrong.append(f"{number}: {text!r}")
        return "wrong"

    def _error(self, body: dict[str, Any]) -> str:
        self.codes[str(body.get("error", body))] += 1
        return "failed"

    async def _sync(self, talk: Talk, body: dict[str, Any], number: int) -> str:
        answer = await talk.http.post("/api/openai", json=body, timeout=GIVE_UP_S)
        if answer.status_code in REJECTIONS:
            return "rejected"
        if answer.status_code == 200:
            return self._judge(number, answer.json()["content"])
        return self._error(answer.json())

    async def _poll(self, talk: Talk, body: dict[str, Any], number: int) -> str:
        answer = await talk.http.post("/api/openai", json=body | {"async": True})
        if answer.status_code in REJECTIONS:
            return "rejected"
        assert answer.status_code == 202, answer.text
        url = f"/api/task/{answer.json()['taskId']}"
        async with asyncio.timeout(GIVE_UP_S):
            while True:
                answer = await random.choice(self.gateways).http.get(url)
                if answer.status_code == 404:
                    return "lost"
                if answer.status_code == 200 and answer.json()["status"] in TERMINAL:
                    break
                await asyncio.sleep(0.1)
        said = answer.json()
        return (
            self._judge(number, said["result"]["content"])
            if said["status"] == "completed"
            else self._error(said)
        )

    async def _stream(self, talk: Talk, body: dict[str, Any], number: int) -> str:
        answer = await talk.http.post("/api/openai", json=body | {"async": True, "stream": True})
        if answer.status_code in REJECTIONS:
            return "rejected"
        assert answer.status_code == 202, answer.text
        path = f"/api/task/{answer.json()['taskId']}/events"
        seen: list[Frame] = []
        async with asyncio.timeout(GIVE_UP_S):
            while not seen or seen[-1].event not in ENDS:
                last = next((frame.id for frame in reversed(seen) if frame.id), None)
                url = random.choice(self.gateways).served.url
                stream = await RawStream.open(url, path, last=last)
                async with stream:
                    if stream.status == 404:
                        return "lost"
                    if stream.status != 200:
                        await asyncio.sleep(0.1)
                        continue
                    while (frame := await stream.frame()) is not None:
                        seen = (
                            []
                            if frame.event == "restart"
                            else [frame]
                            if frame.event == "start"
                            else [*seen, frame]
                        )
        return (
            self._judge(number, joined_text(seen)) if seen[-1].event == "done" else self._error(seen[-1].data)
        )


async def settled(load: Load) -> None:
    """Return when something of every model succeeds from now on."""
    since = asyncio.get_running_loop().time()
    await until(
        lambda: all(load.ended_at.get(model, 0) > since for model in load.models), "all models to serve"
    )
