import asyncio

import pytest

from fairlane.queues import loops

pytestmark = pytest.mark.anyio


async def test_a_task_that_swallows_its_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "RETRY_CANCEL_S", 0.01)
    loop = asyncio.get_running_loop()
    failing, other = loop.create_future(), loop.create_future()
    failures = 0

    async def go_on() -> None:
        nonlocal failures
        while True:
            try:
                await asyncio.gather(failing, other)
            except ValueError:
                failures += 1
                await asyncio.Event().wait()

    task = asyncio.create_task(go_on())
    await asyncio.sleep(0)
    failing.set_exception(ValueError())
    await loops.cancel_and_wait(None, task)
    assert task.cancelled()
    assert failures == 1  # the first cancellation came as that


async def test_whatever_a_task_ends_with_is_over() -> None:
    async def fail() -> None:
        raise ValueError

    async def fail_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    tasks = [asyncio.create_task(work()) for work in (fail, fail_late)]
    await asyncio.sleep(0)
    await loops.cancel_and_wait(*tasks)
    assert all(task.done() for task in tasks)
    await loops.cancel_and_wait()


async def test_concurrent_work_raises_its_first_failure_when_everything_has_ended() -> None:
    over: list[int] = []

    async def work(number: int, *, fails: bool = False) -> int:
        for _ in range(number):
            await asyncio.sleep(0)
        over.append(number)
        if fails:
            raise ValueError(number)
        return number

    assert await loops.gather_all(work(number) for number in (3, 1, 2)) == [3, 1, 2]
    over.clear()
    with pytest.raises(ValueError, match="4"):
        await loops.gather_all([work(4, fails=True), work(1, fails=True), work(9)])
    assert sorted(over) == [1, 4, 9]


async def test_a_periodic_step_is_repeated_after_failures_and_when_it_is_woken() -> None:
    outcomes = [KeyError(), ValueError(), 0.0, 3600.0, None]
    done: list[object] = []

    class Part(loops.Periodic):
        name, interval_s, expected = "test", 0.0, (KeyError,)
        wake = asyncio.Event()

        async def step(self) -> float | None:
            outcome = outcomes[len(done)]
            done.append(outcome)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

    part = Part()
    part.start()
    while len(done) < 4:
        await asyncio.sleep(0.001)
    part.wake.set()
    while len(done) < 5:
        await asyncio.sleep(0.001)
    await part.close()
