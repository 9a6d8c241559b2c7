"""What writers have to write in the same tick of the event loop leaves as one call."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import pytest

from fairlane.queues.errors import StoreUnavailable
from fairlane.queues.scheduler import Scheduler
from fairlane.queues.tasks import Append, Appended, Grant
from fairlane.streaming.append_batcher import CALL_BYTES, CALL_EVENTS, AppendBatcher

pytestmark = pytest.mark.anyio

Answer = Callable[[list[str]], list[tuple[str, int]]]


class Store:
    """A scheduler that answers each call with what the test makes of the tasks in it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.calls: list[list[str]] = []

    def before_writing(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    @staticmethod
    def grouped(items: list[Any], _: object) -> list[list[Any]]:
        return [items]

    def append(self, appends: Sequence[Append]) -> asyncio.Future[Any]:
        tasks = [append.grant.task_id for append in appends]
        self.calls.append(tasks)
        reply = asyncio.get_running_loop().create_future()
        try:
            reply.set_result(self._answer(tasks))
        except RuntimeError as refused:
            reply.set_exception(refused)
        return reply

    @staticmethod
    def parse_append(reply: Any) -> Any:
        return reply


class Writer:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_due(self) -> None: ...

    def on_appended(self, appended: Appended) -> None:
        if appended[0] == "hole":
            raise AssertionError("this writer is broken")
        self.heard.append(appended)

    def on_append_error(self, error: BaseException) -> None:
        self.heard.append(error)


class Granted(NamedTuple):
    task_id: str


def append(task_id: str, *events: bytes) -> Append:
    return Append(
        cast(Grant, Granted(task_id)), 2, [("chunk", data) for data in events or (b"{}",)], output=True
    )


async def written(store: Store, appends: list[Append]) -> list[Writer]:
    """The writers of these appends, when all of them have been answered."""
    batcher = AppendBatcher(cast(Scheduler, store), asyncio.get_running_loop())
    writers = [Writer() for _ in appends]
    for writer, one in zip(writers, appends, strict=True):
        batcher.append(writer, one)
    for _ in range(10):
        await asyncio.sleep(0)
    return writers


async def test_one_call_carries_all_of_a_tick_and_each_writer_hears_of_its_own() -> None:
    store = Store(lambda tasks: [("stale", 0) if task == "b" else ("ok", 0) for task in tasks])
    writers = await written(store, [append(name) for name in "abc"])
    assert store.calls == [["a", "b", "c"]]
    assert [writer.heard for writer in writers] == [[("ok", 0)], [("stale", 0)], [("ok", 0)]]


@pytest.mark.parametrize("events", [(b"{}",), (b"{}",) * (CALL_EVENTS + 1), (b"x" * (CALL_BYTES + 1),)])
async def test_one_that_is_alone_in_its_tick_goes_as_it_is(events: tuple[bytes, ...]) -> None:
    store = Store(lambda tasks: [("ok", 0)] * len(tasks))
    (writer,) = await written(store, [append("a", *events)])
    assert store.calls == [["a"]]
    assert writer.heard == [("ok", 0)]


async def test_a_call_is_bounded_in_events_and_bytes_and_a_larger_one_goes_alone() -> None:
    store = Store(lambda tasks: [("ok", 0)] * len(tasks))
    many = [b"{}"] * (CALL_EVENTS // 2)
    large = b"x" * (CALL_BYTES + 1)
    appends = [append("a", *many), append("b", *many), append("c"), append("d", large), append("e")]
    writers = await written(store, appends)
    assert store.calls == [["a", "b"], ["c"], ["d"], ["e"]]
    assert [writer.heard for writer in writers] == [[("ok", 0)]] * 5


async def test_what_redis_refuses_of_one_is_no_failure_of_the_others() -> None:
    def answer(tasks: list[str]) -> list[tuple[str, int]]:
        if "b" in tasks:
            raise RuntimeError("WRONGTYPE")
        return [("ok", 0)] * len(tasks)

    store = Store(answer)
    a, b, c = await written(store, [append(name) for name in "abc"])
    assert store.calls == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert (a.heard, c.heard) == ([("ok", 0)], [("ok", 0)])
    assert isinstance(b.heard[0], RuntimeError)


async def test_a_writer_that_fails_takes_no_answer_from_the_others() -> None:
    store = Store(lambda tasks: [("hole", 1) if task == "a" else ("ok", 0) for task in tasks])
    _, other = await written(store, [append("a"), append("b")])
    assert other.heard == [("ok", 0)]


async def test_all_hear_that_redis_is_away() -> None:
    class Away(Store):
        def append(self, appends: Sequence[Append]) -> asyncio.Future[Any]:
            raise StoreUnavailable("no connection to Redis", sent=False)

    writers = await written(Away(lambda _: []), [append("a"), append("b")])
    assert all(isinstance(writer.heard[0], StoreUnavailable) for writer in writers)
