"""A stream is drawn as its client reads it."""

import asyncio
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest

from fairlane.gateway.api.native import NativeAnswer
from fairlane.gateway.http.request import CONNECTION, DirectExchange, Request
from fairlane.gateway.http.streams import SLICE, StreamAnswer
from fairlane.gateway.lifecycle import OpenAnswers
from fairlane.streaming.events import Event
from fairlane.streaming.hub import Hub, LiveLog, Reader
from fairlane.streaming.views.native import NativeStreamView
from fairlane.streaming.views.task import TaskInfo

NO_STORE: Any = None


class Multiplying:
    """A stream whose frames are a thousand times as large as their events; it counts those that were drawn."""

    def __init__(self) -> None:
        self.drawn = 0
        self.ended = False
        self.pending = None

    def feed(self, event: Event) -> bytes:
        self.drawn += 1
        self.ended = event.type in ("done", "error")
        return b"x" * SLICE if event.type == "chunk" else b"end"


class Answer(StreamAnswer[Any]):
    """An answer whose frames between events do not matter."""

    __slots__ = ()

    def idle(self) -> bytes:
        return b"idle"

    farewell = lost = revoked = overdue = unread = idle

    def notice(self, event: Event) -> bytes:
        raise NotImplementedError


class Client(DirectExchange):
    """A connection whose client reads what is written; it notes how much more was drawn for each part than was written."""

    def __init__(self, stream: Multiplying) -> None:
        self.stream = stream
        self.written: list[int] = []
        self.ahead: list[int] = []

    @property
    def may_write(self) -> bool:
        return True

    def forget_head(self) -> None:
        """It holds none."""

    def watch(self, on_lost: Any) -> bool:
        return True

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.write_more(message["body"])

    def write_more(self, body: bytes) -> None:
        self.written.append(len(body))
        self.ahead.append(self.stream.drawn - sum(self.written) // SLICE)

    async def receive(self) -> Any:
        await asyncio.get_running_loop().create_future()


def chunks(first: int, last: int) -> list[Event]:
    return [Event(7, seq, "chunk", b"{}") for seq in range(first, last + 1)]


def tasks_of(hub: Hub) -> Any:
    """What an answer needs of the gateway."""
    settings = SimpleNamespace(tuning=SimpleNamespace(keepalive_ms=60_000))
    return SimpleNamespace(hub=hub, settings=settings, open_answers=OpenAnswers())


async def read(client: Client, view: Any, feed: LiveLog, hub: Hub, hold_s: float) -> bool:
    scope: dict[str, Any] = {
        "type": "http",
        "path": "/v1/x",
        "method": "POST",
        "headers": [],
        "query_string": b"",
    }
    scope[CONNECTION] = client
    request = Request(scope, client.receive, client.send)
    make: Any = NativeAnswer if isinstance(view, NativeStreamView) else Answer
    answer = make(tasks_of(hub), request, Reader(hub, feed), view, [])
    answer.hold_s = hold_s
    return bool(await answer.write())


@pytest.mark.parametrize("hold_s", [0.0, 60.0], ids=["begun", "held"])
def test_of_a_batch_no_more_is_drawn_than_is_written(hold_s: float) -> None:
    async def work() -> None:
        hub = Hub(NO_STORE)
        feed, stream = hub.open("t"), Multiplying()
        client = Client(stream)
        feed.accept([*chunks(1, 100), Event(7, 101, "done", b"{}")])
        assert await read(client, stream, feed, hub, hold_s)
        assert sum(client.written) == 100 * SLICE + len(b"end")
        assert max(client.ahead) <= 1

    asyncio.run(work())


def test_of_a_batch_that_comes_while_a_stream_waits_no_more_is_drawn_than_is_written() -> None:
    async def work() -> None:
        hub = Hub(NO_STORE)
        feed, stream = hub.open("t"), Multiplying()
        client = Client(stream)
        serving = asyncio.ensure_future(read(client, stream, feed, hub, 0.0))
        await asyncio.sleep(0)
        feed.accept(chunks(1, 100))
        assert (stream.drawn, client.written) == (1, [SLICE])
        feed.accept([Event(7, 101, "done", b"{}")])
        assert await serving
        assert sum(client.written) == 100 * SLICE + len(b"end")
        assert max(client.ahead) <= 1

    asyncio.run(work())


class Deaf(Client):
    """A client that reads nothing of what is large."""

    held = b""

    async def send(self, message: Any) -> None:
        body = message.get("body", b"")
        if len(body) > 1000:
            self.held = body
            await asyncio.get_running_loop().create_future()


def test_clients_who_read_nothing_of_a_task_share_its_large_events() -> None:
    async def work() -> None:
        hub = Hub(NO_STORE)
        feed, info = hub.open("t"), TaskInfo("t", "m", 1, "openaiLike")
        feed.accept([Event(7, 1, "chunk", b'{"delta":"%b"}' % (b"x" * (4 << 20)))])
        clients = [Deaf(Multiplying()) for _ in range(50)]
        tracemalloc.start()
        serving = [
            asyncio.ensure_future(read(client, NativeStreamView(info), feed, hub, 0.0)) for client in clients
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        assert all(len(client.held) == SLICE for client in clients)
        assert taken < 50 * 2 * SLICE

    asyncio.run(work())
