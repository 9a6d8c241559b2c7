"""What is large is read once for all who ask at the same time, and little of it at once."""

import asyncio

from fairlane.streaming.results import AT_ONCE, Result, Results


async def _nothing(*_: object) -> list[object]:
    return []


def test_what_is_told_beside_is_read_once_for_all_who_ask_and_a_few_at_once() -> None:
    begun: list[str] = []
    running = most = 0

    async def ask_all() -> list[Result]:
        results = Results(_nothing, _nothing)  # type: ignore[arg-type]
        go = asyncio.Event()

        def reading(task_id: str) -> "asyncio.Task[Result]":
            async def read() -> bytes:
                nonlocal running, most
                begun.append(task_id)
                running += 1
                most = max(most, running)
                await go.wait()
                running -= 1
                return task_id.encode()

            return asyncio.create_task(results.beside(task_id, "u", read))

        asking = [reading(f"t{number % 10}") for number in range(100)]
        for _ in range(20):
            await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(*asking)

    told = asyncio.run(ask_all())
    assert [one.json for one in told] == [b"t%d" % (number % 10) for number in range(100)]
    assert (sorted(begun), most) == ([f"t{number}" for number in range(10)], AT_ONCE)
